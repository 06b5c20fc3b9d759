package attention

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"reprise/kernels"
	"reprise/kernels/ref"
	"reprise/layers"
	"reprise/model"
)

func poolConfig() PoolConfig {
	return PoolConfig{Layers: 3, MTPLayers: 1, KVHeads: 2, HeadDim: 8, DType: kernels.F8E4M3, PageTokens: 4, Pages: 5, Slots: 3, MaxLen: 10}
}

func run(t *testing.T, d kernels.Device, f func(kernels.Ops)) {
	t.Helper()
	d.Submit(kernels.ProgramFunc(f))
	if err := d.Wait(d.Mark()); err != nil {
		t.Fatal(err)
	}
}

func TestPoolLayout(t *testing.T) {
	c, d := poolConfig(), ref.New()
	p, err := NewPool(d, c)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Layers()) != 3 || len(p.MTPLayers()) != 1 || p.TableStride() != 3 || p.Table().Size != 3*3*4 {
		t.Fatalf("%d layers, %d MTP layers, table %d x %d bytes", len(p.Layers()), len(p.MTPLayers()), p.TableStride(), p.Table().Size)
	}
	if used := 16<<30 - d.MemoryFree(); used != c.Bytes() {
		t.Errorf("%d bytes allocated, %d planned", used, c.Bytes())
	}
	// Mark every page of every layer, then see that no mark was overwritten.
	mark := func(layer, page int) []byte {
		return bytes.Repeat([]byte{byte(1 + layer*16 + page)}, int(p.layers[layer].PageBytes()))
	}
	at := func(layer, page int) kernels.Buffer {
		kv := p.layers[layer]
		return kv.Pages.Slice(int64(page)*kv.PageStride, kv.PageBytes())
	}
	run(t, d, func(o kernels.Ops) {
		for layer := range p.layers {
			for page := range c.Pages {
				o.Upload(at(layer, page), mark(layer, page))
			}
		}
	})
	expect := func(layer, page, want int) {
		t.Helper()
		got := make([]byte, len(mark(layer, want)))
		run(t, d, func(o kernels.Ops) { o.Download(got, at(layer, page)) })
		if !bytes.Equal(got, mark(layer, want)) {
			t.Errorf("layer %d page %d: holds %d", layer, page, got[0])
		}
	}
	for layer := range p.layers {
		for page := range c.Pages {
			expect(layer, page, page)
		}
	}
	saved := make([]byte, c.PageBytes())
	run(t, d, func(o kernels.Ops) {
		p.SavePage(o, 2, saved)
		p.CopyPage(o, 3, 2)
		p.LoadPage(o, saved, 4)
	})
	for layer := range p.layers {
		for page, want := range []int{0, 1, 3, 3, 2} {
			expect(layer, page, want)
		}
	}
}

