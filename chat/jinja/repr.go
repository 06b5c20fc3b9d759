package jinja

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// str is Python's str(v).
func (vm *machine) str(v Value) (string, error) {
	switch x := v.(type) {
	case String:
		return string(x), nil
	case Markup:
		return string(x), nil
	case *Undefined:
		return "", nil
	}
	return vm.repr(v)
}

// repr is Python's repr(v).
func (vm *machine) repr(v Value) (string, error) {
	p := printer{vm: vm}
	if err := p.repr(v, 0); err != nil {
		return "", err
	}
	return p.out.String(), nil
}

// printer writes values under the limits of a render.
type printer struct {
	vm  *machine
	out strings.Builder
}

func (p *printer) write(s string) error {
	if p.out.Len()+len(s) > p.vm.limits.OutputBytes {
		return &LimitError{"a printed value is too large"}
	}
	p.out.WriteString(s)
	return p.vm.grow(len(s))
}

func (p *printer) repr(v Value, depth int) error {
	if err := p.vm.checkDepth(depth); err != nil {
		return err
	}
	switch x := v.(type) {
	case *List:
		return p.reprList(x, depth)
	case *Dict:
		return p.reprDict(x, depth)
	case *Namespace:
		return p.wrapped("<Namespace ", x.vars, ">", depth)
	case Markup:
		return p.wrapped("Markup(", String(x), ")", depth)
	case String:
		if err := p.vm.scan(len(x)); err != nil {
			return err
		}
	}
	return p.write(reprScalar(v))
}

func (p *printer) wrapped(before string, v Value, after string, depth int) error {
	if err := p.write(before); err != nil {
		return err
	}
	if err := p.repr(v, depth+1); err != nil {
		return err
	}
	return p.write(after)
}

func reprScalar(v Value) string {
	switch x := v.(type) {
	case None:
		return "None"
	case Bool:
		if x {
			return "True"
		}
		return "False"
	case Int:
		return strconv.FormatInt(int64(x), 10)
	case BigInt:
		return string(x)
	case Float:
		return reprFloat(float64(x))
	case String:
		return reprString(string(x))
	case *Undefined:
		return "Undefined"
	}
	return "<" + v.typeName() + ">"
}

var listBrackets = [...][2]string{
	FormList: {"[", "]"}, FormTuple: {"(", ")"}, FormRange: {"range(", ")"},
	FormKeys: {"dict_keys([", "])"}, FormValues: {"dict_values([", "])"}, FormItems: {"dict_items([", "])"}, FormGenerator: {"<generator ", ">"},
}

func (p *printer) reprList(l *List, depth int) error {
	brackets := listBrackets[l.Form]
	if l.Form == FormRange {
		return p.write(reprRange(l.Items))
	}
	if err := p.write(brackets[0]); err != nil {
		return err
	}
	for i, item := range l.Items {
		if i > 0 {
			if err := p.write(", "); err != nil {
				return err
			}
		}
		if err := p.repr(item, depth+1); err != nil {
			return err
		}
	}
	if l.Form == FormTuple && len(l.Items) == 1 {
		return p.write(",)")
	}
	return p.write(brackets[1])
}

func reprRange(items []Value) string {
	if len(items) == 0 {
		return "range(0, 0)"
	}
	first, last, step := items[0].(Int), items[len(items)-1].(Int), Int(1)
	if len(items) > 1 {
		step = items[1].(Int) - first
	}
	if step == 1 {
		return fmt.Sprintf("range(%d, %d)", first, last+1)
	}
	return fmt.Sprintf("range(%d, %d, %d)", first, last+step, step)
}

func (p *printer) reprDict(d *Dict, depth int) error {
	if err := p.write("{"); err != nil {
		return err
	}
	for i := range d.keys {
		if i > 0 {
			if err := p.write(", "); err != nil {
				return err
			}
		}
		if err := p.repr(d.keys[i], depth+1); err != nil {
			return err
		}
		if err := p.wrapped(": ", d.values[i], "", depth); err != nil {
			return err
		}
	}
	return p.write("}")
}

// reprFloat is Python's repr of a float: shortest digits that round-trip,
// exponent form below 1e-4 and from 1e16.
func reprFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	abs := math.Abs(f)
	if abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// reprString quotes as Python does: single quotes unless only they occur.
func reprString(s string) string {
	quote := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	var b strings.Builder
	b.WriteRune(quote)
	for _, r := range s {
		writeReprRune(&b, r, quote)
	}
	b.WriteRune(quote)
	return b.String()
}

func writeReprRune(b *strings.Builder, r, quote rune) {
	switch {
	case r == quote || r == '\\':
		b.WriteRune('\\')
		b.WriteRune(r)
	case r == '\n':
		b.WriteString(`\n`)
	case r == '\r':
		b.WriteString(`\r`)
	case r == '\t':
		b.WriteString(`\t`)
	case unicode.IsPrint(r):
		b.WriteRune(r)
	case r < 0x100:
		fmt.Fprintf(b, `\x%02x`, r)
	case r < 0x10000:
		fmt.Fprintf(b, `\u%04x`, r)
	default:
		fmt.Fprintf(b, `\U%08x`, r)
	}
}
