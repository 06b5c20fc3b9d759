package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// cursor walks JSON text. The vocabulary and the merges are read through it, since
// they are most of a file of ten megabytes or more and encoding/json needs most of a
// second for them; everything small is cut out with raw and left to encoding/json.
type cursor struct {
	data []byte
	pos  int
}

var errEnd = errors.New("unexpected end of JSON")

// peek is the next byte after white space, 0 at the end.
func (c *cursor) peek() byte {
	for ; c.pos < len(c.data); c.pos++ {
		switch b := c.data[c.pos]; b {
		case ' ', '\t', '\r', '\n':
		default:
			return b
		}
	}
	return 0
}

func (c *cursor) expect(want byte) error {
	if got := c.peek(); got != want {
		return c.unexpected(fmt.Sprintf("%q", want))
	}
	c.pos++
	return nil
}

func (c *cursor) unexpected(want string) error {
	if c.pos >= len(c.data) {
		return errEnd
	}
	return fmt.Errorf("byte %d: got %q, want %s", c.pos, c.data[c.pos], want)
}

// end reports anything behind the value that was read.
func (c *cursor) end() error {
	if c.peek(); c.pos < len(c.data) {
		return c.unexpected("end of value")
	}
	return nil
}

// list walks the elements between open and close, separated by commas.
func (c *cursor) list(open, close byte, element func() error) error {
	if err := c.expect(open); err != nil {
		return err
	}
	if c.peek() == close {
		c.pos++
		return nil
	}
	for {
		if err := element(); err != nil {
			return err
		}
		if c.peek() == close {
			c.pos++
			return nil
		}
		if err := c.expect(','); err != nil {
			return err
		}
	}
}

// object calls field with the cursor in front of each value.
func (c *cursor) object(field func(key string) error) error {
	return c.list('{', '}', func() error {
		key, err := c.str()
		if err != nil {
			return err
		}
		if err := c.expect(':'); err != nil {
			return err
		}
		return field(key)
	})
}

// str reads a string value.
func (c *cursor) str() (string, error) {
	if c.peek() != '"' {
		return "", c.unexpected("a string")
	}
	start := c.pos
	escaped, err := c.skipString()
	if err != nil {
		return "", err
	}
	quoted := c.data[start:c.pos]
	body := quoted[1 : len(quoted)-1]
	if !escaped {
		if !utf8.Valid(body) {
			return "", fmt.Errorf("byte %d: string is not valid UTF-8", start)
		}
		return string(body), nil
	}
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		return "", fmt.Errorf("byte %d: %w", start, err)
	}
	return s, nil
}

// skipString passes a string, the cursor being at its quote.
func (c *cursor) skipString() (escaped bool, err error) {
	for i := c.pos + 1; i < len(c.data); i++ {
		switch b := c.data[i]; {
		case b == '"':
			c.pos = i + 1
			return escaped, nil
		case b == '\\':
			escaped = true
			i++
		case b < ' ':
			return false, fmt.Errorf("byte %d: control character %q in a string", i, b)
		}
	}
	return false, errEnd
}

// integer reads a non-negative whole number.
func (c *cursor) integer() (int, error) {
	c.peek()
	start := c.pos
	for c.pos < len(c.data) && c.data[c.pos] >= '0' && c.data[c.pos] <= '9' {
		c.pos++
	}
	digits := c.data[start:c.pos]
	if len(digits) == 0 || len(digits) > 1 && digits[0] == '0' {
		c.pos = start
		return 0, c.unexpected("a non-negative whole number")
	}
	return strconv.Atoi(string(digits))
}

// raw passes one value and returns its text; only its extent is checked.
func (c *cursor) raw() ([]byte, error) {
	c.peek()
	start, depth := c.pos, 0
	for c.pos < len(c.data) {
		switch b := c.data[c.pos]; b {
		case '"':
			if _, err := c.skipString(); err != nil {
				return nil, err
			}
		case '{', '[':
			depth++
			c.pos++
		case '}', ']':
			depth--
			c.pos++
		default:
			c.skipScalar(depth == 0)
		}
		if depth < 0 || c.pos == start {
			return nil, c.unexpected("a value")
		}
		if depth == 0 {
			return c.data[start:c.pos], nil
		}
	}
	return nil, errEnd
}

// skipScalar passes everything up to the next string or bracket; outside of a
// container, only up to what ends a value.
func (c *cursor) skipScalar(outside bool) {
	for ; c.pos < len(c.data); c.pos++ {
		switch c.data[c.pos] {
		case '{', '}', '[', ']', '"':
			return
		case ',', ':', ' ', '\t', '\r', '\n':
			if outside {
				return
			}
		}
	}
}

// fields splits a JSON object into the raw text of its values.
func fields(data []byte) (map[string][]byte, error) {
	c := cursor{data: data}
	found := map[string][]byte{}
	err := c.object(func(key string) error {
		if _, twice := found[key]; twice {
			return fmt.Errorf("field %q appears twice", key)
		}
		value, err := c.raw()
		if err != nil {
			return fmt.Errorf("field %q: %w", key, err)
		}
		found[key] = value
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, c.end()
}
