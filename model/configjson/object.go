package configjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Object is a JSON object whose keys are asked for one by one. The first error sticks, for all objects of a file; the
// methods return their default then. Where several keys are given they are aliases: the first that is present and not
// null counts.
type Object struct {
	name   string // for errors: "config.json", "config.json: text_config"
	values map[string]any
	first  *error
}

// Err is the first error.
func (o *Object) Err() error { return *o.first }

// Fail makes the first error of the file, about a key.
func (o *Object) Fail(key, format string, args ...any) {
	if *o.first == nil {
		*o.first = fmt.Errorf("%s: %s: %s", o.name, key, fmt.Sprintf(format, args...))
	}
}

// Has reports whether the key is present and not null.
func (o *Object) Has(key string) bool { return o.values[key] != nil }

// IsString reports whether the key holds a string.
func (o *Object) IsString(key string) bool {
	_, ok := o.values[key].(string)
	return ok
}

// value is the first alias that is present.
func (o *Object) value(keys []string) (key string, v any) {
	for _, k := range keys {
		if v := o.values[k]; v != nil {
			return k, v
		}
	}
	return keys[0], nil
}

// Require fails unless one of the keys is present.
func (o *Object) Require(keys ...string) {
	if _, v := o.value(keys); v == nil {
		o.Fail(strings.Join(keys, " or "), "is missing")
	}
}

// Int is a required whole number in low..high.
func (o *Object) Int(low, high int, keys ...string) int {
	o.Require(keys...)
	return o.IntOr(low, low, high, keys...)
}

// IntOr is Int, or missing without the key.
func (o *Object) IntOr(missing, low, high int, keys ...string) int {
	key, v := o.value(keys)
	if v == nil {
		return missing
	}
	f, ok := number(v)
	if !ok || f != math.Trunc(f) {
		o.Fail(key, "%s is not a whole number", show(v))
		return missing
	}
	if f < float64(low) || f > float64(high) {
		o.Fail(key, "%s is outside %d..%d", show(v), low, high)
		return missing
	}
	return int(f)
}

// FloatOr is a number in low..high (which may be infinite), or missing without the key.
func (o *Object) FloatOr(missing, low, high float64, keys ...string) float64 {
	key, v := o.value(keys)
	if v == nil {
		return missing
	}
	f, ok := number(v)
	if !ok {
		o.Fail(key, "%s is not a number", show(v))
		return missing
	}
	if f < low || f > high {
		o.Fail(key, "%s is outside %g..%g", show(v), low, high)
		return missing
	}
	return f
}

// BoolOr is true or false, or missing without the key.
func (o *Object) BoolOr(missing bool, keys ...string) bool {
	key, v := o.value(keys)
	if v == nil {
		return missing
	}
	b, ok := v.(bool)
	if !ok {
		o.Fail(key, "%s is not true or false", show(v))
		return missing
	}
	return b
}

// StringOr is a string, or missing without the key.
func (o *Object) StringOr(missing string, keys ...string) string {
	key, v := o.value(keys)
	if v == nil {
		return missing
	}
	s, ok := v.(string)
	if !ok {
		o.Fail(key, "%s is not a string", show(v))
		return missing
	}
	return s
}

// OneOf is a string that must be one of the allowed, or the first of them without the key.
func (o *Object) OneOf(key string, allowed ...string) string {
	s := o.StringOr(allowed[0], key)
	if o.Err() == nil && !slices.Contains(allowed, s) {
		o.Fail(key, "%s is not supported (only %s)", show(s), strings.Join(allowed, ", "))
	}
	return s
}

// Refuse fails if a switch for something that is not supported is on.
func (o *Object) Refuse(keys ...string) {
	for _, k := range keys {
		if o.BoolOr(false, k) {
			o.Fail(k, "true is not supported")
		}
	}
}

// Strings is a list of at most limit strings; nil without the key.
func (o *Object) Strings(limit int, keys ...string) []string {
	key, list := o.list(limit, keys)
	var out []string
	for i, v := range list {
		s, ok := v.(string)
		if !ok {
			o.Fail(key, "element %d, %s, is not a string", i, show(v))
			return nil
		}
		out = append(out, s)
	}
	return out
}

// Floats is a list of at most limit numbers, which may be infinite; nil without the key.
func (o *Object) Floats(limit int, keys ...string) []float64 {
	key, list := o.list(limit, keys)
	var out []float64
	for i, v := range list {
		f, ok := number(v)
		if !ok {
			o.Fail(key, "element %d, %s, is not a number", i, show(v))
			return nil
		}
		out = append(out, f)
	}
	return out
}

// IDs is a token id in 0..vocab-1, or a list of at most limit of them; nil without the key.
func (o *Object) IDs(limit, vocab int, key string) []int32 {
	v := o.values[key]
	if f, ok := number(v); ok {
		v = []any{json.Number(strconv.FormatFloat(f, 'f', -1, 64))}
	}
	if v == nil {
		return nil
	}
	one := Object{o.name, map[string]any{key: v}, o.first}
	var out []int32
	for _, f := range one.Floats(limit, key) {
		if f != math.Trunc(f) || f < 0 || f >= float64(vocab) {
			o.Fail(key, "%g is not a token id below %d", f, vocab)
			return nil
		}
		out = append(out, int32(f))
	}
	return out
}

func (o *Object) list(limit int, keys []string) (string, []any) {
	key, v := o.value(keys)
	if v == nil {
		return key, nil
	}
	list, ok := v.([]any)
	if !ok {
		o.Fail(key, "%s is not a list", show(v))
	}
	if len(list) > limit {
		o.Fail(key, "%d elements, at most %d", len(list), limit)
		return key, nil
	}
	return key, list
}

// Object is the object under the first of the keys that is present, or nil.
func (o *Object) Object(keys ...string) *Object {
	key, v := o.value(keys)
	if v == nil {
		return nil
	}
	m, ok := v.(map[string]any)
	if !ok {
		o.Fail(key, "%s is not an object", show(v))
		return nil
	}
	return &Object{o.name + ": " + key, m, o.first}
}

// number widens a JSON number; overflow gives an infinity.
func number(v any) (float64, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(n), 64)
	return f, err == nil || errors.Is(err, strconv.ErrRange)
}

// show is a value as an error message has room for it.
func show(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		text = fmt.Append(nil, v)
	}
	if len(text) > 40 {
		text = append(text[:40:40], "..."...)
	}
	return string(text)
}
