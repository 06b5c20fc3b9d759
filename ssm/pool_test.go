package ssm_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"reprise/kernels"
	"reprise/kernels/cpu"
	"reprise/ssm"
)

func smallConfig() ssm.PoolConfig {
	return ssm.PoolConfig{
		Mamba2: kernels.Mamba2Dims{Heads: 2, HeadDim: 3, State: 5, Groups: 1, Taps: 4}, Mamba2Layers: 2,
		Delta: kernels.DeltaDims{KeyHeads: 1, ValueHeads: 2, KeyDim: 3, ValueDim: 4, Taps: 3}, DeltaLayers: 1,
		Window: kernels.Window{L: 4, T: 2}, Activations: kernels.F32, Slots: 3, Blocks: 4,
	}
}

func TestValidate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*ssm.PoolConfig)
		want   string
	}{
		"as it is":           {func(*ssm.PoolConfig) {}, ""},
		"no layers":          {func(c *ssm.PoolConfig) { c.Mamba2Layers, c.DeltaLayers = 0, 0 }, ""},
		"L = T":              {func(c *ssm.PoolConfig) { c.Window = kernels.Window{L: 1, T: 1} }, ""},
		"T > L":              {func(c *ssm.PoolConfig) { c.Window.T = 5 }, "--replayssm-buffer-len 4 is below the 5 tokens a step appends (num_speculative_tokens 4 + 1)"},
		"T = 0":              {func(c *ssm.PoolConfig) { c.Window.T = 0 }, "num_speculative_tokens"},
		"L too long":         {func(c *ssm.PoolConfig) { c.Window.L = 1 << 20 }, "--replayssm-buffer-len 1048576: at most 1024"},
		"state of float16":   {func(c *ssm.PoolConfig) { c.State.HP = kernels.StateF16 }, ""},
		"a larger copy":      {func(c *ssm.PoolConfig) { c.State = kernels.Precision{HP: kernels.StateF8, LP: kernels.StateF16} }, "the copy must be smaller"},
		"unknown format":     {func(c *ssm.PoolConfig) { c.State.HP = 9 }, "--mamba-ssm-cache-dtype"},
		"dims":               {func(c *ssm.PoolConfig) { c.Mamba2.Groups = 4 }, "Mamba-2 dims"},
		"GDN dims":           {func(c *ssm.PoolConfig) { c.Delta.KeyDim = 0 }, "GDN dims"},
		"negative":           {func(c *ssm.PoolConfig) { c.DeltaLayers = -1 }, "layers"},
		"only the null slot": {func(c *ssm.PoolConfig) { c.Slots = 1 }, "1 slots"},
		"too many blocks":    {func(c *ssm.PoolConfig) { c.Blocks = 1 << 31 }, "32 bits"},
		"no blocks":          {func(c *ssm.PoolConfig) { c.Blocks = 0 }, "0 state blocks"},
	} {
		t.Run(name, func(t *testing.T) {
			p := smallConfig()
			c.change(&p)
			switch err := p.Validate(); {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func open(t *testing.T) kernels.Device {
	dev, err := cpu.Open(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return dev
}

func run(t *testing.T, dev kernels.Device, f func(kernels.Ops)) {
	t.Helper()
	dev.Submit(kernels.ProgramFunc(f))
	if err := dev.Wait(dev.Mark()); err != nil {
		t.Fatal(err)
	}
}

// TestLayout fills the share of every layer in every block and slot with a number of its own and finds them all again,
// in blocks that are contiguous.
func TestLayout(t *testing.T) {
	for _, q := range []kernels.Precision{{}, {HP: kernels.StateNVFP4}, {HP: kernels.StateF16, LP: kernels.StateF8, Rounding: kernels.Stochastic}} {
		t.Run(q.String(), func(t *testing.T) { layoutCase(t, q) })
	}
}

func layoutCase(t *testing.T, q kernels.Precision) {
	dev, c := open(t), smallConfig()
	c.State, c.Scratch = q, 2
	p, err := ssm.NewPool(dev, c)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Layers()) != 3 || p.BlockBytes() != c.BlockBytes() || p.Layers()[0].RingStride+ssm.CursorBytes != c.SlotBytes() {
		t.Errorf("%d layers, blocks of %d and %d bytes, slots of %d and %d", len(p.Layers()), p.BlockBytes(), c.BlockBytes(), p.Layers()[0].RingStride, c.SlotBytes())
	}
	mamba2, delta := kernels.Mamba2Checkpoint(c.Mamba2, q), kernels.DeltaCheckpoint(c.Delta, q)
	sizes := []int64{mamba2.LP.End, mamba2.LP.End, delta.LP.End}
	floats := []int64{2 * 3 * 5 * 4, 2 * 3 * 5 * 4, 2 * 4 * 3 * 4}
	number := func(kind, layer, i int) byte { return byte(1 + kind*80 + layer*10 + i) }
	part := func(kind, layer, i int) kernels.Buffer {
		s := p.Layers()[layer]
		if s.Layer != layer || s.Precision != q {
			t.Errorf("layer %d of precision %v", s.Layer, s.Precision)
		}
		switch kind {
		case 0:
			return s.Blocks.Slice(int64(i)*s.BlockStride, sizes[layer])
		case 2:
			return s.Scratch.Slice(int64(i)*s.ScratchStride, floats[layer])
		}
		return s.Rings.Slice(int64(i)*s.RingStride, s.Layout.Bytes)
	}
	each := func(f func(kind, layer, i int)) {
		for layer := range sizes {
			for i := range c.Blocks {
				f(0, layer, i)
			}
			for i := range c.Slots {
				f(1, layer, i)
			}
			for i := range c.Scratch {
				f(2, layer, i)
			}
		}
	}
	run(t, dev, func(o kernels.Ops) {
		each(func(kind, layer, i int) {
			b := part(kind, layer, i)
			o.Upload(b, bytes.Repeat([]byte{number(kind, layer, i)}, int(b.Size)))
		})
	})
	block := make([]byte, p.BlockBytes())
	run(t, dev, func(o kernels.Ops) {
		each(func(kind, layer, i int) {
			b := part(kind, layer, i)
			got := make([]byte, b.Size)
			o.Download(got, b)
			if b.Addr%256 != 0 || !bytes.Equal(got, bytes.Repeat([]byte{number(kind, layer, i)}, len(got))) {
				t.Errorf("kind %d, layer %d, %d: at %#x, overwritten or not aligned", kind, layer, i, b.Addr)
			}
		})
		p.SaveBlock(o, 2, block)
	})
	for layer := range sizes {
		if !bytes.Contains(block, bytes.Repeat([]byte{number(0, layer, 2)}, int(sizes[layer]))) {
			t.Errorf("layer %d is not in block 2", layer)
		}
	}
}

func TestBlocks(t *testing.T) {
	dev, c := open(t), smallConfig()
	p, err := ssm.NewPool(dev, c)
	if err != nil {
		t.Fatal(err)
	}
	blocks := make([][]byte, c.Blocks)
	run(t, dev, func(o kernels.Ops) {
		for i := range c.Blocks {
			p.LoadBlock(o, bytes.Repeat([]byte{byte(i + 1)}, int(p.BlockBytes())), i)
		}
		p.CopyBlock(o, 1, 3)
		p.ZeroBlock(o, 2)
		for i := range blocks {
			blocks[i] = make([]byte, p.BlockBytes())
			p.SaveBlock(o, i, blocks[i])
		}
	})
	for i, want := range []byte{1, 2, 0, 2} {
		if !bytes.Equal(blocks[i], bytes.Repeat([]byte{want}, len(blocks[i]))) {
			t.Errorf("block %d starts with %d, want all %d", i, blocks[i][0], want)
		}
	}
}

// TestCursors sets every slot many times in one program: the staging memory is used in turn.
func TestCursors(t *testing.T) {
	dev, c := open(t), smallConfig()
	p, err := ssm.NewPool(dev, c)
	if err != nil {
		t.Fatal(err)
	}
	at := func(slot, round int) kernels.Cursor {
		n := int32(1000*slot + 10*round)
		return kernels.Cursor{Origin: n, H: n + 1, Src: n + 2, Dst: n + 3}
	}
	got := make([]byte, c.Slots*ssm.CursorBytes)
	run(t, dev, func(o kernels.Ops) {
		for round := range 9 {
			for slot := range c.Slots {
				p.SetCursor(o, slot, at(slot, round))
			}
		}
		for slot := range c.Slots {
			p.ReadCursor(o, slot, got[slot*ssm.CursorBytes:])
		}
	})
	for slot := range c.Slots {
		if g := ssm.CursorOf(got[slot*ssm.CursorBytes:]); g != at(slot, 8) {
			t.Errorf("slot %d: %+v", slot, g)
		}
	}
}

// TestBrokenInvariants are faults of the program, not silent writes elsewhere.
func TestBrokenInvariants(t *testing.T) {
	dev, c := open(t), smallConfig()
	p, err := ssm.NewPool(dev, c)
	if err != nil {
		t.Fatal(err)
	}
	ok := kernels.Cursor{Origin: 2, H: 4}
	tail := make([]byte, p.TailSize(ok))
	for name, f := range map[string]func(kernels.Ops){
		"block":      func(o kernels.Ops) { p.ZeroBlock(o, c.Blocks) },
		"block -1":   func(o kernels.Ops) { p.ZeroBlock(o, -1) },
		"slot":       func(o kernels.Ops) { p.SetCursor(o, c.Slots, ok) },
		"tail slot":  func(o kernels.Ops) { p.SaveTail(o, c.Slots, ok, tail) },
		"tail bytes": func(o kernels.Ops) { p.SaveTail(o, 1, ok, tail[1:]) },
		"tail h":     func(o kernels.Ops) { p.LoadTail(o, 1, kernels.Cursor{H: 5}, tail) },
	} {
		dev.Submit(kernels.ProgramFunc(f))
		if err := dev.Wait(dev.Mark()); err == nil {
			t.Errorf("%s: no fault", name)
		}
	}
}

// TestTailSizes holds the bytes against the contract: H records and the last taps-1 raw rows of every layer.
func TestTailSizes(t *testing.T) {
	p, err := ssm.NewPool(open(t), smallConfig())
	if err != nil {
		t.Fatal(err)
	}
	// Mamba-2, twice: x 6, B 5, dt 2; conv rows of 6+5+5. GDN: u 8, k 3, decay 2; conv rows of 3+3+8.
	record, raw := int64(4*(2*(6+5+2)+8+3+2)), func(mamba2, delta int64) int64 { return 4 * (2*16*mamba2 + 14*delta) }
	for _, x := range []struct {
		c    kernels.Cursor
		want int64
	}{
		{kernels.Cursor{}, 0},
		{kernels.Cursor{H: 1}, record + raw(1, 1)},
		{kernels.Cursor{Origin: 2}, raw(2, 2)},
		{kernels.Cursor{Origin: 100, H: 3}, 3*record + raw(3, 2)},
		{kernels.Cursor{Origin: 100, H: 4}, p.TailBytes()},
	} {
		if got := p.TailSize(x.c); got != x.want {
			t.Errorf("tail of %+v: %d bytes, want %d", x.c, got, x.want)
		}
	}
	if want := 4*record + raw(3, 2); p.TailBytes() != want {
		t.Errorf("longest tail %d, want %d", p.TailBytes(), want)
	}
}

func TestOutOfMemory(t *testing.T) {
	c := smallConfig()
	c.Blocks = 1 << 30
	if _, err := ssm.NewPool(open(t), c); !errors.Is(err, kernels.ErrOutOfMemory) || !strings.Contains(err.Error(), "state blocks") {
		t.Errorf("error %v", err)
	}
}

// refusing is a device whose operations take float32 states only.
type refusing struct{ kernels.Device }

func (refusing) StateSupport(p kernels.Precision) error {
	if p != (kernels.Precision{}) {
		return kernels.ErrUnsupported
	}
	return nil
}

func TestPrecisionThatADeviceDoesNotTake(t *testing.T) {
	c := smallConfig()
	c.State.HP = kernels.StateF8
	_, err := ssm.NewPool(refusing{open(t)}, c)
	if !errors.Is(err, kernels.ErrUnsupported) || !strings.Contains(err.Error(), "--mamba-ssm-cache-dtype") {
		t.Errorf("error %v", err)
	}
}

// What a sequence takes, by format: a state of 2 x 64 x 128 numbers.
func TestBytesOfASequence(t *testing.T) {
	c := ssm.PoolConfig{Mamba2: kernels.Mamba2Dims{Heads: 2, HeadDim: 64, State: 128, Groups: 1, Taps: 4}, Mamba2Layers: 3}
	const n = 2 * 64 * 128
	for q, want := range map[kernels.Precision]int64{
		{}:                     4 * n,
		{HP: kernels.StateF16}: 2 * n,
		{HP: kernels.StateF8}:  n + n/32,
		{HP: kernels.StateF16, LP: kernels.StateNVFP4}: 2*n + n/2 + n/16 + 256, // a scale a head, aligned
	} {
		c.State = q
		if got := c.BlockBytes(); got != 3*want || c.ScratchBytes() != 3*4*n {
			t.Errorf("%v: %d bytes and %d of scratch, want %d", q, got, c.ScratchBytes(), 3*want)
		}
	}
}
