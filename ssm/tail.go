package ssm

import (
	"fmt"

	"reprise/kernels"
)

// A tail is what a slot holds besides its block: by layer, the H committed records from Origin (X, B, Decay, V, Beta) and the
// last raw rows of the convolution, by absolute token index and packed without gaps. It fits any slot of a pool of the
// same configuration.

// TailBytes is the size of the longest tail.
func (p *Pool) TailBytes() int64 {
	return p.TailSize(kernels.Cursor{Origin: MaxWindow, H: int32(p.config.Window.L)})
}

// TailSize is the size of the tail of a slot with cursor c.
func (p *Pool) TailSize(c kernels.Cursor) int64 {
	var n int64
	p.eachRun(0, c, func(b kernels.Buffer) { n += b.Size })
	return n
}

// SaveTail copies the tail of a slot with cursor c into dst, TailSize(c) bytes of host memory.
func (p *Pool) SaveTail(o kernels.Ops, slot int, c kernels.Cursor, dst []byte) {
	p.checkTail(slot, c, int64(len(dst)))
	p.eachRun(slot, c, func(b kernels.Buffer) {
		o.Download(dst[:b.Size], b)
		dst = dst[b.Size:]
	})
}

// LoadTail puts a tail saved under cursor c into a slot; src must not change until the copies are done.
func (p *Pool) LoadTail(o kernels.Ops, slot int, c kernels.Cursor, src []byte) {
	p.checkTail(slot, c, int64(len(src)))
	p.eachRun(slot, c, func(b kernels.Buffer) {
		o.Upload(b, src[:b.Size])
		src = src[b.Size:]
	})
}

func (p *Pool) checkTail(slot int, c kernels.Cursor, bytes int64) {
	if slot < 0 || slot >= p.config.Slots || c.Origin < 0 || c.H < 0 || int(c.H) > p.config.Window.L {
		panic(fmt.Sprintf("ssm: tail of slot %d of %d at origin %d, %d records, window %d", slot, p.config.Slots, c.Origin, c.H, p.config.Window.L))
	}
	if want := p.TailSize(c); bytes != want {
		panic(fmt.Sprintf("ssm: tail of %d bytes, want %d", bytes, want))
	}
}

// eachRun visits the contiguous pieces of a slot's tail in the order of its format.
func (p *Pool) eachRun(slot int, c kernels.Cursor, visit func(kernels.Buffer)) {
	end := c.Origin + c.H
	for i := range p.layers {
		l := &p.layers[i]
		region := p.rings.Slice(int64(slot)*p.slotBytes+l.slot, l.ring.Bytes)
		for _, f := range [...]kernels.Field{l.ring.X, l.ring.B, l.ring.Decay, l.ring.V, l.ring.Beta} {
			fieldRuns(region, f, c.Origin, end, visit)
		}
		fieldRuns(region, l.ring.Conv, max(0, end-int32(l.taps-1)), end, visit)
	}
}

// fieldRuns visits rows from..to-1 of a ring, by absolute token index.
func fieldRuns(region kernels.Buffer, f kernels.Field, from, to int32, visit func(kernels.Buffer)) {
	row := int64(f.Cols) * int64(f.DType.Size())
	if f.Rows == 0 {
		return
	}
	for from < to {
		at := kernels.RingIndex(from, f.Rows)
		n := min(int(to-from), f.Rows-at)
		visit(region.Slice(f.Offset+int64(at)*row, int64(n)*row))
		from += int32(n)
	}
}
