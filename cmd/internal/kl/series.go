package kl

import (
	"math"
	"slices"
)

// Series are the divergences of one setting, by text and position. The position is the number of tokens that the
// distribution follows, from 1.
type Series struct {
	Name string
	nats [][]float64 // [text][position-1]; NaN where nothing was measured
	same [][]bool
}

// NewSeries makes room for texts of a length.
func NewSeries(name string, texts, length int) *Series {
	s := &Series{Name: name}
	for range texts {
		nats := make([]float64, length)
		for i := range nats {
			nats[i] = math.NaN()
		}
		s.nats, s.same = append(s.nats, nats), append(s.same, make([]bool, length))
	}
	return s
}

// Set notes one divergence. Different positions may be set in parallel.
func (s *Series) Set(text, position int, nats float64, sameTop bool) {
	s.nats[text][position-1], s.same[text][position-1] = nats, sameTop
}

// Span is a range of positions, both ends included.
type Span struct{ From, To int }

// Spans cut positions from..length behind the given ones.
func Spans(from, length int, cuts []int) (out []Span) {
	cuts = slices.Clone(cuts)
	slices.Sort(cuts)
	for _, cut := range append(cuts, length) {
		if to := min(cut, length); to >= from {
			out = append(out, Span{from, to})
			from = to + 1
		}
	}
	return out
}

// Number is a float64 that JSON can carry: null if it is not finite.
type Number float64

// MarshalJSON implements json.Marshaler.
func (n Number) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	return jsonFloat(float64(n)), nil
}

// Summary is a setting over a span of positions. Divergences are in nats; Median and Max are over the texts, of each
// text's mean.
type Summary struct {
	Setting   string `json:"setting"`
	From      int    `json:"from"`
	To        int    `json:"to"`
	Texts     int    `json:"texts"`
	Positions int    `json:"positions"` // measured, of all texts together
	Mean      Number `json:"mean"`
	Median    Number `json:"median"`
	Max       Number `json:"max"`
	Worst     Number `json:"worst"`      // largest of a single position
	SameTop   Number `json:"same_top"`   // share of positions with the same most likely token
	NotFinite int    `json:"not_finite"` // positions whose logits were not finite; they make the means infinite
}

// Summary of the positions of a span; false if none was measured.
func (s *Series) Summary(span Span) (Summary, bool) {
	out := Summary{Setting: s.Name, From: span.From, To: span.To}
	var means []float64
	sum, same := 0.0, 0
	for t := range s.nats {
		text, n := 0.0, 0
		for i := span.From - 1; i < span.To; i++ {
			v := s.nats[t][i]
			if math.IsNaN(v) {
				continue
			}
			text, n = text+v, n+1
			out.Worst = max(out.Worst, Number(v))
			if math.IsInf(v, 0) {
				out.NotFinite++
			}
			if s.same[t][i] {
				same++
			}
		}
		if n > 0 {
			means = append(means, text/float64(n))
			sum, out.Positions = sum+text, out.Positions+n
		}
	}
	if len(means) == 0 {
		return out, false
	}
	out.Texts, out.Mean, out.SameTop = len(means), Number(sum/float64(out.Positions)), Number(float64(same)/float64(out.Positions))
	out.Median, out.Max = Number(median(means)), Number(slices.Max(means))
	return out, true
}

// At is mean, median and maximum over the texts at one position; NaN if none was measured.
func (s *Series) At(position int) (mean, mid, most float64) {
	var all []float64
	for t := range s.nats {
		if v := s.nats[t][position-1]; !math.IsNaN(v) {
			all = append(all, v)
			mean += v
		}
	}
	if len(all) == 0 {
		return math.NaN(), math.NaN(), math.NaN()
	}
	return mean / float64(len(all)), median(all), slices.Max(all)
}

// median is the middle value, or the mean of the middle two; it sorts v.
func median(v []float64) float64 {
	slices.Sort(v)
	n := len(v)
	if n%2 == 1 {
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}
