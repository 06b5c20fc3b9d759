package jinja

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// hostile are templates that would hang, crash or eat memory without limits.
// deep marks those whose source itself nests too deep.
func hostile() map[string]string {
	nest := func(open, middle, end string, n int) string {
		return strings.Repeat(open, n) + middle + strings.Repeat(end, n)
	}
	return map[string]string{
		"repeat string":     "{{ 'x' * 1000000000 }}",
		"repeat huge":       "{{ 'xy' * 9223372036854775807 }}",
		"repeat list":       "{{ [1] * 1000000000 }}",
		"range":             "{{ range(1000000000) }}",
		"nested loops":      nest("{% for i in range(100000) %}", "x", "{% endfor %}", 4),
		"nested replace":    "{% set ns = namespace(s='aaaaaaaaaa') %}{% for i in range(100) %}{% set ns.s = ns.s.replace('a', 'aaaaaaaaaa') %}{% endfor %}",
		"doubling":          "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
		"doubling list":     "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
		"shared list":       "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
		"shared json":       "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s|tojson }}",
		"shared compare":    "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(100) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
		"deep value":        "{% set ns = namespace(s=[]) %}{% for i in range(100000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}",
		"deep compare":      "{% set ns = namespace(s=[], r=[]) %}{% for i in range(90000) %}{% set ns.s = [ns.s] %}{% set ns.r = [ns.r] %}{% endfor %}{{ ns.s == ns.r }}",
		"self reference":    "{% set ns = namespace() %}{% set ns.n = ns %}{{ ns }}",
		"macro recursion":   "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"macro tree":        "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n > 0 }}{% endmacro %}{{ f(60) }}",
		"caller recursion":  "{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f() %}{{ g() }}{% endcall %}{% endmacro %}{{ g() }}",
		"parentheses":       "{{ " + nest("(", "1", ")", 100000) + " }}",
		"brackets":          "{{ " + nest("[", "1", "]", 100000) + " }}",
		"not chain":         "{{ " + strings.Repeat("not ", 100000) + "1 }}",
		"minus chain":       "{{ " + strings.Repeat("-", 100000) + "1 }}",
		"plus chain":        "{{ 1" + strings.Repeat("+1", 100000) + " }}",
		"filter chain":      "{{ 1" + strings.Repeat("|string", 100000) + " }}",
		"attribute chain":   "{{ a" + strings.Repeat(".a", 100000) + " }}",
		"call chain":        "{{ a" + strings.Repeat("()", 100000) + " }}",
		"condition chain":   "{{ 1" + strings.Repeat(" if 1 else 1", 50000) + " }}",
		"if nesting":        nest("{% if 1 %}", "x", "{% endif %}", 50000),
		"target nesting":    "{% set " + nest("(", "a", ")", 100000) + " = 1 %}",
		"scope depth":       nest("{% for i in [1] %}", "{% for j in range(100000) %}{% for k in range(100000) %}{{ u }}{{ u }}{{ u }}{% endfor %}{% endfor %}", "{% endfor %}", 90),
		"many names":        "{{ dict(" + namedArgs(90000) + ") }}",
		"strftime":          "{{ strftime_now('%c' * 20000000) }}",
		"escape":            "{{ ('<' * 60000000)|e|length }}",
		"json quotes":       "{{ ('\\x01' * 60000000)|tojson|length }}",
		"source size":       strings.Repeat("x", 2<<20),
		"center":            "{{ 'x'.center(1000000000) }}",
		"zfill":             "{{ 'x'.zfill(1000000000) }}",
		"percent width":     "{{ '%1000000000d' % 1 }}",
		"format width":      "{{ '{:1000000000}'.format(1) }}",
		"format growth":     "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = '%s%s' % (ns.s, ns.s) %}{% endfor %}",
		"indent":            "{{ 'a\\nb'|indent(1000000000) }}",
		"json indent":       "{{ [[1]]|tojson(indent=1000000000) }}",
		"join growth":       "{% set ns = namespace(s='xx') %}{% for i in range(100) %}{% set ns.s = ns.s|join(ns.s) %}{% endfor %}",
		"output":            "{% for i in range(100000) %}{% for j in range(100000) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' }}{% endfor %}{% endfor %}",
		"block set growth":  "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set s %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = s %}{% endfor %}",
		"contains":          "{% set s = 'a' * 60000000 %}{% for i in range(100000) %}{% if 'b' in s %}{% endif %}{% endfor %}",
		"length":            "{% set s = 'a' * 60000000 %}{% for i in range(100000) %}{{ s|length }}{% endfor %}",
		"index":             "{% set s = 'a' * 60000000 %}{% for i in range(100000) %}{{ s[-1] }}{% endfor %}",
		"strip":             "{% set s = ' ' * 60000000 %}{% for i in range(100000) %}{{ s.strip() }}{% endfor %}",
		"split":             "{{ ('a ' * 30000000).split() }}",
		"rsplit":            "{{ ('a' * 60000000).rsplit('a') }}",
		"splitlines":        "{{ ('\\n' * 60000000).splitlines() }}",
		"sort":              "{% set l = range(100000)|list %}{% for i in range(1000) %}{{ l|sort|length }}{% endfor %}",
		"batch":             "{{ [1]|batch(100000, 'x')|list|batch(100000, 'x')|list }}{% for i in range(1000) %}{{ [1]|batch(100000, 'x')|list }}{% endfor %}",
		"map":               "{% set s = 'a' * 1000000 %}{{ range(100000)|map('replace', '', s)|list }}",
		"spread":            "{% macro m() %}{{ varargs|length }}{{ m(*varargs) }}{% endmacro %}{{ m(*range(100000)) }}",
		"upper":             "{% for i in range(100000) %}{{ ('a' * 1000000)|upper|length }}{% endfor %}",
		"tuple compare":     "{% set l = [range(100000)|list] * 1000 %}{{ l == l|list }}{% for x in l %}{{ x == l[0] }}{% endfor %}",
		"dict copies":       "{% set d = dict(range(1000)|map('string')|map('list')|map('batch', 2, 1)|map('list')|map('first')|list) %}{% for i in range(100000) %}{% set e = dict(d) %}{% endfor %}" + strings.Repeat("{% for i in range(100000) %}{{ i }}{% endfor %}", 200),
		"groupby":           "{% for i in range(1000) %}{{ range(100000)|map('string')|groupby('x', default='y')|length }}{% endfor %}",
		"find":              "{% set s = 'a' * 60000000 %}{% for i in range(100000) %}{{ s.find('b') }}{% endfor %}",
		"list index string": "{% set s = 'a' * 4000000 %}{% for i in range(100000) %}{{ s|list|length }}{% endfor %}",
	}
}

