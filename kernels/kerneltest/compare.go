package kerneltest

import (
	"bytes"
	"math"
	"slices"

	"reprise/kernels"
)

// piece is a run of numbers in an array.
type piece struct {
	*array
	span
	dtype kernels.DType
}

func (p piece) buffer(s side) kernels.Buffer {
	return p.buf[s].Slice(int64(p.from), int64(p.to-p.from))
}

func (p piece) on(s side) []float64 { return decode(p.dtype, p.after[s][p.from:p.to]) }

// tolerance is the floor of an error in units of 2^-24 (half a unit in the last place of float32) of the largest, and of
// the root of the sum of squares, of the oracle's numbers. The whole allowance is twice the error of the float32
// baseline plus this: an implementation may order its sums differently and take exp from a polynomial, but may not lose
// digits that the obvious float32 loop keeps.
type tolerance float64

const (
	exactly       tolerance = 0
	fewRoundings  tolerance = 8  // one sum or product, an exp of a small number
	manyRoundings tolerance = 64 // chains: decays over a window, softmax, triangular solves
)

// close compares all pieces as one vector with the oracle's.
func (b *bench) close(what string, t tolerance, pieces []piece) {
	b.Helper()
	b.closeTo(what, t, pieces, pieces)
}

// closeTo compares what the device left in one place with what the oracle left in another.
func (b *bench) closeTo(what string, t tolerance, pieces, wanted []piece) {
	b.Helper()
	dtype := kernels.F32
	if len(pieces) > 0 {
		dtype = pieces[0].dtype
	}
	b.compare(what, t, dtype, gather(pieces, device), gather(wanted, plain), gather(wanted, oracle))
}

// rounded is a tolerance of numbers that grow from ones which may have been rounded to a storage type, or not.
func rounded(t tolerance, through kernels.DType) tolerance {
	return t + tolerance(precision(through)*(1<<24))
}

// closeMostly is closeTo of float32 numbers that grow from few ones each, rounded to a storage type: one in fifty may
// come from one that was rounded the other way. The others are held to t.
func (b *bench) closeMostly(what string, t tolerance, through kernels.DType, pieces, wanted []piece) {
	b.Helper()
	got, base, want := gather(pieces, device), gather(wanted, plain), gather(wanted, oracle)
	b.compare(what, rounded(t, through), kernels.F32, got, base, want)
	off := make([]float64, len(got))
	for i := range got {
		off[i] = math.Abs(got[i] - want[i])
	}
	slices.Sort(off)
	limit := off[len(off)-1-len(off)/50]
	for i := range got {
		if math.Abs(got[i]-want[i]) > limit {
			got[i] = want[i]
		}
	}
	b.compare("most "+what, t, kernels.F32, got, base, want)
}

// compare holds the error of got against twice that of base.
func (b *bench) compare(what string, t tolerance, dtype kernels.DType, got, base, want []float64) {
	b.Helper()
	unit := float64(t) * math.Ldexp(1, -24)
	if dtype != kernels.F32 && t != exactly {
		unit += precision(dtype)
	}
	b.within(what, "norm", distance(got, want, norm), 2*distance(base, want, norm)+unit*norm(want))
	b.within(what, "largest", distance(got, want, largest), 2*distance(base, want, largest)+unit*largest(want))
}

func gather(pieces []piece, s side) []float64 {
	var v []float64
	for _, p := range pieces {
		v = append(v, p.on(s)...)
	}
	return v
}

// precision is a unit in the last place of a storage type: the same number may round either way.
func precision(t kernels.DType) float64 {
	switch t {
	case kernels.BF16:
		return math.Ldexp(1, -7)
	case kernels.F16:
		return math.Ldexp(1, -10)
	}
	return math.Ldexp(1, -3)
}

func (b *bench) within(what, kind string, err, limit float64) {
	b.Helper()
	if !(err <= limit) {
		b.Errorf("%s: %s error %.3g, allowed %.3g", what, kind, err, limit)
	}
}

func norm(x []float64) float64 {
	var s float64
	for _, v := range x {
		s += v * v
	}
	return math.Sqrt(s)
}

// largest is the largest absolute value; NaN if there is one.
func largest(x []float64) float64 {
	var m float64
	for _, v := range x {
		if m = max(m, math.Abs(v)); math.IsNaN(v) {
			return v
		}
	}
	return m
}

func distance(x, y []float64, size func([]float64) float64) float64 {
	d := make([]float64, len(x))
	for i := range x {
		d[i] = x[i] - y[i]
	}
	return size(d)
}

// codes compares stored elements of few bits: one in fifty may have been rounded the other way, to the next code.
func (b *bench) codes(what string, pieces []piece) {
	b.Helper()
	want, got := gatherCodes(pieces, oracle), gatherCodes(pieces, device)
	differ, most := 0, 0
	for i := range want {
		if d := max(want[i]-got[i], got[i]-want[i]); d > 0 {
			differ, most = differ+1, max(most, d)
		}
	}
	if differ > 2+len(want)/50 || most > 1 {
		b.Errorf("%s: %d of %d codes differ, by %d at most", what, differ, len(want), most)
	}
}

// gatherCodes numbers the elements in order of value.
func gatherCodes(pieces []piece, s side) []int {
	var v []int
	for _, p := range pieces {
		size := p.dtype.Size()
		for at := p.from; at < p.to; at += size {
			code, sign := int(p.after[s][at]), 1<<7
			if size == 2 {
				code, sign = code|int(p.after[s][at+1])<<8, 1<<15
			}
			if code >= sign {
				code = sign - code
			}
			v = append(v, code)
		}
	}
	return v
}

// zero requires that the device wrote zeros.
func (b *bench) zero(what string, pieces []piece) {
	b.Helper()
	for i, p := range pieces {
		if x := p.on(device); largest(x) != 0 {
			b.Errorf("%s: token %d is not zero: %v", what, i, x)
		}
	}
}

// same requires equal bytes on device and oracle.
func (b *bench) same(list ...*array) {
	b.Helper()
	for _, a := range list {
		if !bytes.Equal(a.after[device], a.after[oracle]) {
			b.Errorf("%s differs: device %v, oracle %v", a.name, brief(a.intsOf(device)), brief(a.intsOf(oracle)))
		}
	}
}

// twins requires that the device gave the same bits in two places.
func (b *bench) twins(what string, x, y []piece) {
	b.Helper()
	for i := range x {
		p, q := x[i], y[i]
		if !bytes.Equal(p.after[device][p.from:p.to], q.after[device][q.from:q.to]) {
			b.Errorf("%s: part %d: %v and %v are not the same bits", what, i, brief(p.on(device)), brief(q.on(device)))
			return
		}
	}
}

func brief[E any](v []E) []E { return slices.Clone(v[:min(len(v), 12)]) }
