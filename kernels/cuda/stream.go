//go:build cuda

package cuda

import (
	"fmt"

	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// What src/stream.cu shares.
const (
	streamWarps   = 8       // a block
	streamRing    = 8 << 10 // bytes of weights in flight a warp
	streamCols    = 64      // of a chunk
	streamCluster = 2       // blocks of a cluster that share the columns of a weight
	streamLeast   = 48      // outputs a multiprocessor, for blocks that have all columns

	// streamAlone is the least shared memory of blocks that have all columns: more than half of a multiprocessor's 228 KiB, less
	// 1 KiB a block. A launch starts while another's blocks still end, and two of its own on a multiprocessor would leave
	// another one idle. A block of a cluster fits beside it.
	streamAlone = 113<<10 + 128
)

// streamKernel is one kernel of src/stream.cu.
type streamKernel struct {
	function              driver.Function
	tokens, tiles, blocks int // tokens, and tiles of 16 rows, at once; blocks of a cluster
	shared                int // bytes of shared memory, besides a norm's factors
}

// streamKernels are those for up to so many tokens: every block has all columns, a cluster shares them, and all with a
// norm before.
type streamKernels struct{ whole, shared, normed streamKernel }

func (l *loader) streams(tokens, tiles int) streamKernels {
	row := tokens * (16*tiles + 4) * 4
	k := streamKernel{tokens: tokens, tiles: tiles, blocks: 1, shared: streamWarps * (streamRing + row)}
	s := streamKernels{k, k, k}
	s.shared.blocks = streamCluster
	s.shared.shared += row
	s.normed.shared += streamWarps * tokens * 4
	s.whole.function = l.kernel(fmt.Sprintf("stream_%d", tokens), s.whole.bytes(0))
	s.shared.function = l.kernel(fmt.Sprintf("stream_%d_shared", tokens), s.shared.bytes(0))
	s.normed.function = l.kernel(fmt.Sprintf("stream_%d_normed", tokens), s.normed.bytes(normedCols))
	return s
}

// bytes of shared memory with the factors of a norm over so many columns.
func (k *streamKernel) bytes(normed int) int {
	n := k.shared + normed*4
	if k.blocks == 1 {
		n = max(n, streamAlone)
	}
	return n
}

// of chooses by what a product has: the choice, and so the order of sums, depends on the weight alone.
func (s *streamKernels) of(k *linearParams, processors int) *streamKernel {
	switch {
	case k.norm != 0:
		return &s.normed
	case int(k.n) < streamLeast*processors:
		return &s.shared
	}
	return &s.whole
}

// stream multiplies up to streamedRows rows. Clusters get about as many outputs each, and do about as many a pass.
func (o *ops) stream(k linearParams) {
	s := &o.linear.streams[0]
	if int(k.m) > s.whole.tokens {
		s = &o.linear.streams[1]
	}
	processors := o.dev.gpu.Processors
	f, tile := s.of(&k, processors), 16
	if k.act == int32(kernels.SiLUMul) {
		tile = 8 // a gate and a value for each output
	}
	rows := max(tile, ceil(int(k.n), processors/f.blocks))
	k.rowsEach, k.pass = int32(rows), int32(ceil(rows, ceil(rows, f.tiles*tile)))
	c := line(ceil(int(k.n), rows)*f.blocks, streamWarps*32)
	normed := 0
	if k.norm != 0 {
		normed = ceil(int(k.k), streamCols) * streamCols
	}
	c.Shared, c.Cluster = uint32(f.bytes(normed)), uint32(f.blocks)
	launch(o, f.function, c, k)
	o.waited(0)
}
