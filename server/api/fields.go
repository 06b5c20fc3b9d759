package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
)

// fields reads the members of a JSON object one by one. The first fault is kept and everything after it reads as absent,
// so that a reader is a list of fields with one check behind it. null counts as absent.
type fields struct {
	prefix  string // of field names in errors
	members map[string]json.RawMessage
	err     *Error
}

// parseFields reads the outermost object of a request.
func parseFields(body []byte) *fields {
	f := &fields{}
	var syntax *json.SyntaxError
	switch err := json.Unmarshal(body, &f.members); {
	case errors.As(err, &syntax):
		f.err = badBody("the body is not valid JSON: %v at byte %d", err, syntax.Offset)
	case err != nil || f.members == nil:
		f.err = badBody("the body must be a JSON object, not %s", kindOf(body))
	}
	return f
}

func badBody(format string, a ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Type: TypeInvalid, Code: "invalid_json", Message: fmt.Sprintf(format, a...)}
}

// kindOf names the type of a JSON value.
func kindOf(raw []byte) string {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

func (f *fields) fail(e *Error) {
	if f.err == nil {
		f.err = e
	}
}

// refuse fails with the field's full name in front.
func (f *fields) refuse(name, format string, a ...any) { f.fail(invalid(f.prefix+name, format, a...)) }

func (f *fields) wrongType(name, want string, raw []byte) {
	f.refuse(name, "must be %s, not %s", want, kindOf(raw))
}

// raw returns a member, or nil where it is absent or null.
func (f *fields) raw(name string) json.RawMessage {
	raw := f.members[name]
	if f.err != nil || raw == nil || string(raw) == "null" {
		return nil
	}
	return raw
}

func (f *fields) has(name string) bool { return f.raw(name) != nil }

func (f *fields) boolean(name string, absent bool) bool {
	raw := f.raw(name)
	if raw == nil {
		return absent
	}
	if s := string(raw); s == "true" || s == "false" {
		return s == "true"
	}
	f.wrongType(name, "a boolean", raw)
	return absent
}

func (f *fields) text(name, absent string) string {
	raw := f.raw(name)
	if raw == nil {
		return absent
	}
	s, ok := asText(raw)
	if !ok {
		f.wrongType(name, "a string", raw)
	}
	return s
}

func asText(raw json.RawMessage) (string, bool) {
	var s string
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	return s, json.Unmarshal(raw, &s) == nil
}

// integer reads a 32-bit integer.
func (f *fields) integer(name string, absent int) int {
	return f.count(name, absent, math.MinInt32, math.MaxInt32)
}

// count reads a whole number within [lo, hi].
func (f *fields) count(name string, absent int, lo, hi int64) int {
	raw := f.raw(name)
	if raw == nil {
		return absent
	}
	return int(f.asInteger(name, raw, lo, hi))
}

// asInteger accepts every spelling of a whole number (16, 16.0, 1.6e1) within [lo, hi].
func (f *fields) asInteger(name string, raw json.RawMessage, lo, hi int64) int64 {
	if kindOf(raw) != "a number" {
		f.wrongType(name, "an integer", raw)
		return 0
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		v, e := strconv.ParseFloat(string(raw), 64)
		if e == nil && v != math.Trunc(v) {
			f.refuse(name, "must be an integer, not %s", short(raw))
			return 0
		}
		if e != nil || math.Abs(v) >= 1<<63 {
			f.refuse(name, "%s is outside of [%d, %d]", short(raw), lo, hi)
			return 0
		}
		n = int64(v)
	}
	if n < lo || n > hi {
		f.refuse(name, "%s is outside of [%d, %d]", short(raw), lo, hi)
		return 0
	}
	return n
}

// short is a literal for an error message.
func short(raw []byte) string { return cut(string(raw[:min(len(raw), 44)]), 40) }

// number reads a finite 32-bit floating-point number.
func (f *fields) number(name string, absent float32) float32 {
	raw := f.raw(name)
	if raw == nil {
		return absent
	}
	return f.asNumber(name, raw)
}

func (f *fields) asNumber(name string, raw json.RawMessage) float32 {
	if kindOf(raw) != "a number" {
		f.wrongType(name, "a number", raw)
		return 0
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || math.Abs(v) > math.MaxFloat32 {
		f.refuse(name, "%s is beyond the range of 32-bit floating point", short(raw))
		return 0
	}
	return float32(v)
}

// asArray reads an array of at most limit elements.
func (f *fields) asArray(name string, raw json.RawMessage, limit int) []json.RawMessage {
	if raw[0] != '[' {
		f.wrongType(name, "an array", raw)
		return nil
	}
	var items []json.RawMessage
	count := 0
	for item := range elements(raw) {
		if count++; count <= limit {
			items = append(items, item)
		}
	}
	f.atMost(name, count, limit)
	return items
}

func (f *fields) atMost(name string, count, limit int) {
	if count > limit {
		f.refuse(name, "%d elements, at most %d are supported", count, limit)
	}
}

func element(name string, i int) string { return name + "[" + strconv.Itoa(i) + "]" }

// tokens reads an array of token ids.
func (f *fields) tokens(name string, limit int) []int32 {
	raw := f.raw(name)
	if raw == nil {
		return nil
	}
	return f.asTokens(name, raw, limit)
}

// asTokens takes no memory but the ids': prompts may have millions.
func (f *fields) asTokens(name string, raw json.RawMessage, limit int) []int32 {
	if raw[0] != '[' {
		f.wrongType(name, "an array", raw)
		return nil
	}
	out := []int32{}
	count := 0
	for item := range elements(raw) {
		if count++; count > limit {
			continue
		}
		id, err := strconv.ParseInt(string(item), 10, 32)
		if err != nil || id < 0 {
			id = f.asInteger(element(name, count-1), item, 0, math.MaxInt32)
		}
		if f.err != nil {
			return nil
		}
		out = append(out, int32(id))
	}
	f.atMost(name, count, limit)
	return out
}

// texts reads a string or an array of strings.
func (f *fields) texts(name string, limit int) []string {
	raw := f.raw(name)
	if raw == nil {
		return nil
	}
	if s, ok := asText(raw); ok {
		return []string{s}
	}
	if raw[0] != '[' {
		f.wrongType(name, "a string or an array of strings", raw)
		return nil
	}
	var out []string
	for i, item := range f.asArray(name, raw, limit) {
		s, ok := asText(item)
		if !ok {
			f.wrongType(element(name, i), "a string", item)
			return nil
		}
		out = append(out, s)
	}
	return out
}

// object reads a nested object; absent gives one without members.
func (f *fields) object(name string) *fields {
	o := &fields{prefix: f.prefix + name + "."}
	raw := f.raw(name)
	if raw != nil && (raw[0] != '{' || json.Unmarshal(raw, &o.members) != nil) {
		f.wrongType(name, "an object", raw)
	}
	return o
}

// join takes over the fault of a nested object.
func (f *fields) join(o *fields) {
	if o.err != nil {
		f.fail(o.err)
	}
}
