package model_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"reprise/kernels"
	"reprise/kernels/ref"
	"reprise/layers"
	"reprise/model"
	"reprise/weights"
)

// named is tensors by name, and notes which are read.
type named struct {
	tensors map[string]kernels.HostTensor
	read    map[string]bool
}

func (n named) Has(name string) bool { _, ok := n.tensors[name]; return ok }

func (n named) Get(name string, shape ...int) (kernels.HostTensor, error) {
	t, ok := n.tensors[name]
	if !ok {
		return t, fmt.Errorf("tensor %s is missing", name)
	}
	if !slices.Equal(t.Shape, shape) {
		return t, fmt.Errorf("tensor %s: shape %v, want %v", name, t.Shape, shape)
	}
	n.read[name] = true
	return t, nil
}

// reform is a golden's checkpoint with other names; rename returns "" to leave a tensor out.
func reform(t *testing.T, g *golden, rename func(string) string) named {
	out := named{map[string]kernels.HostTensor{}, map[string]bool{}}
	for _, name := range g.source.Names() {
		if to := rename(name); to != "" {
			out.tensors[to] = must(g.source.Raw(name))(t)
		}
	}
	return out
}

// stack joins the tensors of experts 0, 1, ... that name gives for each expert.
func (n named) stack(to string, name func(int) string) {
	var out kernels.HostTensor
	for e := 0; n.Has(name(e)); e++ {
		t := n.tensors[name(e)]
		out = kernels.HostTensor{Name: to, DType: t.DType, Shape: append([]int{e + 1}, t.Shape...), Data: append(out.Data, t.Data...)}
		delete(n.tensors, name(e))
	}
	n.tensors[to] = out
}

// unstack cuts rows [from, to) of each expert of a stacked tensor into tensors of their own.
func (n named) unstack(name string, from, to int, single func(int) string) {
	t := n.tensors[name]
	row := t.Shape[2] * t.DType.Size()
	for e := range t.Shape[0] {
		n.tensors[single(e)] = kernels.HostTensor{
			Name: single(e), DType: t.DType, Shape: []int{to - from, t.Shape[2]}, Data: t.Data[(e*t.Shape[1]+from)*row : (e*t.Shape[1]+to)*row],
		}
	}
}

// firstLogits runs one prompt.
func firstLogits(t *testing.T, g *golden, source model.Tensors) ([][]float32, *rig) {
	t.Helper()
	dev := ref.New()
	r := newRigFrom(t, dev, g.config, source, kernels.Window{L: 4, T: 1})
	r.open(1)
	w := &row{slot: 1, tokens: g.cases[1].Prompt, prefill: true}
	r.forward(0, w)
	return w.logits, r
}

func TestOtherFormsOfACheckpoint(t *testing.T) {
	swap := func(pairs ...string) func(string) string { return strings.NewReplacer(pairs...).Replace }
	cases := []struct {
		name, golden string
		rename       func(string) string
		change       func(*golden, named)
		noMTP        bool
	}{
		{"saved by transformers", "nemotron-latent-mtp", swap("backbone.", "model."), stackNemotron, false},
		{"inside a multimodal model", "nemotron-latent-mtp", func(n string) string { return "language_model." + n }, nil, false},
		{"saved without MTP", "nemotron-latent-mtp", withoutMTP, nil, true},
		{"text only", "qwen35-moe-mtp", swap("model.language_model.", "model."), nil, false},
		{"another wrapper", "qwen35-moe-mtp", swap("model.language_model.", "language_model.model.", "lm_head.", "language_model.lm_head."), nil, false},
		{"single experts", "qwen35-moe-mtp", func(n string) string { return n }, unstackQwen, false},
		{"saved without MTP, single experts", "qwen35-moe-mtp", withoutMTP, unstackQwen, true},
		{"tied, with vision", "qwen35-dense-tied-mtp", func(n string) string { return n }, func(_ *golden, n named) {
			n.tensors["model.visual.patch_embed.proj.weight"] = kernels.HostTensor{}
		}, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			g := openGolden(t, c.golden)
			want, _ := firstLogits(t, g, g.source)
			other := reform(t, g, c.rename)
			if c.change != nil {
				c.change(g, other)
			}
			got, r := firstLogits(t, g, other)
			for i := range want {
				if d := maxDiff(got[i], want[i]); d != 0 {
					t.Fatalf("position %d: logits differ by %g", i, d)
				}
			}
			if has := r.model.MTP() != nil; has == c.noMTP {
				t.Errorf("has an MTP head: %v", has)
			}
			for name := range other.tensors {
				if !other.read[name] && !strings.Contains(name, ".visual.") {
					t.Errorf("tensor %s was not read", name)
				}
			}
		})
	}
}

func withoutMTP(name string) string {
	if strings.HasPrefix(name, "mtp.") {
		return ""
	}
	return name
}

func stackNemotron(_ *golden, n named) {
	for _, name := range names(n) {
		if base, rest, ok := strings.Cut(name, "experts.0."); ok && !strings.HasSuffix(base, "shared_") {
			n.stack(base+"experts."+strings.TrimSuffix(rest, ".weight"), func(e int) string { return fmt.Sprintf("%sexperts.%d.%s", base, e, rest) })
		}
	}
}

func unstackQwen(_ *golden, n named) {
	for _, name := range names(n) {
		t := n.tensors[name]
		single := func(base, proj string) func(int) string {
			return func(e int) string { return fmt.Sprintf("%s%d.%s_proj.weight", base, e, proj) }
		}
		if base, ok := strings.CutSuffix(name, "gate_up_proj"); ok {
			n.unstack(name, 0, t.Shape[1]/2, single(base, "gate"))
			n.unstack(name, t.Shape[1]/2, t.Shape[1], single(base, "up"))
			delete(n.tensors, name)
		} else if base, ok := strings.CutSuffix(name, "experts.down_proj"); ok {
			n.unstack(name, 0, t.Shape[1], single(base+"experts.", "down"))
			delete(n.tensors, name)
		}
	}
}

