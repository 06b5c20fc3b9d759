package api

import (
	"bytes"
	"encoding/json"
	"iter"
	"strings"
)

const jsonSpace = " \t\r\n"

// elements yields the elements of a valid JSON array as they are written, white space around them left out. There is no
// list of them: one request may have millions.
func elements(array json.RawMessage) iter.Seq[json.RawMessage] {
	return func(yield func(json.RawMessage) bool) {
		rest := bytes.TrimLeft(array[1:], jsonSpace)
		for rest[0] != ']' {
			n := valueLength(rest)
			if !yield(json.RawMessage(rest[:n:n])) {
				return
			}
			rest = bytes.TrimLeft(rest[n:], jsonSpace+",")
		}
	}
}

// valueLength is the length of the valid JSON value that text begins with; an array ends behind it.
func valueLength(text []byte) int {
	depth, quoted := 0, false
	for i := 0; ; i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			if quoted = !quoted; !quoted && depth == 0 {
				return i + 1
			}
		case quoted:
		case c == '[' || c == '{':
			depth++
		case depth == 0 && strings.IndexByte(jsonSpace+",]", c) >= 0:
			return i
		case c == ']' || c == '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
}
