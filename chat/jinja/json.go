package jinja

import (
	"fmt"
	"math"
	"sort"
	"strings"
	"unicode/utf16"
)

// jsonStyle holds the options of json.dumps that tojson takes.
type jsonStyle struct {
	ascii    bool
	pretty   bool   // indent is given
	indent   string // one level
	item     string // between items
	key      string // between key and value
	sortKeys bool
}

var plainJSON = jsonStyle{item: ", ", key: ": "}

// EncodeJSON formats a value as Python's json.dumps(v, ensure_ascii=False).
func EncodeJSON(v Value) (string, error) {
	return newMachine(Limits{}).toJSON(v, plainJSON)
}

func (vm *machine) toJSON(v Value, style jsonStyle) (string, error) {
	p := jsonPrinter{printer{vm: vm}, style}
	if err := p.value(v, 0); err != nil {
		return "", err
	}
	return p.out.String(), nil
}

type jsonPrinter struct {
	printer
	style jsonStyle
}

func (p *jsonPrinter) value(v Value, depth int) error {
	if err := p.vm.checkDepth(depth); err != nil {
		return err
	}
	switch x := v.(type) {
	case *List:
		if x.Form > FormTuple {
			break
		}
		return p.list(x, depth)
	case *Dict:
		return p.dict(x, depth)
	case String, Markup:
		s, _ := text(x)
		if err := p.vm.scan(len(s)); err != nil {
			return err
		}
		return p.write(p.quote(s))
	}
	s, ok := jsonScalar(v)
	if !ok {
		return errType("Object of type %s is not JSON serializable", v.typeName())
	}
	return p.write(s)
}

func jsonScalar(v Value) (string, bool) {
	switch x := v.(type) {
	case None:
		return "null", true
	case Bool:
		return strings.ToLower(reprScalar(x)), true
	case Int, BigInt:
		return reprScalar(x), true
	case Float:
		return jsonFloat(float64(x)), true
	}
	return "", false
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return reprFloat(f)
}

func (p *jsonPrinter) list(l *List, depth int) error {
	return p.enclose("[", "]", len(l.Items), depth, func(i int) error {
		return p.value(l.Items[i], depth+1)
	})
}

func (p *jsonPrinter) dict(d *Dict, depth int) error {
	order, err := p.order(d)
	if err != nil {
		return err
	}
	return p.enclose("{", "}", len(order), depth, func(i int) error {
		key, err := jsonKey(d.keys[order[i]])
		if err != nil {
			return err
		}
		if err := p.write(p.quote(key) + p.style.key); err != nil {
			return err
		}
		return p.value(d.values[order[i]], depth+1)
	})
}

// order lists the entries of d in the order they are written.
func (p *jsonPrinter) order(d *Dict) ([]int, error) {
	order := make([]int, d.Len())
	for i := range order {
		order[i] = i
	}
	if !p.style.sortKeys {
		return order, nil
	}
	var failed error
	sort.SliceStable(order, func(i, j int) bool {
		less, err := p.vm.less(d.keys[order[i]], d.keys[order[j]], 0)
		if err != nil {
			failed = err
		}
		return less
	})
	return order, failed
}

func (p *jsonPrinter) enclose(open, end string, n, depth int, item func(int) error) error {
	if n == 0 {
		return p.write(open + end)
	}
	if err := p.write(open + p.newline(depth+1)); err != nil {
		return err
	}
	for i := range n {
		if i > 0 {
			if err := p.write(p.style.item + p.newline(depth+1)); err != nil {
				return err
			}
		}
		if err := item(i); err != nil {
			return err
		}
	}
	return p.write(p.newline(depth) + end)
}

func (p *jsonPrinter) newline(depth int) string {
	if !p.style.pretty {
		return ""
	}
	return "\n" + strings.Repeat(p.style.indent, depth)
}

func jsonKey(key Value) (string, error) {
	if s, ok := text(key); ok {
		return s, nil
	}
	if s, ok := jsonScalar(key); ok {
		return s, nil
	}
	return "", errType("keys must be str, int, float, bool or None, not %s", key.typeName())
}

var jsonEscapes = map[rune]string{'"': `\"`, '\\': `\\`, '\n': `\n`, '\r': `\r`, '\t': `\t`, '\f': `\f`, '\b': `\b`}

func (p *jsonPrinter) quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case jsonEscapes[r] != "":
			b.WriteString(jsonEscapes[r])
		case r < 0x20 || p.style.ascii && r > 0x7e && r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		case p.style.ascii && r >= 0x10000:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
