package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Bounds of what DecodeJSON accepts: nesting, and values in all, each of which may take a kilobyte.
const (
	DecodeDepth  = 100
	DecodeValues = 1 << 18
)

// decoder reads one JSON text.
type decoder struct {
	*json.Decoder
	values int // so far
}

// DecodeJSON turns one JSON text into a Value as Python's json.loads would:
// objects keep their key order (a repeated key keeps its first place and its
// last value), numbers without fraction or exponent are integers.
func DecodeJSON(data []byte) (Value, error) {
	dec := &decoder{Decoder: json.NewDecoder(bytes.NewReader(data))}
	dec.UseNumber()
	v, err := dec.value(0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("JSON: text after the value")
	}
	return v, nil
}

func (dec *decoder) value(depth int) (Value, error) {
	dec.values++
	switch {
	case depth > DecodeDepth:
		return nil, fmt.Errorf("JSON: nested deeper than %d", DecodeDepth)
	case dec.values > DecodeValues:
		return nil, fmt.Errorf("JSON: more than %d values", DecodeValues)
	}
	tok, err := dec.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("JSON: %w", err)
	}
	switch t := tok.(type) {
	case json.Delim:
		if t == '{' {
			return dec.object(depth)
		}
		return dec.array(depth)
	case string:
		return String(t), nil
	case json.Number:
		return decodeNumber(string(t))
	case bool:
		return Bool(t), nil
	}
	return None{}, nil
}

func (dec *decoder) object(depth int) (Value, error) {
	d := NewDict()
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("JSON: %w", err)
		}
		key, ok := tok.(string)
		if !ok {
			return nil, errors.New("JSON: an object key is not a string")
		}
		v, err := dec.value(depth + 1)
		if err != nil {
			return nil, err
		}
		d.Set(key, v)
	}
	return d, dec.end()
}

func (dec *decoder) array(depth int) (Value, error) {
	l := NewList()
	for dec.More() {
		v, err := dec.value(depth + 1)
		if err != nil {
			return nil, err
		}
		l.Items = append(l.Items, v)
	}
	return l, dec.end()
}

func (dec *decoder) end() error {
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("JSON: %w", err)
	}
	return nil
}

// maxDigits bounds integers, as Python does.
const maxDigits = 4300

func decodeNumber(s string) (Value, error) {
	if strings.ContainsAny(s, ".eE") {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			return nil, fmt.Errorf("JSON: %w", err)
		}
		return Float(f), nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return Int(n), nil
	}
	if len(s) > maxDigits {
		return nil, errors.New("JSON: an integer is too long")
	}
	return BigInt(s), nil
}
