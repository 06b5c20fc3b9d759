package configjson

import (
	"math"
	"strings"
	"testing"
)

func parseText(t *testing.T, text string) *Object {
	t.Helper()
	o, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestLenient(t *testing.T) {
	o := parseText(t, "\xef\xbb\xbf"+`{"a": [0.0, Infinity, -Infinity], "s": "Infinity \" NaN", "n": 1, "n": 8, "z": null, "f": 2.0, "x": NaN, "big": 1e400}`)
	a := o.Floats(3, "a")
	if len(a) != 3 || !math.IsInf(a[1], 1) || !math.IsInf(a[2], -1) {
		t.Errorf("a = %v", a)
	}
	if s := o.StringOr("", "s"); s != `Infinity " NaN` {
		t.Errorf("s = %q", s)
	}
	if n := o.Int(0, 10, "n"); n != 8 {
		t.Errorf("duplicate key: %d, want the last", n)
	}
	if o.Has("z") || o.IntOr(7, 0, 9, "z") != 7 {
		t.Error("null is not absent")
	}
	if o.Int(0, 10, "f") != 2 || o.Int(0, 10, "z", "f") != 2 {
		t.Error("2.0 is not 2")
	}
	if v := o.FloatOr(0, 0, math.Inf(1), "big"); !math.IsInf(v, 1) {
		t.Errorf("big = %v", v)
	}
	if err := o.Err(); err != nil {
		t.Fatal(err)
	}
	o.FloatOr(0, 0, 1, "x")
	if err := o.Err(); err == nil || !strings.Contains(err.Error(), "x: ") {
		t.Errorf("NaN for a key that is read: %v", err)
	}
}

func TestErrorsNameTheKey(t *testing.T) {
	cases := []struct {
		text string
		ask  func(*Object)
		want string
	}{
		{`{}`, func(o *Object) { o.Int(1, 2, "a", "b") }, "config.json: a or b: is missing"},
		{`{"a": 3}`, func(o *Object) { o.Int(1, 2, "a") }, "config.json: a: 3 is outside 1..2"},
		{`{"a": -1e30}`, func(o *Object) { o.Int(1, 2, "a") }, "a: -1e30 is outside"},
		{`{"a": Infinity}`, func(o *Object) { o.Int(1, 2, "a") }, "a: 1e999 is outside"},
		{`{"a": 1.5}`, func(o *Object) { o.Int(1, 2, "a") }, "a: 1.5 is not a whole number"},
		{`{"a": "1"}`, func(o *Object) { o.Int(1, 2, "a") }, `a: "1" is not a whole number`},
		{`{"a": {"b": true}}`, func(o *Object) { o.Object("a").Refuse("b") }, "config.json: a: b: true is not supported"},
		{`{"a": 1}`, func(o *Object) { o.Object("a") }, "a: 1 is not an object"},
		{`{"a": 1}`, func(o *Object) { o.BoolOr(false, "a") }, "a: 1 is not true or false"},
		{`{"a": "gelu"}`, func(o *Object) { o.OneOf("a", "silu") }, `a: "gelu" is not supported (only silu)`},
		{`{"a": ["x", 2]}`, func(o *Object) { o.Strings(5, "a") }, "a: element 1, 2, is not a string"},
		{`{"a": ["x", "y"]}`, func(o *Object) { o.Strings(1, "a") }, "a: 2 elements, at most 1"},
		{`{"a": [1, 9]}`, func(o *Object) { o.IDs(5, 9, "a") }, "a: 9 is not a token id below 9"},
		{`{"a": -1}`, func(o *Object) { o.IDs(5, 9, "a") }, "a: -1 is not a token id below 9"},
	}
	for _, c := range cases {
		o := parseText(t, c.text)
		c.ask(o)
		if err := o.Err(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.text, err, c.want)
		}
	}
}

func TestFirstErrorSticks(t *testing.T) {
	o := parseText(t, `{"a": 1, "b": {"c": 2}}`)
	o.Object("b").Int(5, 6, "c")
	o.Int(5, 6, "a")
	if err := o.Err(); err == nil || !strings.Contains(err.Error(), "b: c: 2") {
		t.Errorf("error %v, want the first", err)
	}
}

func TestMalformed(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 200000)
	for _, text := range []string{"", "[]", "1", "null", "{", `{"a": }`, `{} {}`, `{"a": Inf}`, `{"a": nan}`, deep, `{"a": "` + "\x00" + `"}`} {
		if o, err := Parse([]byte(text)); err == nil {
			t.Errorf("%.20q: accepted as %v", text, o.values)
		}
	}
	if _, err := Parse(make([]byte, MaxBytes+1)); err == nil {
		t.Error("no limit on the size")
	}
}

func TestIDs(t *testing.T) {
	o := parseText(t, `{"one": 7, "many": [1, 2], "none": null}`)
	if got := o.IDs(4, 10, "one"); len(got) != 1 || got[0] != 7 {
		t.Errorf("one: %v", got)
	}
	if got := o.IDs(4, 10, "many"); len(got) != 2 || got[1] != 2 {
		t.Errorf("many: %v", got)
	}
	if got := o.IDs(4, 10, "none"); got != nil || o.Err() != nil {
		t.Errorf("none: %v, %v", got, o.Err())
	}
}

func TestQuant(t *testing.T) {
	cases := []struct {
		config, file, method string
		fp8, ok              bool
	}{
		{`{}`, ``, "", false, true},
		{`{}`, `{"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}`, "modelopt", true, true},
		{`{"quantization_config": {"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}}`, ``, "modelopt", true, true},
		{`{"quantization_config": {"quant_method": "modelopt", "kv_cache_scheme": null}}`, ``, "modelopt", false, true},
		{`{"quantization_config": {"quant_method": "gptq"}}`, ``, "gptq", false, false},
		{`{"quantization": {"bits": 8}, "quantization_config": {"bits": 8}}`, ``, "unnamed", false, false},
	}
	for _, c := range cases {
		o := parseText(t, c.config)
		q := o.Quant([]byte(c.file))
		if err := o.Err(); err != nil || q.Method != c.method || q.FP8KV != c.fp8 || (q.Check() == nil) != c.ok {
			t.Errorf("%s %s: %+v, %v, %v", c.config, c.file, q, err, q.Check())
		}
	}
}

func TestQuantErrorsNameTheFile(t *testing.T) {
	for _, file := range []string{`{`, `{"quantization": 1}`, `{"quantization": {"kv_cache_quant_algo": 8}}`} {
		o := parseText(t, `{}`)
		o.Quant([]byte(file))
		if err := o.Err(); err == nil || !strings.HasPrefix(err.Error(), "hf_quant_config.json: ") {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"a": [Infinity, NaN, "x\"NaN"], "b": {"c": 1e999}}`))
	f.Add([]byte(`{"a": "\`))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := Parse(data)
		if err != nil {
			return
		}
		for key := range o.values {
			o.IntOr(0, 0, 9, key)
			o.Strings(3, key)
			o.IDs(3, 9, key)
			if c := o.Object(key); c != nil {
				c.Quant(nil)
			}
		}
	})
}
