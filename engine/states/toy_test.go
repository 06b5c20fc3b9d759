package states

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"reprise/attention"
	"reprise/kernels"
	"reprise/kernels/cpu"
	"reprise/ssm"
)

// toy runs sequences on real pools with a made-up model: everything it stores for token i is a pattern of all tokens up
// to i, so that any byte that is lost, mixed up or written in the wrong place shows.
type toy struct {
	t     *testing.T
	dev   *cpu.Device
	ssm   *ssm.Pool
	kv    *attention.Pool
	st    *States
	work  *Work
	win   kernels.Window
	taps  int
	extra *lastWord
}

const toySlots, toyBlocks, toyScratch, toyPages, toyPageTokens, toyMaxLen = 5, 8, 2, 24, 4, 40

// history is the chain of hashes of a sequence: entry i stands for the first i tokens. The tokens in it are len-1.
type history []uint64

func (h history) tokens() int { return len(h) - 1 }

func (h history) then(tokens ...uint64) history {
	h = slices.Clone(h)
	for _, token := range tokens {
		x := (h[len(h)-1]^token)*0x9e3779b97f4a7c15 + 1
		h = append(h, x^x>>29)
	}
	return h
}

// lastWord is an Extra: one number by slot.
type lastWord struct{ buf kernels.Buffer }

func (*lastWord) Bytes() int64 { return 8 }
func (l *lastWord) Save(o kernels.Ops, slot int, dst []byte) {
	o.Download(dst, l.buf.Slice(int64(slot)*8, 8))
}
func (l *lastWord) Load(o kernels.Ops, slot int, src []byte) {
	o.Upload(l.buf.Slice(int64(slot)*8, 8), src)
}

