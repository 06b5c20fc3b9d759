package ref

import (
	"fmt"
	"slices"

	"reprise/kernels"
)

// layer is an SSM layer's memory.
type layer[F real] struct {
	kernels.State
	blocks, rings, scratch, tails []byte
	checkpoint                    kernels.CheckpointLayout
}

func (o ops[F]) layer(s kernels.State, c kernels.CheckpointLayout) layer[F] {
	return layer[F]{s, o.bytes(s.Blocks), o.bytes(s.Rings), o.bytes(s.Scratch), o.bytes(s.Tails), c}
}

// ring is one array of a slot's ring region.
type ring[F real] struct {
	kernels.Field
	data []byte
}

func (l layer[F]) ring(slot int, f kernels.Field) ring[F] {
	from := int64(slot)*l.RingStride + f.Offset
	return ring[F]{f, l.rings[from : from+int64(f.Rows)*int64(f.Cols)*int64(f.DType.Size())]}
}

func (r ring[F]) at(token int) row[F] {
	size := r.Cols * r.DType.Size()
	from := kernels.RingIndex(int32(token), r.Rows) * size
	return row[F]{values{r.DType, r.data[from : from+size]}}
}

// get is the row of an absolute token; tokens before the sequence are zero.
func (r ring[F]) get(token int) []F {
	if token < 0 {
		return make([]F, r.Cols)
	}
	return r.at(token).load(r.Cols)
}

// round is x as type t stores it.
func round[F real](t kernels.DType, x []F) []F {
	r := row[F]{values{t, make([]byte, len(x)*t.Size())}}
	r.store(x)
	return r.load(len(x))
}

// history is the raw rows of one sequence: from the convolution ring up to its position, then those of the batch.
type history[F real] struct {
	ring[F]
	sequence
	fresh matrix[F]
}

func (h history[F]) raw(token int) []F {
	if token < h.position() {
		return h.get(token)
	}
	return round(h.DType, h.fresh.get(h.first+token-h.position()))
}

// convolve is silu(bias + the taps over the rows that end at token).
func (h history[F]) convolve(token, taps int, w, bias []F) []F {
	sum := make([]F, h.Cols)
	copy(sum, bias)
	for tap := range taps {
		for c, v := range h.raw(token - taps + 1 + tap) {
			sum[c] += w[c*taps+tap] * v
		}
	}
	for c, v := range sum {
		sum[c] = silu(v)
	}
	return sum
}

// keep stores the last rows of the sequence in the ring, as many as fit.
func (h history[F]) keep() {
	end := h.position() + h.n
	var rows [][]F
	for i := max(end-h.Rows, h.position()); i < end; i++ {
		rows = append(rows, h.raw(i))
	}
	slices.Reverse(rows)
	for i, x := range rows {
		h.at(end - 1 - i).store(x)
	}
}

// keepCuts stores state and raw rows of the cuts behind the first n tokens of the row.
func (l layer[F]) keepCuts(h history[F], n, taps int, state []F) {
	for _, c := range h.cuts {
		if c.place != n {
			continue
		}
		end, size := h.position()+n, h.Cols*h.DType.Size()
		l.store(int32(c.block), state, end)
		for i := range taps - 1 {
			from := int64(c.index)*l.TailStride + int64(i*size)
			to := row[F]{values{h.DType, l.tails[from : from+int64(size)]}}
			to.store(h.raw(end - taps + 1 + i))
		}
	}
}

// requireStep and requirePacked name the rows that an op takes.
func requireStep(r kernels.Rows, err error) error {
	if err == nil && !r.Empty() && r.T == 0 {
		return fmt.Errorf("kernels: Rows: packed rows, want step rows")
	}
	return err
}

func requirePacked(r kernels.Rows, err error) error {
	if err == nil && r.T > 0 {
		return fmt.Errorf("kernels: Rows: step rows, want packed rows")
	}
	return err
}
