// Package sampler decides which token follows: request parameters and their bounds, the per-slot tables that devices
// read, and the tiled walk from hidden rows over logits to sampled tokens.
//
// Not here: the arithmetic on logits (kernels.Ops.Sample of each device, whose order of operations kernels.Sample
// states), acceptance of drafts (kernels.Ops.Commit), stop strings (server).
package sampler

import (
	"fmt"
	"math"
)

// Limits of the per-slot tables.
const (
	MaxStops = 64   // stop ids of one request, end-of-sequence ids included
	MaxBias  = 1024 // logit_bias entries and bad tokens of one request
)

// Params are one request's sampling parameters. The zero value is not valid; start from Default.
type Params struct {
	Temperature float32 // 0 = greedy
	TopP        float32 // (0, 1]
	TopK        int     // 0 = off
	MinP        float32 // [0, 1], relative to the largest probability
	Seed        uint64
	Repetition  float32 // > 0, 1 = off; over prompt and output
	Presence    float32 // [-2, 2]; over output
	Frequency   float32 // [-2, 2]; over output
	Bias        map[int32]float32
	Allowed     []int32 // nil = all
	Bad         []int32 // never sampled
}

// Default samples from the unchanged distribution.
func Default() Params { return Params{Temperature: 1, TopP: 1, Repetition: 1} }

// ParamError says which request field is out of bounds.
type ParamError struct{ Field, Problem string }

func (e *ParamError) Error() string { return e.Field + ": " + e.Problem }

// Validate checks every bound; vocab is the number of tokens.
func (p *Params) Validate(vocab int) error {
	for _, c := range []struct {
		field  string
		value  float32
		lo, hi float32
	}{
		{"temperature", p.Temperature, 0, 2},
		{"top_p", p.TopP, math.SmallestNonzeroFloat32, 1},
		{"min_p", p.MinP, 0, 1},
		{"repetition_penalty", p.Repetition, math.SmallestNonzeroFloat32, math.MaxFloat32},
		{"presence_penalty", p.Presence, -2, 2},
		{"frequency_penalty", p.Frequency, -2, 2},
	} {
		if !(c.value >= c.lo && c.value <= c.hi) {
			return &ParamError{c.field, boundsText(c.value, c.lo, c.hi)}
		}
	}
	if p.TopK < 0 || p.TopK > math.MaxInt32 {
		return &ParamError{"top_k", "must be 0 (off) or a positive 32-bit integer"}
	}
	return p.validateTokens(vocab)
}

func boundsText(v, lo, hi float32) string {
	switch {
	case lo == math.SmallestNonzeroFloat32 && hi == math.MaxFloat32:
		return fmt.Sprintf("%g must be greater than 0", v)
	case lo == math.SmallestNonzeroFloat32:
		return fmt.Sprintf("%g is outside of (0, %g]", v, hi)
	}
	return fmt.Sprintf("%g is outside of [%g, %g]", v, lo, hi)
}

func (p *Params) validateTokens(vocab int) error {
	if n := len(p.Bias) + len(p.Bad); n > MaxBias {
		return &ParamError{"logit_bias", fmt.Sprintf("%d entries with bad tokens, at most %d are supported", n, MaxBias)}
	}
	for id, b := range p.Bias {
		if err := checkToken("logit_bias", id, vocab); err != nil {
			return err
		}
		if !(b >= -100 && b <= 100) {
			return &ParamError{"logit_bias", fmt.Sprintf("bias %g of token %d is outside of [-100, 100]", b, id)}
		}
	}
	for _, id := range p.Bad {
		if err := checkToken("bad_words", id, vocab); err != nil {
			return err
		}
	}
	if p.Allowed != nil && len(p.Allowed) == 0 {
		return &ParamError{"allowed_token_ids", "must not be empty"}
	}
	for _, id := range p.Allowed {
		if err := checkToken("allowed_token_ids", id, vocab); err != nil {
			return err
		}
	}
	return nil
}

func checkToken(field string, id int32, vocab int) error {
	if id < 0 || int(id) >= vocab {
		return &ParamError{field, fmt.Sprintf("token id %d is outside of the vocabulary of %d", id, vocab)}
	}
	return nil
}

// penalised reports whether output counts and prompt tokens matter.
func (p *Params) penalised() bool {
	return p.Repetition != 1 || p.Presence != 0 || p.Frequency != 0
}
