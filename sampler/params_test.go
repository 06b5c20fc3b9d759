package sampler

import (
	"errors"
	"math"
	"testing"
)

// TestBounds: the largest and smallest allowed value of every parameter, and their neighbours beyond, as OpenAI and vLLM
// set them.
func TestBounds(t *testing.T) {
	above := func(v float32) float32 { return math.Nextafter32(v, float32(math.Inf(1))) }
	below := func(v float32) float32 { return math.Nextafter32(v, float32(math.Inf(-1))) }
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		field string
		set   func(*Params, float32)
		good  []float32
		bad   []float32
	}{
		{field: "temperature", set: func(p *Params, v float32) { p.Temperature = v }, good: []float32{0, 1e-5, 2}, bad: []float32{below(0), -1, above(2)}},
		{field: "top_p", set: func(p *Params, v float32) { p.TopP = v }, good: []float32{math.SmallestNonzeroFloat32, 0.5, 1}, bad: []float32{0, -1, above(1)}},
		{field: "min_p", set: func(p *Params, v float32) { p.MinP = v }, good: []float32{0, 1}, bad: []float32{below(0), above(1)}},
		{field: "repetition_penalty", set: func(p *Params, v float32) { p.Repetition = v }, good: []float32{math.SmallestNonzeroFloat32, 2, math.MaxFloat32}, bad: []float32{0, -1}},
		{field: "presence_penalty", set: func(p *Params, v float32) { p.Presence = v }, good: []float32{-2, 2}, bad: []float32{below(-2), above(2)}},
		{field: "frequency_penalty", set: func(p *Params, v float32) { p.Frequency = v }, good: []float32{-2, 2}, bad: []float32{below(-2), above(2)}},
		{field: "logit_bias", set: func(p *Params, v float32) { p.Bias = map[int32]float32{1: v} }, good: []float32{-100, 100}, bad: []float32{below(-100), above(100)}},
	} {
		for _, v := range c.good {
			p := Default()
			if c.set(&p, v); p.Validate(10) != nil {
				t.Errorf("%s %g: %v", c.field, v, p.Validate(10))
			}
		}
		for _, v := range append(c.bad, nan, inf, -inf) {
			p := Default()
			c.set(&p, v)
			refused(t, c.field, &p)
		}
	}
}

func refused(t *testing.T, field string, p *Params) {
	t.Helper()
	var e *ParamError
	if err := p.Validate(10); !errors.As(err, &e) || e.Field != field {
		t.Errorf("%s %+v: %v", field, *p, err)
	}
}

func TestTokenBounds(t *testing.T) {
	many := make([]int32, MaxBias+1)
	for _, c := range []struct {
		field string
		p     Params
	}{
		{"top_k", Params{TopK: -1}}, {"top_k", Params{TopK: 1 << 31}},
		{"logit_bias", Params{Bias: map[int32]float32{10: 1}}}, {"logit_bias", Params{Bias: map[int32]float32{-1: 1}}}, {"logit_bias", Params{Bad: many}},
		{"bad_words", Params{Bad: []int32{10}}}, {"bad_words", Params{Bad: []int32{-1}}},
		{"allowed_token_ids", Params{Allowed: []int32{}}}, {"allowed_token_ids", Params{Allowed: []int32{3, 10}}}, {"allowed_token_ids", Params{Allowed: []int32{-1}}},
	} {
		c.p.Temperature, c.p.TopP, c.p.Repetition = 1, 1, 1
		refused(t, c.field, &c.p)
	}
	good := Default()
	good.TopK, good.Bias, good.Bad, good.Allowed = math.MaxInt32, map[int32]float32{0: 1, 9: 1}, []int32{0, 9}, []int32{0, 9}
	if err := good.Validate(10); err != nil {
		t.Error(err)
	}
}
