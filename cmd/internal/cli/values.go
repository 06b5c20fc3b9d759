package cli

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// count is a flag of a number of things; "32k" is 32,000, "32K" is 32,768, "auto" is 0.
type count struct {
	to   *int
	auto bool // "auto" is allowed
}

// scales of the suffixes of counts.
var scales = map[byte]float64{'k': 1e3, 'K': 1 << 10, 'm': 1e6, 'M': 1 << 20}

// Set implements pflag.Value.
func (c *count) Set(text string) error {
	if c.auto && (text == "auto" || text == "-1") {
		*c.to = 0
		return nil
	}
	digits, scale := text, 1.0
	if n := len(text); n > 0 && scales[text[n-1]] != 0 {
		digits, scale = text[:n-1], scales[text[n-1]]
	}
	v, err := strconv.ParseFloat(digits, 64)
	switch v *= scale; {
	case err != nil || v != math.Trunc(v):
		return fmt.Errorf("must be a whole number")
	case v < 1 || v > math.MaxInt32:
		return fmt.Errorf("must be from 1 to %d", math.MaxInt32)
	}
	*c.to = int(v)
	return nil
}

// String implements pflag.Value.
func (c *count) String() string {
	if c.to == nil || *c.to == 0 {
		return "auto"
	}
	return strconv.Itoa(*c.to)
}

// Type implements pflag.Value.
func (c *count) Type() string { return "N" }

// oneOf is a flag with a fixed set of values.
type oneOf struct {
	to      *string
	allowed []string
}

// Set implements pflag.Value.
func (o *oneOf) Set(text string) error {
	if !slices.Contains(o.allowed, text) {
		return fmt.Errorf("must be one of %s", strings.Join(o.allowed, ", "))
	}
	*o.to = text
	return nil
}

// String implements pflag.Value.
func (o *oneOf) String() string {
	if o.to == nil {
		return ""
	}
	return *o.to
}

// Type implements pflag.Value.
func (o *oneOf) Type() string { return strings.Join(o.allowed, "|") }
