package weights

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

// maxNesting bounds values that are skipped; headers need two levels.
const maxNesting = 32

// maxName bounds names of tensors, fields and files, and numbers, in bytes of the file.
const maxName = 4096

// scanner reads JSON strictly and in one pass. Unlike encoding/json it sees duplicate keys, compares keys exactly and
// takes integers only where integers belong. Its errors carry the byte offset.
type scanner struct {
	text []byte
	at   int
}

func (s *scanner) fail(format string, args ...any) error {
	return fmt.Errorf("%s at byte %d", fmt.Sprintf(format, args...), s.at)
}

// next skips white space and returns the byte there, 0 at the end.
func (s *scanner) next() byte {
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) expect(c byte) error {
	if s.next() != c {
		return s.fail("want %q", c)
	}
	s.at++
	return nil
}

// end checks that only white space is left.
func (s *scanner) end() error {
	if s.next(); s.at != len(s.text) {
		return s.fail("more data after the JSON value")
	}
	return nil
}

// list reads items between open and close, separated by commas.
func (s *scanner) list(open, close byte, item func() error) error {
	if err := s.expect(open); err != nil {
		return err
	}
	if s.next() == close {
		s.at++
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if s.next() != ',' {
			return s.expect(close)
		}
		s.at++
	}
}

// object calls member with each key, the scanner standing at the value.
func (s *scanner) object(member func(key string) error) error {
	return s.list('{', '}', func() error {
		key, err := s.name()
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		return member(key)
	})
}

// name reads a string of at most maxName bytes.
func (s *scanner) name() (string, error) { return s.str(maxName) }

// str reads a string of valid UTF-8 and at most limit bytes.
func (s *scanner) str(limit int) (string, error) {
	if err := s.expect('"'); err != nil {
		return "", fmt.Errorf("%w (a string)", err)
	}
	start, escaped := s.at, false
	for ; s.at < len(s.text) && s.at-start <= limit; s.at++ {
		switch c := s.text[s.at]; {
		case c == '"':
			raw := s.text[start-1 : s.at+1]
			s.at++
			return unquote(raw, escaped)
		case c == '\\':
			escaped = true
			s.at++
		case c < ' ':
			return "", s.fail("control character in a string")
		}
	}
	if s.at-start > limit {
		return "", s.fail("string longer than %d bytes", limit)
	}
	return "", s.fail("unfinished string")
}

func unquote(raw []byte, escaped bool) (string, error) {
	if !utf8.Valid(raw) {
		return "", errors.New("string is not UTF-8")
	}
	if !escaped {
		return string(raw[1 : len(raw)-1]), nil
	}
	var v string
	if err := json.Unmarshal(raw, &v); err != nil {
		return "", fmt.Errorf("bad string %s: %w", quote(string(raw)), err)
	}
	return v, nil
}

// integer reads a number that is an integer in [0, MaxInt64].
func (s *scanner) integer() (int64, error) {
	s.next()
	start, v := s.at, int64(0)
	for ; s.at < len(s.text) && '0' <= s.text[s.at] && s.text[s.at] <= '9'; s.at++ {
		digit := int64(s.text[s.at] - '0')
		if v > (math.MaxInt64-digit)/10 {
			return 0, s.fail("number too large")
		}
		v = v*10 + digit
	}
	if s.at == start || s.text[start] == '0' && s.at > start+1 {
		return 0, s.fail("want a non-negative integer")
	}
	return v, nil
}

// integers reads an array of at most limit integers; the slice is not nil.
func (s *scanner) integers(limit int) ([]int64, error) {
	values := make([]int64, 0, 2)
	err := s.list('[', ']', func() error {
		if len(values) == limit {
			return s.fail("more than %d numbers", limit)
		}
		v, err := s.integer()
		values = append(values, v)
		return err
	})
	return values, err
}

// skip passes over any value.
func (s *scanner) skip(depth int) error {
	if depth > maxNesting {
		return s.fail("nested deeper than %d", maxNesting)
	}
	switch s.next() {
	case '{':
		return s.object(func(string) error { return s.skip(depth + 1) })
	case '[':
		return s.list('[', ']', func() error { return s.skip(depth + 1) })
	case '"':
		_, err := s.str(maxHeader)
		return err
	}
	return s.literal()
}

// literal passes over a number, true, false or null.
func (s *scanner) literal() error {
	rest := s.text[s.at:]
	size := bytes.IndexAny(rest[:min(len(rest), maxName)], ",]} \t\r\n")
	if size < 0 {
		size = min(len(rest), maxName)
	}
	if !json.Valid(rest[:size]) {
		return s.fail("not JSON")
	}
	s.at += size
	return nil
}