func namedArgs(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "a%d=1,", i)
	}
	return b.String()
}

// fullCost names the cases run under the default limits: the slowest of them.
var fullCost = map[string]bool{"groupby": true, "scope depth": true, "macro tree": true, "shared list": true, "upper": true}

// renderHostile renders under a tenth of the default limits, or all of them.
func renderHostile(source string, full bool) (string, error) {
	limits := DefaultLimits()
	if !full {
		limits.Steps /= 10
		limits.AllocBytes /= 10
		limits.OutputBytes /= 10
	}
	tmpl, err := Parse(source, limits)
	if err != nil {
		return "", err
	}
	return tmpl.Render(nil, nil)
}

// TestHostile wants an error within seconds and bounded memory for each.
func TestHostile(t *testing.T) {
	for name, source := range hostile() {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			out, err := renderHostile(source, fullCost[name] && !testing.Short())
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Errorf("rendered %.60q, want an error", out)
			}
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("took %v", took)
			}
			if grown := (after.TotalAlloc - before.TotalAlloc) >> 20; grown > 6<<10 {
				t.Errorf("allocated %d MiB in total", grown)
			}
			if testing.Verbose() {
				t.Logf("%v, %d MiB: %.90v", time.Since(start), (after.TotalAlloc-before.TotalAlloc)>>20, err)
			}
		})
	}
}

// TestErrors checks the kinds and places of errors.
func TestErrors(t *testing.T) {
	_, err := renderCase("\n\n{{ raise_exception('no ' ~ 1) }}", nil)
	var raised *RaisedError
	var placed *Error
	if !errors.As(err, &raised) || raised.Message != "no 1" || !errors.As(err, &placed) || placed.Line != 3 {
		t.Errorf("raise_exception gave %v", err)
	}
	_, err = renderCase("{{ 'x' * 1000000000 }}", nil)
	var limit *LimitError
	if !errors.As(err, &limit) {
		t.Errorf("a limit gave %v", err)
	}
	_, err = renderCase("a\n{% if %}", nil)
	if !errors.As(err, &placed) || placed.Line != 2 {
		t.Errorf("a syntax error gave %v", err)
	}
	small, err := Parse("{% for i in range(100) %}{{ i }}{% endfor %}", Limits{Steps: 50})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = small.Render(nil, nil); !errors.As(err, &limit) {
		t.Errorf("50 steps gave %v", err)
	}
}