func TestPoolRefusals(t *testing.T) {
	for name, change := range map[string]func(*PoolConfig){
		"pages": func(c *PoolConfig) { c.Pages = 1 }, "slots": func(c *PoolConfig) { c.Slots = 1 }, "page": func(c *PoolConfig) { c.PageTokens = 0 },
		"length": func(c *PoolConfig) { c.MaxLen = 0 }, "heads": func(c *PoolConfig) { c.KVHeads = 0 }, "dtype": func(c *PoolConfig) { c.DType = kernels.F16 },
		"layers": func(c *PoolConfig) { c.Layers = -1 }, "memory": func(c *PoolConfig) { c.Pages = 1 << 40 },
		"table": func(c *PoolConfig) { c.Slots, c.MaxLen, c.PageTokens = 1<<13, 1<<18, 1 },
	} {
		c := poolConfig()
		change(&c)
		if _, err := NewPool(ref.New(), c); err == nil || !strings.HasPrefix(err.Error(), "attention pool: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	p, err := NewPool(ref.New(), PoolConfig{DType: kernels.F32, PageTokens: 4, Pages: 2, Slots: 2, MaxLen: 8})
	if err != nil || len(p.Layers()) != 0 {
		t.Errorf("a model without attention: %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("the null page may be copied")
		}
	}()
	p.CopyPage(layers.Discard{}, 0, 1)
}

func TestInvFreq(t *testing.T) {
	plain := Rope{Rotary: 64, Theta: 1e7}.InvFreq()
	for i, f := range plain {
		if want := math.Pow(1e7, -float64(i)/32); math.Abs(float64(f)/want-1) > 1e-6 {
			t.Errorf("frequency %d is %g, want %g", i, f, want)
		}
	}
	// Values of another implementation of the published formulas.
	cases := []struct {
		rope  Rope
		scale float64
		want  map[int]float64
	}{
		{Rope{64, 1e7, &Yarn{Factor: 4, OriginalMaxLen: 262144, BetaFast: 32, BetaSlow: 1}}, 1.138629436111989, map[int]float64{
			0: 1, 1: 0.6042963902381328, 10: 0.006493816315762114, 14: 0.0008659643233600654, 16: 0.00025693505988868084,
			18: 7.217387404309113e-05, 20: 1.8449222025000475e-05, 22: 3.8498163151487305e-06, 24: 1.4058533129758728e-06, 31: 4.137042749857954e-08,
		}},
		{Rope{16, 1e4, &Yarn{Factor: 2.5, OriginalMaxLen: 1024, BetaFast: 16, BetaSlow: 2, Exact: true}}, 1.0916290731874154, map[int]float64{
			0: 1, 1: 0.31622776601683794, 2: 0.1, 3: 0.021285997561753835, 4: 0.004, 7: 0.00012649110640673515,
		}},
	}
	for _, c := range cases {
		got := c.rope.InvFreq()
		for i, want := range c.want {
			if math.Abs(float64(got[i])/want-1) > 1e-6 {
				t.Errorf("%+v: frequency %d is %g, want %g", *c.rope.Yarn, i, got[i], want)
			}
		}
		if math.Abs(c.rope.scale()-c.scale) > 1e-12 {
			t.Errorf("scale %g, want %g", c.rope.scale(), c.scale)
		}
	}
	given := Rope{16, 1e4, &Yarn{Factor: 4, AttentionFactor: 1.5}}
	if given.scale() != 1.5 || (Rope{16, 1e4, &Yarn{Factor: 1}}).scale() != 1 {
		t.Error("attention factor")
	}
}

// checkpoint is the tensors of one attention layer, random, with scales of the cache if they are not 0.
type checkpoint map[string]kernels.HostTensor

func newCheckpoint(d Dims, kScale, vScale float32) checkpoint {
	rng, c := rand.New(rand.NewPCG(7, 8)), checkpoint{}
	perHead := d.HeadDim
	if d.Gated {
		perHead *= 2
	}
	put := func(name string, n int, shape ...int) {
		var data []byte
		for range n {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(rng.NormFloat64()/2)))
		}
		c[name] = kernels.HostTensor{Name: name, DType: kernels.F32, Shape: shape, Data: data}
	}
	for i, rows := range []int{d.QHeads * perHead, d.KVHeads * d.HeadDim, d.KVHeads * d.HeadDim} {
		put("qkv"[i:i+1]+"_proj.weight", rows*d.Hidden, rows, d.Hidden)
	}
	put("o_proj.weight", d.Hidden*d.QHeads*d.HeadDim, d.Hidden, d.QHeads*d.HeadDim)
	put("q_norm.weight", d.HeadDim, d.HeadDim)
	put("k_norm.weight", d.HeadDim, d.HeadDim)
	for name, s := range map[string]float32{"k_proj.k_scale": kScale, "v_proj.v_scale": vScale} {
		if s != 0 {
			c[name] = kernels.HostTensor{Name: name, DType: kernels.F32, Data: binary.LittleEndian.AppendUint32(nil, math.Float32bits(s))}
		}
	}
	return c
}

func (c checkpoint) Has(name string) bool { _, ok := c[name]; return ok }

func (c checkpoint) Get(name string, shape ...int) (kernels.HostTensor, error) {
	if t, ok := c[name]; ok && slices.Equal(t.Shape, shape) {
		return t, nil
	}
	return kernels.HostTensor{}, fmt.Errorf("tensor %s %v is missing", name, shape)
}

func testDims() Dims {
	return Dims{Hidden: 6, QHeads: 4, KVHeads: 2, HeadDim: 8, Gated: true, QKNorm: true, Eps: 1e-6, Rope: &Rope{Rotary: 4, Theta: 100}}
}

