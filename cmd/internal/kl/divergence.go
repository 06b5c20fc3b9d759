// Package kl measures how far the next-token distributions of runs lie from those of a reference run: Kullback-Leibler
// divergence by position, its statistics over texts, tables and pictures of it, and the small language that names
// settings. Not here: what computes the distributions (engine's forced runs).
package kl

import (
	"fmt"
	"math"
)

// Reference holds the distributions of some rows of logits, in float64.
type Reference struct{ rows []distribution }

type distribution struct {
	logp, p []float64
	top     int // most likely token, lowest id of equals
}

// NewReference makes room for so many rows of a vocabulary.
func NewReference(rows, vocab int) *Reference {
	r := &Reference{make([]distribution, rows)}
	for i := range r.rows {
		r.rows[i] = distribution{logp: make([]float64, vocab), p: make([]float64, vocab)}
	}
	return r
}

// Set takes the logits of a row, vocabulary wide. Rows may be set and compared in parallel. Logits that are not finite
// are an error: nothing can be measured against them.
func (r *Reference) Set(row int, logits []float32) error {
	d := &r.rows[row]
	shift := logSum(logits)
	if math.IsNaN(shift) || math.IsInf(shift, 0) {
		return fmt.Errorf("the reference's logits are not finite")
	}
	d.top = largest(logits)
	for i, x := range logits {
		d.logp[i] = float64(x) - shift
		d.p[i] = math.Exp(d.logp[i])
	}
	return nil
}

// Divergence is KL(reference row || softmax of logits) in nats, and whether both find the same token most likely. Equal
// logits give exactly 0; logits that are not finite +Inf.
func (r *Reference) Divergence(row int, logits []float32) (nats float64, sameTop bool) {
	d := &r.rows[row]
	shift := logSum(logits)
	if math.IsNaN(shift) || math.IsInf(shift, 0) {
		return math.Inf(1), false
	}
	for i, x := range logits {
		if p := d.p[i]; p > 0 {
			nats += p * (d.logp[i] - (float64(x) - shift))
		}
	}
	return max(nats, 0), largest(logits) == d.top // below 0 only by rounding
}

// logSum is the logarithm of the sum of the exponentials; NaN if a logit is.
func logSum(logits []float32) float64 {
	high := math.Inf(-1)
	for _, x := range logits {
		high = max(high, float64(x))
	}
	sum := 0.0
	for _, x := range logits {
		sum += math.Exp(float64(x) - high)
	}
	return high + math.Log(sum)
}

func largest(logits []float32) int {
	best := 0
	for i, x := range logits {
		if x > logits[best] {
			best = i
		}
	}
	return best
}
