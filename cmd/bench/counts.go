package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// counts is a flag of a list of whole numbers from 1 to a limit, with commas; a number that is there twice counts once.
type counts struct {
	to    *[]int
	limit int
}

// Set implements pflag.Value.
func (c counts) Set(text string) error {
	var out []int
	for field := range strings.SplitSeq(text, ",") {
		v, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil || v < 1 || v > c.limit {
			return fmt.Errorf("must be whole numbers from 1 to %d, with commas between them", c.limit)
		}
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	*c.to = out
	return nil
}

// String implements pflag.Value.
func (c counts) String() string {
	if c.to == nil {
		return ""
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(*c.to), " ", ","), "[]")
}

// Type implements pflag.Value.
func (c counts) Type() string { return "N,N" }

// chances is a flag of a list of numbers; what they may be is checked where they are used.
type chances []float64

// Set implements pflag.Value.
func (c *chances) Set(text string) error {
	var out []float64
	for field := range strings.SplitSeq(text, ",") {
		v, err := strconv.ParseFloat(strings.TrimSpace(field), 64)
		if err != nil {
			return errors.New("must be probabilities from 0 to 1, with commas between them")
		}
		out = append(out, v)
	}
	*c = out
	return nil
}

// String implements pflag.Value.
func (*chances) String() string { return "" }

// Type implements pflag.Value.
func (*chances) Type() string { return "P,P" }
