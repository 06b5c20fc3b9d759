//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"testing"

	"reprise/kernels"
	"reprise/kernels/cpu"
)

// tile is the memory of a Sample over rows of a large vocabulary on one device.
type tile struct {
	kernels.Sample
	out, rank, topID []int32
	logProb          []float32
}

const tileTop = 20

// newTile uploads the same rows to a device; row i has slot 1+i.
func newTile(t *testing.T, dev kernels.Device, vocab int, logits []float32, params []kernels.SlotParams) *tile {
	t.Helper()
	rows := len(logits) / vocab
	up := func(data []byte) kernels.Buffer {
		b, err := dev.Alloc(int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		dev.Submit(kernels.ProgramFunc(func(o kernels.Ops) { o.Upload(b, data) }))
		if err := dev.Wait(dev.Mark()); err != nil {
			t.Fatal(err)
		}
		return b
	}
	ints := func(f func(i int) int32) kernels.Buffer {
		v := make([]int32, rows+1)
		for i := range v {
			v[i] = f(i)
		}
		return up(bytesOf(v))
	}
	zero := ints(func(int) int32 { return 0 })
	x := &tile{out: make([]int32, rows), rank: make([]int32, rows), topID: make([]int32, rows*tileTop), logProb: make([]float32, rows)}
	x.Sample = kernels.Sample{
		Logits: kernels.NewMat(up(bytesOf(logits)), kernels.F32, rows, vocab), Token: ints(func(i int) int32 { return int32(i) }),
		Slot: ints(func(i int) int32 { return int32(i + 1) }), Target: ints(func(int) int32 { return -1 }), Depth: zero, IDs: zero,
		Pos:    ints(func(i int) int32 { return int32(1000 + i) }),
		Slots:  kernels.Slots{Active: zero, Last: zero, Params: up(bytesOf(params)), Stops: zero},
		Tables: kernels.SlotTables{Vocab: vocab}, TopN: tileTop,
		Out: up(bytesOf(x.out)), Rank: up(bytesOf(x.rank)), TopID: up(bytesOf(x.topID)), LogProb: up(bytesOf(x.logProb)), TopProb: up(bytesOf(x.topID)),
	}
	return x
}

func (x *tile) run(t *testing.T, dev kernels.Device) {
	t.Helper()
	dev.Submit(kernels.ProgramFunc(func(o kernels.Ops) {
		o.Sample(x.Sample)
		o.Download(bytesOf(x.out), x.Out.Slice(0, int64(4*len(x.out))))
		o.Download(bytesOf(x.rank), x.Rank.Slice(0, int64(4*len(x.rank))))
		o.Download(bytesOf(x.topID), x.TopID.Slice(0, int64(4*len(x.topID))))
		o.Download(bytesOf(x.logProb), x.LogProb.Slice(0, int64(4*len(x.logProb))))
	}))
	if err := dev.Wait(dev.Mark()); err != nil {
		t.Fatal(err)
	}
}

// largeParams are requests as they come, one a slot; slot 0 is null.
func largeParams() []kernels.SlotParams {
	list := []kernels.SlotParams{
		{}, {}, {Temperature: 1, TopP: 1}, {Temperature: 1, TopP: 0.95}, {Temperature: 0.6, TopP: 0.95, TopK: 20}, {Temperature: 1, TopP: 1, TopK: 50},
		{Temperature: 0.7, TopP: 0.8, TopK: 20, MinP: 0.01}, {Temperature: 1.5, TopP: 0.999}, {Temperature: 1, TopP: 1, MinP: 0.05}, {Temperature: 2, TopP: 0.9, TopK: 5000},
	}
	for i := range list {
		list[i].Repetition, list[i].Seed = 1, uint64(i)*77
	}
	return list
}

// The CPU draws the same tokens from a large vocabulary: peaked, flat and full of ties.
func TestSampleLargeVocabulary(t *testing.T) {
	r := newRig(t, kernels.BF16)
	host, err := cpu.Open(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	for _, vocab := range []int{131072, 248320} {
		for kind, name := range []string{"peaked", "flat", "ties"} {
			logits := make([]float32, (len(largeParams())-1)*vocab)
			for i := range logits {
				v := 2 * r.rng.NormFloat64()
				switch {
				case kind == 0 && i%vocab < 30:
					v += 12
				case kind == 2:
					v = math.Round(v)
				}
				logits[i] = float32(v)
			}
			x, y := newTile(t, r.dev, vocab, logits, largeParams()), newTile(t, host, vocab, logits, largeParams())
			x.run(t, r.dev)
			y.run(t, host)
			for i := range x.out {
				if x.out[i] != y.out[i] || x.rank[i] != y.rank[i] || math.Abs(float64(x.logProb[i]-y.logProb[i])) > 1e-4 {
					t.Errorf("%s vocabulary %d row %d: token %d rank %d log probability %g, on the CPU %d, %d, %g", name, vocab, i, x.out[i], x.rank[i], x.logProb[i], y.out[i], y.rank[i], y.logProb[i])
				}
			}
			for i := range x.topID {
				if x.topID[i] != y.topID[i] {
					t.Errorf("%s vocabulary %d: top id %d of row %d: %d, on the CPU %d", name, vocab, i%tileTop, i/tileTop, x.topID[i], y.topID[i])
					break
				}
			}
		}
	}
}

// So it does for many rows, of which those that are greedy take another way: with ties, NaN and rows that are -Inf all over,
// at addresses that no vector may have.
func TestSampleManyRows(t *testing.T) {
	r := newRig(t, kernels.BF16)
	host, err := cpu.Open(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	const rows = 67
	for _, vocab := range []int{131075, 33, 248320} {
		params := make([]kernels.SlotParams, rows+1)
		logits := make([]float32, rows*vocab)
		for i := range rows {
			if params[i+1] = (kernels.SlotParams{TopP: 1, Repetition: 1}); i%4 == 3 {
				params[i+1] = largeParams()[1+i%9]
			}
			for j := range vocab {
				v := 2 * r.rng.NormFloat64()
				switch i % 5 {
				case 1:
					v = math.Round(v)
				case 2:
					v = math.Inf(-1)
				case 3:
					if j%7 == 2 && i%4 != 3 {
						v = math.NaN()
					}
				}
				logits[i*vocab+j] = float32(v)
			}
		}
		x, y := newTile(t, r.dev, vocab, logits, params), newTile(t, host, vocab, logits, params)
		for _, tile := range []*tile{x, y} {
			tile.TopN = 0
		}
		x.run(t, r.dev)
		y.run(t, host)
		for i := range x.out {
			if x.out[i] != y.out[i] {
				t.Errorf("vocabulary %d row %d: token %d, on the CPU %d", vocab, i, x.out[i], y.out[i])
			}
		}
	}
}

// Times of sampling; run alone.
func TestSampleTimes(t *testing.T) {
	r := newTimer(t)
	for _, vocab := range []int{131072, 248320} {
		for i, p := range largeParams()[1:] {
			fmt.Printf("sample vocabulary %d T %g top-p %g top-k %d min-p %g:", vocab, p.Temperature, p.TopP, p.TopK, p.MinP)
			for _, rows := range []int{1, 32, 256, 1024} {
				if rows == 1024 && p.Temperature > 0 {
					continue // of a verify step, greedy
				}
				params := make([]kernels.SlotParams, rows+1)
				for s := range params {
					params[s] = largeParams()[i+1]
				}
				logits := make([]float32, rows*vocab)
				for j := range vocab {
					logits[j] = float32(2 * r.rng.NormFloat64())
				}
				for s := 1; s < rows; s++ {
					copy(logits[s*vocab:], logits[:vocab])
				}
				x := newTile(t, r.dev, vocab, logits, params)
				for _, top := range []int{0, tileTop} {
					p := x.Sample
					p.TopN = top
					seconds, err := r.dev.Time(5, kernels.ProgramFunc(func(o kernels.Ops) { o.Sample(p) }))
					if err != nil {
						t.Fatal(err)
					}
					fmt.Printf(" B %d n %d %.0f us", rows, top, seconds*1e6)
				}
				r.dev.Free(x.Logits.Buf)
			}
			fmt.Println()
		}
	}
}
