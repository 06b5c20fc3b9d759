package engine

import (
	"strings"
	"testing"

	"reprise/internal/golden"
	"reprise/kernels"
	"reprise/model"
	"reprise/spec"
)

// TestSpeculationInThePlan: at equal L drafts add T-1 records and convolution rows a slot and layer, and with the model's
// head its weights and its keys and values; nothing else, and memory short of sequences counts the same.
func TestSpeculationInThePlan(t *testing.T) {
	for _, name := range tinyDrafting() {
		for _, act := range []kernels.DType{kernels.F32, kernels.BF16} {
			t.Run(name+" "+act.String(), func(t *testing.T) { testSpeculationInThePlan(t, name, act) })
		}
	}
}

func testSpeculationInThePlan(t *testing.T, name string, act kernels.DType) {
	g := golden.Open(t, name)
	config, err := ParseConfig(g.Folder)
	if err != nil {
		t.Fatal(err)
	}
	plan := func(method spec.Method, drafts int, free int64) *Plan {
		o := Options{MaxLen: 256, MaxSeqs: 200, MaxTokens: 64, PageTokens: 16, KVBlocks: 400, Window: 32, Drafts: drafts, DraftMethod: method, MinMatch: 2, MaxMatch: 3, MemoryFraction: 1}
		p, err := makePlan(config, o, act, free)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	const plenty, drafts = 64 << 30, 3
	shape, plain := config.Spec(), plan("", 0, plenty)
	for _, method := range []spec.Method{spec.MTPHead, spec.NGram} {
		p := plan(method, drafts, plenty)
		s := p.Speculation
		if got, want := s.SlotBytes, slotGrowth(shape, act, drafts); max(got-want, want-got) >= 4*256*int64(shape.Mamba2Layers+shape.DeltaLayers) { // four arrays a layer, each padded to 256 bytes
			t.Errorf("%s %s: %d bytes more a slot, records and rows have %d", name, method, got, want)
		}
		head := int64(2 * shape.KVHeads * shape.HeadDim * shape.MTP.AttentionLayers * act.Size())
		if method == spec.NGram {
			head = 0
		}
		if s.HeadKV != head || (s.HeadWeights > 0) != (method == spec.MTPHead) {
			t.Errorf("%s %s: %d bytes a token, want %d; %d bytes of weights", name, method, s.HeadKV, head, s.HeadWeights)
		}
		for _, d := range []struct {
			what            string
			with, add, bare int64
		}{
			{"weights", p.Weights, s.HeadWeights, plain.Weights},
			{"rings", p.RingBytes, s.SlotBytes * int64(p.SSM.Slots), plain.RingBytes},
			{"blocks", p.StateBytes, 0, plain.StateBytes},
			{"pages", p.KVBytes, s.HeadKV * int64(p.KV.Pages*p.KV.PageTokens), plain.KVBytes},
		} {
			if d.with != d.bare+d.add {
				t.Errorf("%s %s: %s take %d, %d without drafts, %d printed as added", name, method, d.what, d.with, d.bare, d.add)
			}
		}
		if text := p.String(); !strings.Contains(text, "3 more records and convolution rows") {
			t.Errorf("the printed plan hides what drafts add:\n%s", text)
		}
	}
	checkConcurrency(t, name, plan)
}

// slotGrowth is what so many more records and convolution rows take in all layers: dt and log decays are float32, the rest
// as wide as activations.
func slotGrowth(s model.Spec, act kernels.DType, more int) int64 {
	out := 0
	if m := s.Mamba2; s.Mamba2Layers > 0 {
		out += s.Mamba2Layers * ((m.Inner()+m.Groups*m.State+m.Conv())*act.Size() + 4*m.Heads)
	}
	if d := s.Delta; s.DeltaLayers > 0 {
		out += s.DeltaLayers * ((d.Values()+d.Keys()+d.Conv())*act.Size() + 4*d.ValueHeads)
	}
	return int64(more * out)
}

// checkConcurrency: with too little memory, the sequences that are left are those whose state fits half of what the rest
// leaves.
func checkConcurrency(t *testing.T, name string, plan func(spec.Method, int, int64) *Plan) {
	for _, drafts := range []int{0, 3} {
		all := plan(spec.MTPHead, drafts, 64<<30)
		per := all.SSM.BlockBytes() + all.SSM.SlotBytes()
		free := all.Weights + all.Activations + all.SamplerBytes + all.DraftBytes + 2*50*per
		if p := plan(spec.MTPHead, drafts, free); p.MaxSeqs != 50 || int64(p.SSM.Slots-1) != 50 {
			t.Errorf("%s, %d drafts: memory for 50 sequences of %d bytes runs %d", name, drafts, per, p.MaxSeqs)
		}
	}
}
