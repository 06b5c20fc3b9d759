package kl

import (
	"bytes"
	"encoding/json"
	"image/png"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func logitsOf(p ...float64) []float32 {
	out := make([]float32, len(p))
	for i, v := range p {
		out[i] = float32(math.Log(v))
	}
	return out
}

func divergence(t *testing.T, p, q []float32) (float64, bool) {
	t.Helper()
	r := NewReference(2, len(p))
	if err := r.Set(1, p); err != nil {
		t.Fatal(err)
	}
	return r.Divergence(1, q)
}

// TestKnownDivergences compares with sums written out. The tolerance is that of logarithms rounded to float32.
func TestKnownDivergences(t *testing.T) {
	for _, c := range []struct {
		p, q []float64
		want float64
		same bool
	}{
		{[]float64{.25, .75}, []float64{.5, .5}, .25*math.Log(.5) + .75*math.Log(1.5), false},
		{[]float64{.5, .5}, []float64{.25, .75}, .5*math.Log(2) + .5*math.Log(2.0/3), false},
		{[]float64{.2, .3, .5}, []float64{.1, .2, .7}, .2*math.Log(2) + .3*math.Log(1.5) + .5*math.Log(5.0/7), true},
		{[]float64{.2, .3, .5}, []float64{20, 30, 50}, 0, true}, // the same distribution, shifted logits
	} {
		got, same := divergence(t, logitsOf(c.p...), logitsOf(c.q...))
		if math.Abs(got-c.want) > 1e-6 || same != c.same {
			t.Errorf("KL(%v || %v) = %g, same top %v; want %g, %v", c.p, c.q, got, same, c.want, c.same)
		}
	}
}

// TestEqualLogitsDivergeByNothing: exactly, whatever they are.
func TestEqualLogitsDivergeByNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, spread := range []float64{1e-3, 1, 30, 1e4, 1e30} {
		logits := make([]float32, 1000)
		for i := range logits {
			logits[i] = float32(rng.NormFloat64() * spread)
		}
		if got, same := divergence(t, logits, slices.Clone(logits)); got != 0 || !same {
			t.Errorf("spread %g: %g, %v", spread, got, same)
		}
	}
}

// TestSmallPerturbation: a perturbation d of one logit gives p(1-p) d^2/2 to leading order, far below float32.
func TestSmallPerturbation(t *testing.T) {
	p, q := make([]float32, 64), make([]float32, 64)
	for _, d := range []float64{1.0 / 1024, 1.0 / (1 << 20)} { // exact in float32
		q[5] = float32(d)
		share := 1.0 / 64
		want := share * (1 - share) * d * d / 2
		if got, _ := divergence(t, p, q); math.Abs(got-want) > 0.01*want+1e-15 {
			t.Errorf("d = %g: %g, want about %g", d, got, want)
		}
	}
}

func TestNotFinite(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, bad := range [][]float32{{0, nan}, {inf, 0}, {nan, nan}, {-inf, -inf}} {
		if got, same := divergence(t, []float32{0, 1}, bad); !math.IsInf(got, 1) || same {
			t.Errorf("%v: %g, %v", bad, got, same)
		}
		if NewReference(1, 2).Set(0, bad) == nil {
			t.Errorf("%v is taken as a reference", bad)
		}
	}
	if got, _ := divergence(t, []float32{0, -inf}, []float32{0, 1}); math.Abs(got-math.Log(1+math.E)) > 1e-12 {
		t.Errorf("a token that the reference excludes: %g", got)
	}
	if got, _ := divergence(t, []float32{0, 1}, []float32{0, -inf}); !math.IsInf(got, 1) {
		t.Errorf("a token that only the setting excludes: %g", got)
	}
}

func filled() *Series {
	s := NewSeries("state=fp8", 3, 6)
	for text, row := range [][]float64{{1, 2, 3, 4}, {2, 2, 2, 2}, {9, 0, 0, 3}} {
		for i, v := range row {
			s.Set(text, i+2, v, v < 3)
		}
	}
	return s
}

func TestSummary(t *testing.T) {
	got, ok := filled().Summary(Span{1, 3})
	want := Summary{Setting: "state=fp8", From: 1, To: 3, Texts: 3, Positions: 6, Mean: 16.0 / 6, Median: 2, Max: 4.5, Worst: 9, SameTop: Number(5.0 / 6)}
	if !ok || got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, ok := filled().Summary(Span{6, 6}); ok {
		t.Error("a span that nothing was measured in has a summary")
	}
	if mean, mid, most := filled().At(2); mean != 4 || mid != 2 || most != 9 {
		t.Errorf("position 2: %g, %g, %g", mean, mid, most)
	}
}

func TestSummaryOfNotFinite(t *testing.T) {
	s := filled()
	s.Set(1, 3, math.Inf(1), false)
	got, _ := s.Summary(Span{1, 6})
	text, err := json.Marshal(got)
	if err != nil || got.NotFinite != 1 || !strings.Contains(string(text), `"mean":null`) || !strings.Contains(string(text), `"median":3`) {
		t.Errorf("%s, %v", text, err)
	}
}

