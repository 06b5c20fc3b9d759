package configjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"reprise/internal/plainjson"
)

// MaxBytes is the largest file that is read: real ones have at most 1 MB.
const MaxBytes = 16 << 20

// Parse reads the text of config.json. Errors begin with that name.
func Parse(data []byte) (*Object, error) { return parse("config.json", data) }

// parse reads one JSON object of the named file.
func parse(name string, data []byte) (*Object, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("%s: %d bytes, at most %d", name, len(data), MaxBytes)
	}
	d := json.NewDecoder(bytes.NewReader(strict(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")))))
	d.UseNumber()
	var values map[string]any
	if err := d.Decode(&values); err != nil {
		return nil, fmt.Errorf("%s: %w", name, plainjson.Explain(err))
	}
	if values == nil {
		return nil, fmt.Errorf("%s: null is not an object", name)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: more after the object", name)
	}
	return &Object{name: name, values: values, first: new(error)}, nil
}

// Numbers that Python writes and JSON does not know. 1e999 is a JSON number that overflows to infinity; NaN becomes a
// string, since no key may be NaN.
var bare = []struct{ from, to string }{{"Infinity", "1e999"}, {"NaN", `"NaN"`}}

// strict rewrites the bare numbers outside strings.
func strict(data []byte) []byte {
	out := make([]byte, 0, len(data))
	quoted := false
	for i := 0; i < len(data); i++ {
		c := data[i]
		if quoted && c == '\\' && i+1 < len(data) {
			out = append(out, c, data[i+1])
			i++
			continue
		}
		if c == '"' {
			quoted = !quoted
		}
		if word, number := bareAt(data[i:]); !quoted && word > 0 {
			out = append(out, number...)
			i += word - 1
			continue
		}
		out = append(out, c)
	}
	return out
}

// bareAt is the length of the bare number that data starts with, or 0, and its replacement.
func bareAt(data []byte) (int, string) {
	for _, b := range bare {
		if bytes.HasPrefix(data, []byte(b.from)) {
			return len(b.from), b.to
		}
	}
	return 0, ""
}
