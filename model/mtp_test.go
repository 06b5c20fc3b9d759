package model_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"reprise/kernels"
)

// pairs are what the MTP head reads from position at on: hidden[i] of the model and the token after it.
type pairs struct {
	at     int
	hidden [][]float32
	next   []int32
}

// mtp runs the head over the pairs as a prefill row, or as a step row of as many tokens, behind the at pairs that
// slot's cache holds already. It returns the head's hidden rows and the token that the last one predicts.
func (r *rig) mtp(slot int, p pairs, prefill bool) ([][]float32, int32) {
	r.t.Helper()
	n := len(p.next)
	w := &row{slot: slot, at: p.at, tokens: p.next, prefill: prefill}
	t := 0
	if !prefill {
		t = n
	}
	b, _ := r.batch(t, []*row{w})
	in, next := r.hidden.RowRange(0, n), r.ints(p.next...)
	hidden, logits := make([]byte, n*r.spec.Hidden*4), make([]byte, r.spec.Vocab*4)
	r.run(func(o kernels.Ops) {
		r.states.SetCursor(o, slot, kernels.Cursor{Origin: int32(p.at)})
		o.Upload(in.Buf, bytesOfRows(p.hidden))
		h := r.model.MTP().Forward(o, b, in, next, kernels.Buffer{})
		last := r.logits.RowRange(0, 1)
		r.model.Logits(o, h.RowRange(n-1, 1), last)
		o.Download(hidden, h.Buf)
		o.Download(logits, last.Buf)
	})
	return cut(hidden, 0, n, r.spec.Hidden), argmax(floats(logits))
}

func bytesOfRows(rows [][]float32) []byte {
	var b []byte
	for _, row := range rows {
		for _, v := range row {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
	}
	return b
}

// draftWhole drafts by running the head over all pairs again for each token.
func draftWhole(r *rig, p pairs, depth int) []int32 {
	var out []int32
	for range depth {
		hidden, id := r.mtp(2, p, true)
		out = append(out, id)
		p.hidden = append(slices.Clip(p.hidden), hidden[len(hidden)-1])
		p.next = append(slices.Clip(p.next), id)
	}
	return out
}

// draftOn drafts as an engine does: the pairs up to cached are in slot 3's cache, the rest are a step row, and each
// further draft is a step row of one token.
func draftOn(r *rig, p pairs, cached, depth int) []int32 {
	p = pairs{cached, p.hidden[cached:], p.next[cached:]}
	var out []int32
	for range depth {
		hidden, id := r.mtp(3, p, false)
		out = append(out, id)
		p = pairs{p.at + len(p.next), hidden[len(hidden)-1:], []int32{id}}
	}
	return out
}

// TestOnlySomeRows: the head's answer for some of its rows has the bits that it has among all; the cache takes all pairs.
func TestOnlySomeRows(t *testing.T) {
	for _, name := range goldenNames {
		t.Run(name, func(t *testing.T) {
			g := openGolden(t, name)
			if g.config.Spec().MTP == nil {
				t.Skip("no MTP head")
			}
			dev := devices["cpu"](t)
			defer dev.Close()
			r := newRig(t, dev, g, kernels.Window{L: 4, T: 4})
			for slot := 1; slot <= 3; slot++ {
				r.open(slot)
			}
			prompt := g.cases[2].Prompt
			n := len(prompt) - 1
			main := &row{slot: 1, tokens: prompt, prefill: true}
			r.forward(0, main)
			p := pairs{0, main.hidden[:n], prompt[1:]}
			want, _ := r.mtp(2, p, true)
			only := []int32{int32(n - 1), -1, 0, int32(n / 2), int32(n - 1)}
			got := r.mtpOnly(3, p, only)
			for i, from := range only {
				if from >= 0 && !slices.Equal(got[i], want[from]) {
					t.Errorf("row %d of %d differs alone from among all", from, n)
				}
			}
			again := pairs{n, want[n-1:], []int32{prompt[0]}} // reads the cache
			a, _ := r.mtp(2, again, false)
			b, _ := r.mtp(3, again, false)
			if !slices.Equal(a[0], b[0]) {
				t.Error("behind the pairs the caches differ")
			}
		})
	}
}

// mtpOnly is mtp over a prefill row, of which only some rows are answered.
func (r *rig) mtpOnly(slot int, p pairs, only []int32) [][]float32 {
	r.t.Helper()
	n := len(p.next)
	b, _ := r.batch(0, []*row{{slot: slot, at: p.at, tokens: p.next, prefill: true}})
	in, next, rows := r.hidden.RowRange(0, n), r.ints(p.next...), r.ints(only...)
	hidden := make([]byte, len(only)*r.spec.Hidden*4)
	r.run(func(o kernels.Ops) {
		r.states.SetCursor(o, slot, kernels.Cursor{Origin: int32(p.at)})
		o.Upload(in.Buf, bytesOfRows(p.hidden))
		o.Download(hidden, r.model.MTP().Forward(o, b, in, next, rows).Buf)
	})
	return cut(hidden, 0, len(only), r.spec.Hidden)
}

func TestDrafts(t *testing.T) {
	for device, open := range devices {
		for _, name := range goldenNames {
			t.Run(device+"/"+name, func(t *testing.T) {
				g := openGolden(t, name)
				if g.config.Spec().MTP == nil {
					t.Skip("no MTP head")
				}
				dev := open(t)
				defer dev.Close()
				r := newRig(t, dev, g, kernels.Window{L: 4, T: 4})
				cases := g.cases
				if device == "ref" {
					cases = cases[:3]
				}
				for _, c := range cases {
					testDrafts(t, r, c)
				}
			})
		}
	}
}

func testDrafts(t *testing.T, r *rig, c goldenCase) {
	ids := append(slices.Clip(c.Prompt), c.Greedy...)
	for slot := 1; slot <= 3; slot++ {
		r.open(slot)
	}
	main := &row{slot: 1, tokens: ids[:len(c.Prompt)+len(c.Drafts)-1], prefill: true}
	r.forward(0, main)
	cached := 0
	for i, want := range c.Drafts {
		n := len(c.Prompt) + i
		p := pairs{0, main.hidden[:n], ids[1 : n+1]}
		if i == 0 {
			if got := draftWhole(r, p, len(want)); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("prompt of %d: drafts %v, want %v", len(c.Prompt), got, want)
			}
			if cached = max(0, n-2); cached > 0 {
				r.mtp(3, pairs{0, p.hidden[:cached], p.next[:cached]}, true)
			}
		}
		if got := draftOn(r, p, cached, len(want)); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("prompt of %d, token %d: drafts %v, want %v", len(c.Prompt), i, got, want)
		}
		cached = n - i%2 // now and then a pair is run again over its provisional entry
	}
}