func TestSpans(t *testing.T) {
	for _, c := range []struct {
		from, length int
		cuts         []int
		want         []Span
	}{
		{2, 1536, []int{1024}, []Span{{2, 1024}, {1025, 1536}}},
		{1, 1024, []int{1024}, []Span{{1, 1024}}},
		{2, 100, []int{1024, 40}, []Span{{2, 40}, {41, 100}}},
		{9, 100, nil, []Span{{9, 100}}},
		{9, 100, []int{8, 1, 100}, []Span{{9, 100}}},
	} {
		if got := Spans(c.from, c.length, c.cuts); !slices.Equal(got, c.want) {
			t.Errorf("Spans(%d, %d, %v) = %v, want %v", c.from, c.length, c.cuts, got, c.want)
		}
	}
}

func TestParseSettings(t *testing.T) {
	all, err := ParseSettings([]string{"rounding=nearest,stochastic state=fp8", "  kv=fp8  window=16 "})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range all {
		names = append(names, s.Name)
	}
	want := []string{"state=fp8 rounding=nearest", "state=fp8 rounding=stochastic", "kv=fp8 window=16"}
	if !slices.Equal(names, want) {
		t.Errorf("names %q, want %q", names, want)
	}
	if f := all[1].Flags; len(f) != 2 || f["mamba-ssm-cache-dtype"] != "fp8" || f["ssm-rounding"] != "stochastic" {
		t.Errorf("flags %v", f)
	}
	if all, err := ParseSettings([]string{"paper"}); err != nil || len(all) != 12 {
		t.Errorf("paper: %d settings, %v", len(all), err)
	}
}

func TestParseSettingsRefuses(t *testing.T) {
	for _, bad := range [][]string{
		{}, {""}, {"states=fp8"}, {"state"}, {"state="}, {"state=fp8,"}, {"state=fp8 state=fp8"}, {"kv=fp8", "kv=fp8"}, {"kv=fp8,fp8"},
		{"window=" + strings.Repeat("1,", 70) + "1"}, {"state=fp8 fp8"},
		{"state=fp8 read=fp8"}, {"state=float16,fp8 read=fp8"}, {"window=-1"},
	} {
		if all, err := ParseSettings(bad); err == nil {
			t.Errorf("%q: %v, no error", bad, all)
		}
	}
	for _, bad := range []string{"kv=fp8,bfloat16", "window=-1", "state=nvfp4 read=nvfp4"} {
		if _, err := ParseSetting(bad); err == nil {
			t.Errorf("%q is taken as one setting", bad)
		}
	}
}

func TestExcerpts(t *testing.T) {
	file := func(n int) (ids []int32) {
		for i := range n {
			ids = append(ids, int32(i))
		}
		return ids
	}
	got, err := Excerpts([][]int32{file(100), file(20)}, []string{"a", "b"}, 3, 10)
	if err != nil {
		t.Fatal(err)
	}
	var starts []int32
	for _, ids := range got {
		starts = append(starts, ids[0])
		if len(ids) != 10 || ids[9] != ids[0]+9 {
			t.Errorf("excerpt %v", ids)
		}
	}
	if !slices.Equal(starts, []int32{20, 70, 5}) { // middles of two parts of 50, and of one of 20
		t.Errorf("excerpts start at %v", starts)
	}
	if _, err := Excerpts([][]int32{file(19)}, []string{"a"}, 2, 10); err == nil {
		t.Error("two texts of 10 in 19 tokens")
	}
	if _, err := Excerpts([][]int32{file(19), file(19)}, []string{"a", "b"}, 1, 10); err == nil {
		t.Error("one text of two files")
	}
}

func TestOutput(t *testing.T) {
	var csv, picture bytes.Buffer
	all := []*Series{filled(), NewSeries("nothing", 1, 6)}
	if err := WriteCSV(&csv, all); err != nil {
		t.Fatal(err)
	}
	if want := "setting,position,mean,median,max\nstate=fp8,2,4,2,9\n"; !strings.HasPrefix(csv.String(), want) || strings.Count(csv.String(), "\n") != 5 {
		t.Errorf("CSV:\n%s", csv.String())
	}
	if err := WritePlot(&picture, "title", all); err != nil {
		t.Fatal(err)
	}
	if img, err := png.Decode(&picture); err != nil || img.Bounds().Dx() != width {
		t.Errorf("picture: %v", err)
	}
}

// TestCurve: bins hold the mean of their positions, each position the mean of its texts.
func TestCurve(t *testing.T) {
	s := NewSeries("", 2, 3*points)
	for i := range 3 * points {
		s.Set(0, i+1, float64(i), false)
		s.Set(1, i+1, float64(i)+2, false)
	}
	x, y := s.Curve()
	if len(x) != points || x[0] != 2 || y[0] != 2 || y[1] != 5 {
		t.Errorf("%d points, first %g: %g, second %g: %g", len(x), x[0], y[0], x[1], y[1])
	}
}