func TestDecodeJSON(t *testing.T) {
	for in, want := range map[string]string{
		`{"b":1,"a":{"z":1.0,"y":[true,null]}}`:             "{'b': 1, 'a': {'z': 1.0, 'y': [True, None]}}",
		`{"a":1,"b":2,"a":3}`:                               "{'a': 3, 'b': 2}",
		`[1e2, -0, 12345678901234567890, 1E400]`:            "[100.0, 0, 12345678901234567890, inf]",
		`"\ud800x"`:                                         "'\ufffdx'",
		strings.Repeat("[", 101) + strings.Repeat("]", 101): "[" + strings.Repeat("[", 100) + strings.Repeat("]", 101),
		strings.Repeat("[", 102) + strings.Repeat("]", 102): "",
		"[" + strings.Repeat("0,", DecodeValues-1) + "0]":   "",
		`{"a":1} x`: "", `{"a" 1}`: "", `[1,]`: "", ``: "", `{`: "", `nul`: "", `[1 2]`: "", `{"a":1,}`: "",
	} {
		v, err := DecodeJSON([]byte(in))
		if want == "" {
			if err == nil {
				t.Errorf("%.40q decoded to %v", in, v)
			}
			continue
		}
		if err != nil {
			t.Errorf("%.40q: %v", in, err)
			continue
		}
		if got, err := newMachine(Limits{}).repr(v); err != nil || got != want {
			t.Errorf("%.40q is %s (%v), want %s", in, got, err, want)
		}
	}
}

// TestParallel renders one template from several goroutines.
func TestParallel(t *testing.T) {
	tmpl, err := Parse("{% set ns = namespace(n=0) %}{% for i in l %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}{{ l|sort }}", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	vars := map[string]Value{"l": NewList(Int(3), Int(1), Int(2))}
	results := make(chan string)
	for range 8 {
		go func() {
			out, err := tmpl.Render(vars, nil)
			results <- fmt.Sprint(out, err)
		}()
	}
	for range 8 {
		if got := <-results; got != "6[1, 2, 3]<nil>" {
			t.Errorf("got %q", got)
		}
	}
}

// FuzzRender wants no panic and no unbounded work for any template.
func FuzzRender(f *testing.F) {
	for _, c := range readCases(f, "snippets.jsonl.zst")[1:] {
		f.Add(c.Source)
	}
	var sources map[string]string
	if err := json.Unmarshal(readCompressed(f, "templates.json.zst"), &sources); err != nil {
		f.Fatal(err)
	}
	for _, source := range sources {
		f.Add(source)
	}
	args := readCases(f, "snippets.jsonl.zst")[0].Args
	limits := Limits{Steps: 20_000, AllocBytes: 4 << 20, OutputBytes: 1 << 20, SourceBytes: 64 << 10}
	f.Fuzz(func(t *testing.T, source string) {
		tmpl, err := Parse(source, limits)
		if err != nil {
			return
		}
		out, err := tmpl.Render(decodeVars(t, args), oracleTime)
		if err == nil && len(out) > limits.OutputBytes {
			t.Errorf("output of %d bytes", len(out))
		}
	})
}

// FuzzDecode wants what decodes to encode to JSON that decodes to the same.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"b":[1,2.5,null,true,"x\n"],"a":{"n":12345678901234567890}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := DecodeJSON(data)
		if err != nil {
			return
		}
		first, err := EncodeJSON(v)
		if err != nil {
			t.Skip(err)
		}
		again, err := DecodeJSON([]byte(first))
		if err != nil {
			if strings.Contains(first, "Infinity") {
				return
			}
			t.Fatalf("%q does not decode: %v", first, err)
		}
		if second, err := EncodeJSON(again); err != nil || second != first {
			t.Errorf("%q became %q (%v)", first, second, err)
		}
	})
}

func BenchmarkRender(b *testing.B) {
	var sources map[string]string
	if err := json.Unmarshal(readCompressed(b, "templates.json.zst"), &sources); err != nil {
		b.Fatal(err)
	}
	for _, c := range readCases(b, "renders.jsonl.zst") {
		if c.Case != "tool_round" || c.Error {
			continue
		}
		b.Run(c.Template, func(b *testing.B) {
			tmpl, err := Parse(sources[c.Template], Limits{})
			if err != nil {
				b.Fatal(err)
			}
			vars := decodeVars(b, c.Args)
			for b.Loop() {
				if _, err := tmpl.Render(vars, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
