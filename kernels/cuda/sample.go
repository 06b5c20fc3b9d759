//go:build cuda

package cuda

import (
	"fmt"

	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// A row is sampled by a cluster of sampleBlocks blocks, which hold its logits beside sampleShared bytes. Of many rows those
// whose token is the best of the raw logits are left to clusters of bestBlocks small blocks, many of which fit a
// multiprocessor; the others then share sampleClusters of the large ones.
const (
	bestBlocks     = 8
	quickThreads   = 128
	quickRows      = 16 // rows from which on that is done
	sampleClusters = 48

	sampleBlocks  = 8
	sampleThreads = 512
	sampleShared  = 36 << 10
	sharedMost    = 226 << 10 // bytes of shared memory that a block can have beside its fixed arrays
)

// sampleKernels are those of src/sample.cu.
type sampleKernels struct{ sample, greedy driver.Function }

func (k *sampleKernels) load(l *loader) error {
	l.open("sample")
	k.sample, k.greedy = l.kernel("sample", sharedMost), l.kernel("sample_greedy", 0)
	return nil
}

// sampleParams is struct Sample of src/sample.cu.
type sampleParams struct {
	logits                                             mat
	token, slot, target, depth, ids, pos               uint64
	params, stops, counts, seen, allowed, biasID, bias uint64
	out, logProb, rank, topID, topProb                 uint64
	vocab, maxBias, maxStops, topN, slice              int32
	rows, apart                                        int32
	_                                                  int32
}

// Sample turns logits into tokens and log probabilities.
func (o *ops) Sample(p kernels.Sample) {
	o.enter("Sample")
	must(p.Validate())
	t, rows := p.Tables, p.Logits.Rows
	slice := (ceil(t.Vocab, sampleBlocks) + 31) &^ 31
	if sampleShared+4*slice > sharedMost {
		panic(fmt.Sprintf("cuda: sampling from %d tokens: %v", t.Vocab, kernels.ErrUnsupported))
	}
	k := sampleParams{
		logits: matOf(p.Logits), token: addr(p.Token), slot: addr(p.Slot), target: addr(p.Target), depth: addr(p.Depth), ids: addr(p.IDs), pos: addr(p.Pos),
		params: addr(p.Slots.Params), stops: addr(p.Slots.Stops), counts: addr(t.Counts), seen: addr(t.Seen), allowed: addr(t.Allowed), biasID: addr(t.BiasID), bias: addr(t.Bias),
		out: addr(p.Out), logProb: addr(p.LogProb), rank: addr(p.Rank), topID: addr(p.TopID), topProb: addr(p.TopProb),
		vocab: int32(t.Vocab), maxBias: int32(t.MaxBias), maxStops: int32(p.Slots.MaxStops), topN: int32(p.TopN), slice: int32(slice), rows: int32(rows)}
	clusters := rows
	if p.TopN == 0 && rows > quickRows {
		k.apart, clusters = 1, min(rows, sampleClusters)
		launch(o, o.sampling.greedy, line(rows*bestBlocks, quickThreads), k)
	}
	c := line(clusters*sampleBlocks, sampleThreads)
	c.Shared = uint32(sampleShared + 4*slice)
	launch(o, o.sampling.sample, c, k)
}
