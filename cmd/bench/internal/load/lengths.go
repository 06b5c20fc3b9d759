package load

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// MaxLength bounds the tokens of a prompt or of an answer.
const MaxLength = 1 << 22

// Lengths is a distribution of token counts. It implements pflag.Value.
type Lengths struct {
	text string
	draw func(*rand.Rand) float64
}

// ParseLengths reads N, A-B (uniform, both included), normal:MEAN:DEVIATION, lognormal:MEDIAN:SIGMA or exp:MEAN.
func ParseLengths(text string) (Lengths, error) {
	bad := fmt.Errorf("%q is none of N, A-B, normal:MEAN:DEVIATION, lognormal:MEDIAN:SIGMA, exp:MEAN, with lengths from 1 to %d", text, MaxLength)
	kind, rest, named := strings.Cut(text, ":")
	separator := ":"
	if !named {
		kind, rest, separator = "uniform", text, "-"
	}
	first, second, two := strings.Cut(rest, separator)
	a, err := strconv.ParseFloat(first, 64)
	if err != nil || !(a >= 1 && a <= MaxLength) {
		return Lengths{}, bad
	}
	b := a
	if two {
		if b, err = strconv.ParseFloat(second, 64); err != nil || !(b >= 0 && b <= MaxLength) {
			return Lengths{}, bad
		}
	}
	l := Lengths{text: text}
	switch {
	case kind == "uniform" && a == math.Trunc(a) && b == math.Trunc(b) && a <= b:
		l.draw = func(r *rand.Rand) float64 { return a + float64(r.IntN(int(b-a)+1)) }
	case kind == "normal" && two:
		l.draw = func(r *rand.Rand) float64 { return a + b*r.NormFloat64() }
	case kind == "lognormal" && two:
		l.draw = func(r *rand.Rand) float64 { return a * math.Exp(b*r.NormFloat64()) }
	case kind == "exp" && !two:
		l.draw = func(r *rand.Rand) float64 { return a * r.ExpFloat64() }
	default:
		return Lengths{}, bad
	}
	return l, nil
}

// Draw is the next length, from 1 to MaxLength.
func (l Lengths) Draw(r *rand.Rand) int {
	return int(math.Round(min(max(l.draw(r), 1), MaxLength)))
}

// Set implements pflag.Value.
func (l *Lengths) Set(text string) (err error) {
	*l, err = ParseLengths(text)
	return err
}

// String implements pflag.Value.
func (l *Lengths) String() string { return l.text }

// Type implements pflag.Value.
func (l *Lengths) Type() string { return "LENGTHS" }
