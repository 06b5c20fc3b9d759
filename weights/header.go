package weights

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"reprise/kernels"
)

// Limits of a safetensors file. The format sets the first.
const (
	maxHeader = 100_000_000 // bytes of the JSON header
	maxDims   = 8
)

// elementTypes are the names the format knows. Those without a kernels type are measured, so that their file can be
// checked and its other tensors used, but not handed out.
var elementTypes = map[string]struct {
	bits  int64
	dtype kernels.DType
}{
	"F32": {32, kernels.F32}, "F16": {16, kernels.F16}, "BF16": {16, kernels.BF16},
	"F8_E4M3": {8, kernels.F8E4M3}, "F8_E5M2": {8, kernels.F8E5M2},
	"U8": {8, kernels.U8}, "I8": {8, kernels.I8}, "I16": {16, kernels.I16}, "I32": {32, kernels.I32}, "I64": {64, kernels.I64},
	"BOOL": {bits: 8}, "U16": {bits: 16}, "U32": {bits: 32}, "U64": {bits: 64}, "F64": {bits: 64}, "C64": {bits: 64},
	"F8_E8M0": {bits: 8}, "F8_E4M3FNUZ": {bits: 8}, "F8_E5M2FNUZ": {bits: 8},
	"F4": {bits: 4}, "F6_E2M3": {bits: 6}, "F6_E3M2": {bits: 6},
}

// entry is one tensor of a header; begin and end count from the start of the data section.
type entry struct {
	name       string
	typeName   string
	shape      []int
	begin, end int64
}

// parseFile checks a whole safetensors file and returns its tensors in the order of their data, and the data
// section. The bytes of the data are not read.
func parseFile(file string, content []byte) ([]entry, []byte, error) {
	if len(content) < 8 {
		return nil, nil, formatError(file, "", "%d bytes: too short for a safetensors file", len(content))
	}
	size := binary.LittleEndian.Uint64(content)
	if size > maxHeader {
		return nil, nil, formatError(file, "", "header of %d bytes: more than the format's limit of %d", size, maxHeader)
	}
	if size > uint64(len(content)-8) {
		return nil, nil, formatError(file, "", "header of %d bytes in a file of %d: truncated, or not safetensors", size, len(content))
	}
	entries, err := parseHeader(file, content[8:8+size])
	if err != nil {
		return nil, nil, err
	}
	data := content[8+size:]
	return entries, data, checkRanges(file, entries, int64(len(data)))
}

func parseHeader(file string, text []byte) ([]entry, error) {
	s := &scanner{text: text}
	if len(text) == 0 || text[0] != '{' {
		return nil, formatError(file, "", "header is not a JSON object")
	}
	var entries []entry
	seen := map[string]bool{}
	err := s.object(func(key string) error {
		if seen[key] {
			return formatError(file, key, "listed twice")
		}
		seen[key] = true
		if key == "__metadata__" {
			return s.object(func(string) error { _, err := s.str(maxHeader); return err })
		}
		e, err := parseEntry(s, key)
		if err != nil {
			return formatError(file, key, "%v", err)
		}
		entries = append(entries, e)
		return nil
	})
	if err == nil {
		err = s.end()
	}
	if _, ok := err.(*FormatError); err != nil && !ok {
		err = formatError(file, "", "header: %v", err)
	}
	return entries, err
}

// parseEntry reads the value of one tensor. Fields that the format does not know are passed over.
func parseEntry(s *scanner, name string) (entry, error) {
	e := entry{name: name}
	var offsets []int64
	err := s.object(func(key string) (err error) {
		again := false
		switch key {
		case "dtype":
			again = e.typeName != ""
			e.typeName, err = s.name()
		case "shape":
			again = e.shape != nil
			e.shape, err = parseShape(s)
		case "data_offsets":
			again = offsets != nil
			offsets, err = s.integers(2)
		default:
			return s.skip(0)
		}
		if again {
			return fmt.Errorf("%s given twice", key)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	})
	if err != nil {
		return e, err
	}
	if e.typeName == "" || e.shape == nil || len(offsets) != 2 {
		return e, errors.New("needs dtype, shape and two data_offsets")
	}
	e.begin, e.end = offsets[0], offsets[1]
	return e, e.check()
}

func parseShape(s *scanner) ([]int, error) {
	dims, err := s.integers(maxDims)
	if err != nil {
		return nil, err
	}
	shape := make([]int, len(dims))
	for i, d := range dims {
		if d > math.MaxInt {
			return nil, fmt.Errorf("dimension %d too large", d)
		}
		shape[i] = int(d)
	}
	return shape, nil
}

// check compares the offsets with the size that type and shape give.
func (e *entry) check() error {
	t, ok := elementTypes[e.typeName]
	if !ok {
		return fmt.Errorf("unknown dtype %s", quote(e.typeName))
	}
	if e.begin > e.end {
		return fmt.Errorf("data_offsets [%d, %d] run backwards", e.begin, e.end)
	}
	bits := t.bits
	for _, d := range e.shape {
		if d != 0 && bits > math.MaxInt64/int64(d) {
			return fmt.Errorf("shape %v is too large", e.shape)
		}
		bits *= int64(d)
	}
	if bits%8 != 0 || bits/8 != e.end-e.begin {
		return fmt.Errorf("%s %v needs %d bits, data_offsets [%d, %d] hold %d bytes", e.typeName, e.shape, bits, e.begin, e.end, e.end-e.begin)
	}
	return nil
}

// checkRanges sorts entries by place and checks that they tile the data section: no hole, no overlap, nothing left.
func checkRanges(file string, entries []entry, size int64) error {
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
	at := int64(0)
	for i := range entries {
		e := &entries[i]
		switch {
		case e.begin < at:
			return formatError(file, e.name, "data_offsets [%d, %d] overlap tensor %s", e.begin, e.end, quote(entries[i-1].name))
		case e.end > size:
			return formatError(file, e.name, "data_offsets [%d, %d] exceed the %d bytes of data: truncated file?", e.begin, e.end, size)
		case e.begin > at:
			return formatError(file, e.name, "data_offsets [%d, %d] leave a hole after byte %d", e.begin, e.end, at)
		}
		at = e.end
	}
	if at != size {
		return formatError(file, "", "%d bytes of data that no tensor covers", size-at)
	}
	return nil
}