func names(n named) []string {
	var out []string
	for name := range n.tensors {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Want and Load must agree: what is listed is what the released form has and what is read, with its shape.
func TestWantIsWhatIsRead(t *testing.T) {
	for _, name := range goldenNames {
		g := openGolden(t, name)
		source := reform(t, g, func(n string) string { return n })
		dev := ref.New()
		free := dev.MemoryFree()
		m := must(g.config.Load(dev, source, 8))(t)
		planned := g.config.(interface {
			ActivationBytes(kernels.DType, int) int64
		}).ActivationBytes(kernels.F32, 8)
		if used := free - dev.MemoryFree(); used < planned || used > planned+m.WeightBytes() {
			t.Errorf("%s: %d bytes allocated, %d planned for activations beside weights", name, used, planned)
		}
		want, numbers := g.config.Want(), 0
		for _, s := range want {
			if h, ok := source.tensors[s.Name]; !ok || !slices.Equal(h.Shape, s.Shape) || h.DType != s.DType {
				t.Errorf("%s: wants %s %v %v, there is %v %v", name, s.Name, s.DType, s.Shape, h.DType, h.Shape)
			}
			numbers += kernels.HostTensor{Shape: s.Shape}.Elements()
		}
		if len(source.read) != len(want) || len(source.tensors) != len(want) {
			t.Errorf("%s: %d tensors wanted, %d read, %d there", name, len(want), len(source.read), len(source.tensors))
		}
		if b := m.WeightBytes(); b < int64(2*numbers) || b > int64(2*numbers)*11/10 {
			t.Errorf("%s: %d bytes of weights for %d numbers", name, b, numbers)
		}
	}
}

func TestDummyWeightsGiveSaneLogits(t *testing.T) {
	for _, name := range []string{"nemotron-dense", "nemotron-latent-mtp", "qwen35-dense-tied-mtp", "qwen35-moe-mtp"} {
		g := openGolden(t, name)
		dummy := must(weights.NewDummy(g.config.Want(), 1))(t)
		logits, r := firstLogits(t, g, dummy)
		if r.model.MTP() == nil && g.config.Spec().MTP != nil {
			t.Errorf("%s: no MTP head", name)
		}
		for _, l := range logits {
			var squares float64
			for _, v := range l {
				squares += float64(v) * float64(v)
			}
			if rms := math.Sqrt(squares / float64(len(l))); !(rms > 0.1 && rms < 10) {
				t.Errorf("%s: logits of size %g", name, rms)
			}
		}
		dummy.Close()
	}
}

func TestMissingAndMisshapenTensorsAreNamed(t *testing.T) {
	for golden, name := range map[string]string{
		"nemotron-moe": "backbone.layers.1.mixer.experts.3.down_proj.weight", "nemotron-dense": "lm_head.weight",
		"qwen35-dense": "model.language_model.layers.3.self_attn.k_norm.weight", "qwen35-moe-mtp": "mtp.layers.0.mlp.experts.down_proj",
	} {
		g := openGolden(t, golden)
		missing := reform(t, g, func(n string) string {
			if n == name {
				return ""
			}
			return n
		})
		misshapen := reform(t, g, func(n string) string { return n })
		h := misshapen.tensors[name]
		h.Shape = append([]int{1}, h.Shape...)
		misshapen.tensors[name] = h
		for _, source := range []named{missing, misshapen} {
			if _, err := g.config.Load(ref.New(), source, 8); err == nil || !strings.Contains(err.Error(), strings.TrimSuffix(name, "_proj")) {
				t.Errorf("%s without a good %s: %v", golden, name, err)
			}
		}
	}
}

func TestForwardAllocatesNothing(t *testing.T) {
	for _, name := range goldenNames[:6] {
		g := openGolden(t, name)
		r := newRig(t, ref.New(), g, kernels.Window{L: 4, T: 2})
		b, _ := r.batch(2, []*row{{slot: 1, tokens: []int32{1, 2}}, {slot: 2, tokens: []int32{3, 4, 5}, prefill: true}})
		n := testing.AllocsPerRun(10, func() {
			h := r.model.Forward(layers.Discard{}, b)
			r.model.Logits(layers.Discard{}, h, r.logits.RowRange(0, b.Tokens))
			if m := r.model.MTP(); m != nil {
				m.Forward(layers.Discard{}, b, h, r.ids, kernels.Buffer{})
			}
		})
		if n != 0 {
			t.Errorf("%s: %v allocations a step", name, n)
		}
	}
}

// packing is a device that notes in which order it is asked for weights.
type packing struct {
	kernels.Device
	packs, packed, late int
}

func (p *packing) Pack(s kernels.WeightSpec) (kernels.Weight, error) {
	p.packs++
	p.late += p.packed
	return p.Device.Pack(s)
}

func (p *packing) Packed() error {
	p.packed++
	return p.Device.Packed()
}

// TestLoadEndsPacking: a device hears once, behind the last weight, that it may give back what packing took.
func TestLoadEndsPacking(t *testing.T) {
	for _, name := range goldenNames[:6] {
		g, p := openGolden(t, name), &packing{Device: ref.New()}
		if _, err := g.config.Load(p, g.source, 8); err != nil {
			t.Fatal(err)
		}
		if p.packs == 0 || p.packed != 1 || p.late != 0 {
			t.Errorf("%s: %d weights, %d of them behind the %d calls of Packed", name, p.packs, p.late, p.packed)
		}
	}
}
