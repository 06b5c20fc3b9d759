// Package plainjson reads JSON that people write, such as flags and configuration files, and says what is wrong with it in
// words of JSON instead of Go's.
package plainjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// Decode reads text, one JSON value, into v, as json.Unmarshal does. With strict, members of objects that v does not have
// are errors.
func Decode(text []byte, v any, strict bool) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(v); err != nil {
		return Explain(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more behind the JSON value")
	}
	return nil
}

// Explain words an error of encoding/json; others are returned as they are.
func Explain(err error) error {
	var kind *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &kind):
		return errors.New(mismatch(kind))
	case errors.As(err, &syntax):
		return fmt.Errorf("not valid JSON: %w", err)
	case errors.Is(err, io.EOF):
		return errors.New("not valid JSON: it is empty")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("not valid JSON: its end is missing")
	}
	if text, ours := strings.CutPrefix(err.Error(), "json: unknown field "); ours {
		return errors.New("unknown field " + text)
	}
	return err
}

// mismatch is "FIELD must be WANTED, not FOUND".
func mismatch(e *json.UnmarshalTypeError) string {
	var b strings.Builder
	if e.Field != "" {
		b.WriteString(e.Field + " ")
	}
	found, literal := strings.CutPrefix(e.Value, "number ")
	if literal && wanted(e.Type.Kind()) == numberKind(found) {
		fmt.Fprintf(&b, "is out of range: %.40s", found)
		return b.String()
	}
	if name := found; !literal {
		found = map[string]string{"bool": "true or false", "array": "an array", "object": "an object"}[name]
		if found == "" {
			found = "a " + name
		}
	}
	fmt.Fprintf(&b, "must be %s, not %.40s", wanted(e.Type.Kind()), found)
	return b.String()
}

// numberKind is what a literal is, whatever its size.
func numberKind(literal string) string {
	if strings.ContainsAny(literal, ".eE") {
		return "a number"
	}
	return "a whole number"
}

func whole(k reflect.Kind) bool { return k >= reflect.Int && k <= reflect.Uint64 }

func wanted(k reflect.Kind) string {
	switch {
	case whole(k):
		return "a whole number"
	case k == reflect.Float32 || k == reflect.Float64:
		return "a number"
	case k == reflect.Bool:
		return "true or false"
	case k == reflect.String:
		return "a string"
	case k == reflect.Slice || k == reflect.Array:
		return "an array"
	}
	return "an object"
}