// sixTokens is the layer's output for a prompt of six tokens, and its cache.
func sixTokens(t *testing.T, d Dims, c checkpoint, cache kernels.DType) ([]float32, *Pool, *ref.Device) {
	t.Helper()
	dev := ref.New()
	l := layers.NewLoader(dev, c)
	m := Load(l, "", d)
	if err := l.Err(); err != nil {
		t.Fatal(err)
	}
	pool, err := NewPool(dev, PoolConfig{Layers: 1, KVHeads: d.KVHeads, HeadDim: d.HeadDim, DType: cache, PageTokens: 4, Pages: 3, Slots: 2, MaxLen: 8})
	if err != nil {
		t.Fatal(err)
	}
	const n = 6
	ints := func(v ...int32) kernels.Buffer {
		b, err := dev.Alloc(int64(4 * len(v)))
		if err != nil {
			t.Fatal(err)
		}
		data, _ := binary.Append(nil, binary.LittleEndian, v)
		run(t, dev, func(o kernels.Ops) { o.Upload(b, data) })
		return b
	}
	x := make([]int32, n*d.Hidden)
	for i := range x {
		x[i] = int32(math.Float32bits(float32(math.Sin(float64(i)))))
	}
	zero := ints(0, 0)
	b := &model.Batch{
		Tokens: n, Pos: ints(0, 1, 2, 3, 4, 5), Cursors: kernels.Cursors{Origin: zero, H: zero, Src: zero, Dst: zero},
		Prefill: kernels.Rows{Count: 1, Tokens: n, MaxLen: n, Slot: ints(1), N: ints(n), Start: ints(0)}, KV: pool.Layers(),
	}
	in, out := kernels.NewMat(ints(x...), kernels.F32, n, d.Hidden), kernels.NewMat(ints(make([]int32, n*d.Hidden)...), kernels.F32, n, d.Hidden)
	s := layers.NewScratch(kernels.F32)
	m.Add(layers.Discard{}, s, b, b.KV[0], layers.Ready(in), out)
	if err := s.Alloc(dev); err != nil {
		t.Fatal(err)
	}
	data, table := make([]byte, out.Buf.Size), ints(0, 0, 2, 1)
	run(t, dev, func(o kernels.Ops) {
		o.Copy(pool.Table(), table)
		m.Add(o, s, b, b.KV[0], layers.Ready(in), out)
		o.Download(data, out.Buf)
	})
	y := make([]float32, n*d.Hidden)
	for i := range y {
		y[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return y, pool, dev
}

// relative is the largest difference over the largest value.
func relative(a, b []float32) float64 {
	var diff, size float64
	for i := range a {
		diff, size = max(diff, math.Abs(float64(a[i]-b[i]))), max(size, math.Abs(float64(b[i])))
	}
	return diff / size
}

func TestCachesOfFewerBits(t *testing.T) {
	d := testDims()
	exact, _, _ := sixTokens(t, d, newCheckpoint(d, 0, 0), kernels.F32)
	for dtype, limit := range map[kernels.DType]float64{kernels.BF16: 0.01, kernels.F8E4M3: 0.1} {
		got, _, _ := sixTokens(t, d, newCheckpoint(d, 0, 0), dtype)
		if r := relative(got, exact); r > limit || r == 0 {
			t.Errorf("%v: differs by %g", dtype, r)
		}
	}
}

// A checkpoint's scales are what the pages' tails hold; without them each token and head has a scale of its own.
func TestScalesOfTheCheckpoint(t *testing.T) {
	d := testDims()
	exact, _, _ := sixTokens(t, d, newCheckpoint(d, 0, 0), kernels.F32)
	for _, scale := range []float32{0, 0.5} {
		got, pool, dev := sixTokens(t, d, newCheckpoint(d, scale, scale/2), kernels.F8E4M3)
		if r := relative(got, exact); r > 0.15 {
			t.Errorf("scale %g: differs by %g", scale, r)
		}
		kv := pool.Layers()[0]
		tail := make([]byte, 2*d.KVHeads*4*4)
		run(t, dev, func(o kernels.Ops) {
			o.Download(tail, kv.Pages.Slice(2*kv.PageStride+kv.ScaleOffset(), int64(len(tail))))
		})
		seen := map[float32]bool{}
		for i := range len(tail) / 4 {
			seen[math.Float32frombits(binary.LittleEndian.Uint32(tail[4*i:]))] = true
		}
		if constant := len(seen) == 2 && seen[0.5] && seen[0.25]; constant != (scale != 0) {
			t.Errorf("scale %g: page holds %v", scale, seen)
		}
	}
	l := layers.NewLoader(ref.New(), newCheckpoint(d, -1, 1))
	if Load(l, "", d); l.Err() == nil || !strings.Contains(l.Err().Error(), "k_scale") {
		t.Errorf("a negative scale: %v", l.Err())
	}
}

// YaRN's factor sits in the norms: with a factor of 1 on frequencies that are not stretched, only the logits' share of
// the rotated dims grows.
func TestYarnScalesRotatedDimsOnly(t *testing.T) {
	d := testDims()
	d.Rope.Yarn = &Yarn{Factor: 1, OriginalMaxLen: 1024, BetaFast: 32, BetaSlow: 1, AttentionFactor: 2}
	if got := d.rotaryScale(); !slices.Equal(got, []float64{2, 2, 2, 2, 1, 1, 1, 1}) {
		t.Errorf("factors %v", got)
	}
	scaled, _, _ := sixTokens(t, d, newCheckpoint(d, 0, 0), kernels.F32)

	// The same by doubling 1+w of the rotated dims in the checkpoint.
	c := newCheckpoint(d, 0, 0)
	for _, name := range []string{"q_norm.weight", "k_norm.weight"} {
		data := slices.Clone(c[name].Data)
		for i := range 4 {
			w := math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
			binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(2*(1+w)-1))
		}
		h := c[name]
		h.Data = data
		c[name] = h
	}
	d.Rope.Yarn = nil
	want, _, _ := sixTokens(t, d, c, kernels.F32)
	plain, _, _ := sixTokens(t, d, newCheckpoint(d, 0, 0), kernels.F32)
	if r := relative(scaled, want); r > 1e-5 {
		t.Errorf("differs by %g", r)
	}
	if r := relative(scaled, plain); r < 1e-3 {
		t.Errorf("changes nothing: %g", r)
	}
}
