package jinja

import (
	"math"
	"strings"
	"unicode/utf8"
)

// truth is Python's bool(v).
func truth(v Value) bool {
	switch x := v.(type) {
	case None, *Undefined:
		return false
	case Bool:
		return bool(x)
	case Int:
		return x != 0
	case Float:
		return x != 0
	case String:
		return x != ""
	case Markup:
		return x != ""
	case *List:
		return x.Form == FormGenerator || len(x.Items) > 0
	case *Dict:
		return x.Len() > 0
	}
	return true
}

func boolInt(b Bool) int {
	if b {
		return 1
	}
	return 0
}

// integer returns the value of an int or bool.
func integer(v Value) (int64, bool) {
	switch x := v.(type) {
	case Int:
		return int64(x), true
	case Bool:
		return int64(boolInt(x)), true
	}
	return 0, false
}

// number returns any number as a float.
func number(v Value) (float64, bool) {
	if f, ok := v.(Float); ok {
		return float64(f), true
	}
	n, ok := integer(v)
	return float64(n), ok
}

func signed(v Value, negative bool) (Value, error) {
	if u, ok := v.(*Undefined); ok {
		return nil, errUndefined(u)
	}
	if n, ok := integer(v); ok && n != math.MinInt64 {
		if negative {
			n = -n
		}
		return Int(n), nil
	}
	if f, ok := v.(Float); ok {
		if negative {
			f = -f
		}
		return f, nil
	}
	return nil, errType("bad operand type for unary sign: '%s'", v.typeName())
}

func (vm *machine) arithmetic(op string, l, r Value) (Value, error) {
	for _, v := range []Value{l, r} {
		if u, ok := v.(*Undefined); ok {
			return nil, errUndefined(u)
		}
	}
	if a, ok := integer(l); ok {
		if b, ok := integer(r); ok {
			return intArithmetic(op, a, b)
		}
	}
	if a, ok := number(l); ok {
		if b, ok := number(r); ok {
			return floatArithmetic(op, a, b)
		}
	}
	return vm.sequenceArithmetic(op, l, r)
}

func errOperands(op string, l, r Value) error {
	return errType("unsupported operand type(s) for %s: '%s' and '%s'", op, l.typeName(), r.typeName())
}

func (vm *machine) sequenceArithmetic(op string, l, r Value) (Value, error) {
	_, leftText := text(l)
	_, rightText := text(r)
	switch {
	case op == "+" && leftText && rightText:
		return vm.addText(l, r)
	case op == "+":
		return vm.addLists(l, r)
	case op == "%" && leftText:
		return vm.percentFormat(l, r)
	case op == "*":
		if n, ok := integer(r); ok {
			return vm.repeat(l, n)
		}
		if n, ok := integer(l); ok {
			return vm.repeat(r, n)
		}
	}
	return nil, errOperands(op, l, r)
}

func (vm *machine) addText(l, r Value) (Value, error) {
	_, leftSafe := l.(Markup)
	_, rightSafe := r.(Markup)
	if leftSafe || rightSafe {
		a, err := vm.escape(l)
		if err != nil {
			return nil, err
		}
		b, err := vm.escape(r)
		if err != nil {
			return nil, err
		}
		return a + b, vm.grow(len(a) + len(b))
	}
	a, b := l.(String), r.(String)
	if err := vm.grow(len(a) + len(b)); err != nil {
		return nil, err
	}
	return a + b, nil
}

func (vm *machine) addLists(l, r Value) (Value, error) {
	a, ok := l.(*List)
	b, ok2 := r.(*List)
	if !ok || !ok2 || a.Form != b.Form || a.Form > FormTuple {
		return nil, errOperands("+", l, r)
	}
	if err := vm.growList(len(a.Items) + len(b.Items)); err != nil {
		return nil, err
	}
	items := append(append(make([]Value, 0, len(a.Items)+len(b.Items)), a.Items...), b.Items...)
	return &List{Items: items, Form: a.Form}, nil
}

func (vm *machine) repeat(v Value, n int64) (Value, error) {
	n = max(n, 0)
	n = min(n, int64(vm.limits.OutputBytes)+1) // more is over the limit for any non-empty value
	if s, ok := text(v); ok {
		if err := vm.grow(len(s) * int(n)); err != nil {
			return nil, err
		}
		return retext(v, strings.Repeat(s, int(n))), nil
	}
	l, ok := v.(*List)
	if !ok || l.Form > FormTuple {
		return nil, errOperands("*", v, Int(n))
	}
	if err := vm.growList(len(l.Items) * int(n)); err != nil || len(l.Items) == 0 {
		return &List{Form: l.Form}, err
	}
	out := make([]Value, 0, len(l.Items)*int(n))
	for range n {
		out = append(out, l.Items...)
	}
	return &List{Items: out, Form: l.Form}, nil
}

// retext gives s the string type of v.
func retext(v Value, s string) Value {
	if _, safe := v.(Markup); safe {
		return Markup(s)
	}
	return String(s)
}

// length is Python's len(v).
func (vm *machine) length(v Value) (int, error) {
	switch x := v.(type) {
	case *Undefined:
		return 0, nil
	case *List:
		if x.sized() {
			return len(x.Items), nil
		}
	case *Dict:
		return x.Len(), nil
	}
	if s, ok := text(v); ok {
		return utf8.RuneCountInString(s), vm.touch(len(s))
	}
	return 0, errType("object of type '%s' has no len()", v.typeName())
}

// iterate lists what Python's iter(v) yields.
func (vm *machine) iterate(v Value) ([]Value, error) {
	switch x := v.(type) {
	case *Undefined:
		return nil, nil
	case *List:
		return x.take(), vm.step(len(x.Items))
	case *Dict:
		return append([]Value(nil), x.keys...), vm.growList(x.Len())
	}
	s, ok := text(v)
	if !ok {
		return nil, errType("'%s' object is not iterable", v.typeName())
	}
	if err := vm.growList(len(s)); err != nil {
		return nil, err
	}
	if err := vm.step(len(s)); err != nil {
		return nil, err
	}
	out := make([]Value, 0, utf8.RuneCountInString(s))
	for s != "" {
		_, width := utf8.DecodeRuneInString(s)
		out = append(out, String(s[:width]))
		s = s[width:]
	}
	return out, nil
}
