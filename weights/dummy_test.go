package weights

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"reprise/kernels"
	"reprise/model"
)

func dummies(t testing.TB, seed uint64, specs ...model.TensorSpec) *Dummy {
	t.Helper()
	d, err := NewDummy(specs, seed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func made(t testing.TB, d *Dummy, name string, shape ...int) []byte {
	t.Helper()
	h, err := d.Get(name, shape...)
	if err != nil {
		t.Fatal(err)
	}
	return h.Data
}

// decoded widens stored values.
func decoded(t kernels.DType, data []byte) []float64 {
	values := make([]float64, len(data)/t.Size())
	for i := range values {
		v := float32(0)
		switch at := data[i*t.Size():]; t {
		case kernels.F32:
			v = math.Float32frombits(binary.LittleEndian.Uint32(at))
		case kernels.F16:
			v = kernels.F16ToF32(binary.LittleEndian.Uint16(at))
		case kernels.BF16:
			v = kernels.BF16ToF32(binary.LittleEndian.Uint16(at))
		case kernels.F8E4M3:
			v = kernels.F8E4M3ToF32(at[0])
		case kernels.F8E5M2:
			v = kernels.F8E5M2ToF32(at[0])
		}
		values[i] = float64(v)
	}
	return values
}

func moments(values []float64) (mean, deviation, lowest, highest float64) {
	lowest, highest = math.Inf(1), math.Inf(-1)
	squares := 0.0
	for _, v := range values {
		mean += v
		squares += v * v
		lowest, highest = min(lowest, v), max(highest, v)
	}
	mean /= float64(len(values))
	return mean, math.Sqrt(squares/float64(len(values)) - mean*mean), lowest, highest
}

func TestDummyDoesNotDependOnOrderOrThreads(t *testing.T) {
	shape := []int{3, 700_001} // many blocks, a cut group at the end
	a := model.TensorSpec{Name: "a", Shape: shape, DType: kernels.BF16}
	b := model.TensorSpec{Name: "b", Shape: []int{5}, DType: kernels.F32, Init: model.InitALog}
	first := dummies(t, 7, a, b)
	wantA, wantB := made(t, first, "a", shape...), made(t, first, "b", 5)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, threads := range []int{1, 3} {
		runtime.GOMAXPROCS(threads)
		second := dummies(t, 7, b, a)
		gotB, gotA := made(t, second, "b", 5), made(t, second, "a", shape...)
		if !bytes.Equal(gotA, wantA) || !bytes.Equal(gotB, wantB) {
			t.Errorf("%d threads and another order give other values", threads)
		}
	}
	other := dummies(t, 8, a)
	if bytes.Equal(made(t, other, "a", shape...), wantA) {
		t.Error("another seed gives the same values")
	}
	c := a
	c.Name = "c"
	if bytes.Equal(made(t, dummies(t, 7, c), "c", shape...), wantA) {
		t.Error("another name gives the same values")
	}
}

func TestDummyDistributions(t *testing.T) {
	for _, c := range []struct {
		init                     model.Init
		mean, deviation, lo, hi  float64
		meanWithin, deviationOff float64
	}{
		{model.InitMatrix, 0, 1.0 / 32, -0.15, 0.15, 0.001, 0.001},
		{model.InitOne, 1, 0.05, 0.7, 1.3, 0.002, 0.002},
		{model.InitZero, 0, 0.05, -0.3, 0.3, 0.002, 0.002},
		{model.InitALog, 1.9574, 0.6734, 0, math.Log(16) + 0.01, 0.02, 0.02},
		{model.InitDtBias, -4.591, 1.35, -7, -2.2, 0.02, 0.05},
		{model.InitConv, 0, 1 / math.Sqrt(3) / 32, -1.0 / 32, 1.0 / 32, 0.001, 0.001},
	} {
		for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16, kernels.F16} {
			d := dummies(t, 1, model.TensorSpec{Name: "x", Shape: []int{100, 1024}, DType: dtype, Init: c.init})
			mean, deviation, lo, hi := moments(decoded(dtype, made(t, d, "x", 100, 1024)))
			if math.Abs(mean-c.mean) > c.meanWithin || math.Abs(deviation-c.deviation) > c.deviationOff || lo < c.lo || hi > c.hi {
				t.Errorf("init %d as %v: mean %g, deviation %g, from %g to %g", c.init, dtype, mean, deviation, lo, hi)
			}
		}
	}
}

func TestDummyEightBits(t *testing.T) {
	for _, dtype := range []kernels.DType{kernels.F8E4M3, kernels.F8E5M2} {
		d := dummies(t, 1, model.TensorSpec{Name: "x", Shape: []int{1001, 64}, DType: dtype})
		mean, deviation, lo, hi := moments(decoded(dtype, made(t, d, "x", 1001, 64)))
		if math.Abs(mean) > 0.002 || math.Abs(deviation-1.0/8) > 0.003 || lo < -0.6 || hi > 0.6 {
			t.Errorf("%v: mean %g, deviation %g, from %g to %g", dtype, mean, deviation, lo, hi)
		}
	}
}

// Neighbouring elements are uncorrelated: within a group, between groups and between rows.
func TestDummyCorrelations(t *testing.T) {
	d := dummies(t, 1, model.TensorSpec{Name: "x", Shape: []int{1, 1 << 18}, DType: kernels.F32, Init: model.InitConv})
	values := decoded(kernels.F32, made(t, d, "x", 1, 1<<18))
	_, deviation, _, _ := moments(values)
	for _, lag := range []int{1, 2, 3, 4, 5, 8, 1024, groupBlock * groupSize / 2} {
		sum := 0.0
		for i := range values[lag:] {
			sum += values[i] * values[i+lag]
		}
		if r := sum / float64(len(values)-lag) / (deviation * deviation); math.Abs(r) > 0.015 {
			t.Errorf("correlation %g at distance %d", r, lag)
		}
	}
}

func TestDummyRefuses(t *testing.T) {
	x := model.TensorSpec{Name: "x", Shape: []int{2}, DType: kernels.BF16}
	for want, specs := range map[string][]model.TensorSpec{
		`tensor "x" is specified twice`: {x, x},
		"cannot make up int32":          {{Name: "i", Shape: []int{2}, DType: kernels.I32}},
		"impossible shape [-1]":         {{Name: "n", Shape: []int{-1}, DType: kernels.F32}},
		"impossible shape [42949":       {{Name: "h", Shape: []int{1 << 32, 1 << 32}, DType: kernels.F32}},
		"unknown kind of values 77":     {{Name: "k", Shape: []int{1}, DType: kernels.F32, Init: 77}},
	} {
		if _, err := NewDummy(specs, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	d := dummies(t, 0, x)
	if _, err := d.Get("x", 3); err == nil || err.Error() != `dummy weights: tensor "x": shape [2], want [3]` {
		t.Error(err)
	}
	if _, err := d.Get("y"); err == nil || err.Error() != `dummy weights: missing tensor "y"` {
		t.Error(err)
	}
	if d.Has("y") || !d.Has("x") {
		t.Error("Has is wrong")
	}
}

func TestDummyOfNothing(t *testing.T) {
	dummies(t, 0)
	d := dummies(t, 0, model.TensorSpec{Name: "e", Shape: []int{0, 3}, DType: kernels.F32})
	if got := made(t, d, "e", 0, 3); len(got) != 0 {
		t.Errorf("%d bytes", len(got))
	}
}

func BenchmarkDummy(b *testing.B) {
	for _, dtype := range []kernels.DType{kernels.BF16, kernels.F32, kernels.F8E4M3} {
		b.Run(fmt.Sprint(dtype), func(b *testing.B) {
			const rows, cols = 1 << 15, 4096
			b.SetBytes(int64(rows * cols * dtype.Size()))
			for b.Loop() {
				d, err := NewDummy([]model.TensorSpec{{Name: "x", Shape: []int{rows, cols}, DType: dtype}}, 1)
				if err != nil {
					b.Fatal(err)
				}
				made(b, d, "x", rows, cols)
				if err := d.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