func newToy(t *testing.T, hostBytes int64) *toy {
	t.Helper()
	dev, err := cpu.Open(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	y := &toy{t: t, dev: dev, win: kernels.Window{L: 4, T: 2}, taps: 4}
	y.ssm, err = ssm.NewPool(dev, ssm.PoolConfig{
		Mamba2: kernels.Mamba2Dims{Heads: 2, HeadDim: 3, State: 4, Groups: 1, Taps: y.taps}, Mamba2Layers: 2,
		Delta: kernels.DeltaDims{KeyHeads: 1, ValueHeads: 2, KeyDim: 4, ValueDim: 3, Taps: y.taps}, DeltaLayers: 1,
		Window: y.win, Activations: kernels.F32, Slots: toySlots, Blocks: toyBlocks, Scratch: toyScratch,
	})
	must(t, err)
	y.kv, err = attention.NewPool(dev, attention.PoolConfig{
		Layers: 2, MTPLayers: 1, KVHeads: 2, HeadDim: 4, DType: kernels.BF16, PageTokens: toyPageTokens, Pages: toyPages,
		Slots: toySlots, MaxLen: toyMaxLen,
	})
	must(t, err)
	buf, err := dev.Alloc(toySlots * 8)
	must(t, err)
	y.extra = &lastWord{buf}
	y.st, err = New(Config{Blocks: toyBlocks, Scratch: toyScratch, HostBytes: hostBytes, Extra: y.extra}, dev, y.ssm, y.kv)
	must(t, err)
	y.work = y.st.NewWork()
	return y
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// do runs a program and waits.
func (y *toy) do(f func(kernels.Ops)) {
	y.t.Helper()
	y.dev.Submit(kernels.ProgramFunc(f))
	must(y.t, y.dev.Wait(y.dev.Mark()))
}

// flush runs what has been recorded.
func (y *toy) flush() {
	y.t.Helper()
	y.do(y.work.Run)
	y.work.Reset()
}

func (y *toy) slot(id ID) int {
	slot, ok := y.st.Slot(id)
	if !ok {
		y.t.Fatalf("%d has no slot", id)
	}
	return slot
}

func (y *toy) readCursor(o kernels.Ops, slot int) kernels.Cursor {
	b := make([]byte, ssm.CursorBytes)
	y.ssm.ReadCursor(o, slot, b)
	return ssm.CursorOf(b)
}

func (y *toy) cursor(id ID) (c kernels.Cursor) {
	y.do(func(o kernels.Ops) { c = y.readCursor(o, y.slot(id)) })
	return c
}

// pattern is n bytes that depend on a hash and a place.
func pattern(hash uint64, place int, n int64) []byte {
	b := make([]byte, n)
	for i := range b {
		x := (hash + uint64(place)*0x100000001b3 + uint64(i)) * 0xff51afd7ed558ccd
		b[i] = byte(x >> 40)
	}
	return b
}

// blockPattern is the checkpoint of a prefix; nothing yet is zeros.
func (y *toy) blockPattern(h history, tokens int32) []byte {
	if tokens == 0 {
		return make([]byte, y.ssm.BlockBytes())
	}
	return pattern(h[tokens], 1000, y.ssm.BlockBytes())
}

// eachRow visits the ring rows of token i of a slot, records or convolution rows.
func (y *toy) eachRow(slot int, i int32, conv bool, visit func(b kernels.Buffer, place int)) {
	for layer, s := range y.ssm.Layers() {
		region := s.Rings.Slice(int64(slot)*s.RingStride, s.Layout.Bytes)
		fields := []kernels.Field{s.Layout.X, s.Layout.B, s.Layout.Decay}
		if conv {
			fields = []kernels.Field{s.Layout.Conv}
		}
		for k, f := range fields {
			row := int64(f.Cols) * int64(f.DType.Size())
			visit(region.Slice(f.Offset+int64(kernels.RingIndex(i, f.Rows))*row, row), layer*10+k)
		}
	}
}

// eachKV visits what the pages hold of token i of a slot.
func (y *toy) eachKV(o kernels.Ops, slot int, i int32, visit func(b kernels.Buffer, place int)) {
	for layer, kv := range append(slices.Clone(y.kv.Layers()), y.kv.MTPLayers()...) {
		b := make([]byte, 4)
		o.Download(b, kv.Table.Slice(4*(int64(slot)*int64(kv.TableStride)+int64(i)/int64(kv.PageTokens)), 4))
		page := int64(int32(binary.LittleEndian.Uint32(b)))
		if page == 0 {
			panic(fmt.Sprintf("token %d of slot %d lies in the null page", i, slot))
		}
		size := int64(kv.HeadDim * kv.DType.Size())
		for part := range 2 * kv.Heads { // [K|V][head][token][HeadDim]
			off := (int64(part)*int64(kv.PageTokens) + int64(i)%int64(kv.PageTokens)) * size
			visit(kv.Pages.Slice(page*kv.PageStride+off, size), 100+layer*10+part)
		}
	}
}

func put(o kernels.Ops, hash uint64) func(kernels.Buffer, int) {
	return func(b kernels.Buffer, place int) { o.Upload(b, pattern(hash, place, b.Size)) }
}

// step appends the tokens to a sequence as a step row of which a are accepted; the rest leaves garbage behind.
func (y *toy) step(id ID, h history, tokens []uint64, a int) history {
	y.t.Helper()
	slot := y.slot(id)
	all := h.then(tokens...)
	y.do(func(o kernels.Ops) {
		c := y.readCursor(o, slot)
		y.checkBlock(o, h, c)
		n := int32(len(tokens))
		for i := c.Origin + c.H; i < c.Origin+c.H+n; i++ {
			y.eachRow(slot, i, false, put(o, all[i+1]))
			y.eachRow(slot, i, true, put(o, all[i+1]))
			y.eachKV(o, slot, i, put(o, all[i+1]))
		}
		if kernels.Flushes(c.H, n, int32(y.win.L)) {
			y.ssm.LoadBlock(o, y.blockPattern(h, c.Origin+c.H), int(c.Dst))
		}
		y.ssm.SetCursor(o, slot, c.CommitStep(n, int32(a), int32(y.win.L)))
		y.setExtra(o, slot, all[h.tokens()+a])
	})
	return all[:len(h)+a]
}

// prefill appends the tokens as a prefill row without a scratch block.
func (y *toy) prefill(id ID, h history, tokens []uint64) history {
	y.t.Helper()
	return y.chunk(id, h, tokens, -1, 0)
}

// chunk appends the tokens as a prefill row, with the scratch block and stage that Staged tells.
func (y *toy) chunk(id ID, h history, tokens []uint64, scratch, stage int32) history {
	y.t.Helper()
	slot := y.slot(id)
	all := h.then(tokens...)
	y.do(func(o kernels.Ops) {
		c := y.readCursor(o, slot)
		if stage&kernels.Resume != 0 {
			y.checkScratch(o, h, c, scratch)
		} else {
			y.checkBlock(o, h, c)
		}
		for i := int32(h.tokens()); i < int32(all.tokens()); i++ {
			y.eachRow(slot, i, true, put(o, all[i+1]))
			y.eachKV(o, slot, i, put(o, all[i+1]))
		}
		if scratch >= 0 { // behind the last chunk it holds nothing of use
			y.ssm.LoadScratch(o, y.scratchPattern(all), int(scratch))
		}
		if scratch < 0 || stage&kernels.Publish != 0 {
			y.ssm.LoadBlock(o, y.blockPattern(all, int32(all.tokens())), int(c.Dst))
		}
		y.ssm.SetCursor(o, slot, c.CommitPrefill(int32(len(tokens))))
		y.setExtra(o, slot, all[all.tokens()])
	})
	return all
}

func (y *toy) setExtra(o kernels.Ops, slot int, hash uint64) {
	b := make([]byte, 8)
	binary.LittleEndian.PutUint64(b, hash)
	y.extra.Load(o, slot, b)
}

func (y *toy) checkBlock(o kernels.Ops, h history, c kernels.Cursor) {
	got := make([]byte, y.ssm.BlockBytes())
	y.ssm.SaveBlock(o, int(c.Src), got)
	if int(c.Origin+c.H) != h.tokens() || c.H > int32(y.win.L) {
		panic(fmt.Sprintf("cursor %+v, want %d tokens", c, h.tokens()))
	}
	if !slices.Equal(got, y.blockPattern(h, c.Origin)) {
		panic(fmt.Sprintf("block %d is not the checkpoint of %d tokens", c.Src, c.Origin))
	}
}

// scratchPattern is the state of an unfinished prompt.
func (y *toy) scratchPattern(h history) []byte {
	return pattern(h[h.tokens()], 2000, y.ssm.ScratchBytes())
}

func (y *toy) checkScratch(o kernels.Ops, h history, c kernels.Cursor, scratch int32) {
	got := make([]byte, y.ssm.ScratchBytes())
	y.ssm.SaveScratch(o, int(scratch), got)
	if int(c.Origin) != h.tokens() || c.H != 0 {
		panic(fmt.Sprintf("cursor %+v, want an unfinished prompt of %d tokens", c, h.tokens()))
	}
	if !slices.Equal(got, y.scratchPattern(h)) {
		panic(fmt.Sprintf("scratch block %d is not the state of %d tokens", scratch, h.tokens()))
	}
}

// verify compares everything on the device with a sequence's history, and the books with the device.
func (y *toy) verify(id ID, h history) {
	y.t.Helper()
	slot := y.slot(id)
	y.do(func(o kernels.Ops) {
		c := y.readCursor(o, slot)
		if scratch := y.st.books.Scratch(id); scratch != 0 {
			y.checkScratch(o, h, c, scratch-1)
		} else {
			y.checkBlock(o, h, c)
		}
		check := func(i int32) func(kernels.Buffer, int) {
			return func(b kernels.Buffer, place int) {
				got := make([]byte, b.Size)
				o.Download(got, b)
				if !slices.Equal(got, pattern(h[i+1], place, b.Size)) {
					panic(fmt.Sprintf("sequence %d, slot %d: token %d of %d is wrong at %d", id, slot, i, h.tokens(), place))
				}
			}
		}
		end := c.Origin + c.H
		for i := c.Origin; i < end; i++ {
			y.eachRow(slot, i, false, check(i))
		}
		for i := max(0, end-int32(y.taps-1)); i < end; i++ {
			y.eachRow(slot, i, true, check(i))
		}
		for i := range end {
			y.eachKV(o, slot, i, check(i))
		}
		got := make([]byte, 8)
		y.extra.Save(o, slot, got)
		if end > 0 && binary.LittleEndian.Uint64(got) != h[end] {
			panic(fmt.Sprintf("sequence %d: extra bytes are not those of %d tokens", id, end))
		}
		y.checkTable(o, id, slot)
	})
}

func (y *toy) checkTable(o kernels.Ops, id ID, slot int) {
	stride := int64(y.kv.TableStride())
	row := make([]byte, 4*stride)
	o.Download(row, y.kv.Table().Slice(int64(slot)*4*stride, 4*stride))
	pages := y.st.books.Table(id)
	for i := range int(stride) {
		want := int32(0)
		if i < len(pages) {
			want = pages[i]
		}
		if got := int32(binary.LittleEndian.Uint32(row[4*i:])); got != want {
			panic(fmt.Sprintf("sequence %d: the device has page %d at %d, the books %d", id, got, i, want))
		}
	}
}

// check is called after every operation.
func (y *toy) check() {
	y.t.Helper()
	must(y.t, y.st.Check())
}
