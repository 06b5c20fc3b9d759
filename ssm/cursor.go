package ssm

import (
	"encoding/binary"
	"fmt"

	"reprise/kernels"
)

// CursorBytes is the size of a cursor in host memory: Origin, H, Src, Dst as little-endian int32.
const CursorBytes = 16

// staging is host memory for cursors on their way to the device, used in turn.
type staging struct {
	memory []byte
	next   int
}

func newStaging(dev kernels.Device, slots int) (staging, error) {
	m, err := dev.AllocHost(int64(4*slots) * CursorBytes)
	return staging{memory: m}, err
}

func (s *staging) take() []byte {
	b := s.memory[s.next : s.next+CursorBytes]
	s.next = (s.next + CursorBytes) % len(s.memory)
	return b
}

func (p *Pool) cursorFields(slot int) [4]kernels.Buffer {
	if slot < 0 || slot >= p.config.Slots {
		panic(fmt.Sprintf("ssm: slot %d of %d", slot, p.config.Slots))
	}
	at, c := int64(slot)*4, p.cursors
	return [4]kernels.Buffer{c.Origin.Slice(at, 4), c.H.Slice(at, 4), c.Src.Slice(at, 4), c.Dst.Slice(at, 4)}
}

// SetCursor writes the cursor of a slot. At most 4 x Slots calls may be in flight, which two steps that set every
// slot twice do not exceed.
func (p *Pool) SetCursor(o kernels.Ops, slot int, c kernels.Cursor) {
	b := p.staging.take()
	for i, v := range [4]int32{c.Origin, c.H, c.Src, c.Dst} {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(v))
	}
	for i, f := range p.cursorFields(slot) {
		o.Upload(f, b[4*i:4*i+4])
	}
}

// ReadCursor copies the cursor of a slot into dst, CursorBytes of host memory; see CursorOf.
func (p *Pool) ReadCursor(o kernels.Ops, slot int, dst []byte) {
	for i, f := range p.cursorFields(slot) {
		o.Download(dst[4*i:4*i+4], f)
	}
}

// CursorOf decodes what ReadCursor has copied.
func CursorOf(b []byte) kernels.Cursor {
	v := func(i int) int32 { return int32(binary.LittleEndian.Uint32(b[4*i:])) }
	return kernels.Cursor{Origin: v(0), H: v(1), Src: v(2), Dst: v(3)}
}
