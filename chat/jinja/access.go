package jinja

import (
	"strings"
	"unicode/utf8"
)

// getAttribute is Jinja's object.name: a Python attribute if there is one,
// else the item of that name, else undefined.
func (vm *machine) getAttribute(object Value, name string) (Value, error) {
	switch o := object.(type) {
	case *Undefined:
		return nil, errUndefined(o)
	case *loopState:
		return o.attribute(name), nil
	case *Namespace:
		if v := o.vars.Get(name); v != nil {
			return v, nil
		}
	}
	if m := method(object, name); m != nil {
		return m, nil
	}
	if strings.HasPrefix(name, "__") {
		return missing(object, name), nil
	}
	return vm.itemOr(object, String(name))
}

// getItem is Jinja's object[index]: the item, else for a name the attribute,
// else undefined.
func (vm *machine) getItem(object, index Value) (Value, error) {
	if u, ok := object.(*Undefined); ok {
		return nil, errUndefined(u)
	}
	v, err := vm.itemOr(object, index)
	name, named := text(index)
	if _, undefined := v.(*Undefined); err == nil && undefined && named {
		return vm.getAttribute(object, name)
	}
	return v, err
}

func missing(object Value, name string) *Undefined {
	return &Undefined{reason: "'" + object.typeName() + " object' has no attribute '" + name + "'"}
}

// itemOr returns an item of a mapping, list or string, or an undefined.
func (vm *machine) itemOr(object, index Value) (Value, error) {
	switch o := object.(type) {
	case *Dict:
		if v, err := o.lookup(index); err == nil && v != nil {
			return v, nil
		}
	case *List:
		n, ok := integer(index)
		if at, in := wrapIndex(n, len(o.Items)); ok && in && o.indexed() {
			return o.Items[at], nil
		}
	case String, Markup:
		s, _ := text(o)
		if err := vm.touch(len(s)); err != nil {
			return nil, err
		}
		if n, ok := integer(index); ok {
			if c, in := runeAt(s, n); in {
				return retext(o, c), nil
			}
		}
	}
	name, _ := text(index)
	if name == "" {
		name = reprScalar(index)
	}
	return missing(object, name), nil
}

func wrapIndex(n int64, length int) (int, bool) {
	if n < 0 {
		n += int64(length)
	}
	return int(n), n >= 0 && n < int64(length)
}

func runeAt(s string, n int64) (string, bool) {
	at, in := wrapIndex(n, utf8.RuneCountInString(s))
	if !in {
		return "", false
	}
	for ; at > 0; at-- {
		_, width := utf8.DecodeRuneInString(s)
		s = s[width:]
	}
	_, width := utf8.DecodeRuneInString(s)
	return s[:width], true
}

// slice is Python's object[start:stop:step].
func (vm *machine) slice(object Value, bounds [3]Value) (Value, error) {
	switch o := object.(type) {
	case *Undefined:
		return nil, errUndefined(o)
	case *List:
		if !o.indexed() {
			break
		}
		at, err := sliceIndices(bounds, len(o.Items))
		if err != nil {
			return nil, err
		}
		out := make([]Value, len(at))
		for i, index := range at {
			out[i] = o.Items[index]
		}
		return &List{Items: out, Form: o.Form}, vm.growList(len(out))
	case String, Markup:
		return vm.sliceText(o, bounds)
	}
	return nil, errType("'%s' object cannot be sliced", object.typeName())
}

func (vm *machine) sliceText(v Value, bounds [3]Value) (Value, error) {
	s, _ := text(v)
	if err := vm.growList(len(s)); err != nil {
		return nil, err
	}
	runes := []rune(s)
	at, err := sliceIndices(bounds, len(runes))
	if err != nil {
		return nil, err
	}
	out := make([]rune, len(at))
	for i, index := range at {
		out[i] = runes[index]
	}
	return retext(v, string(out)), nil
}

// sliceIndices lists the positions a slice of a sequence selects.
func sliceIndices(bounds [3]Value, length int) ([]int, error) {
	for _, b := range bounds {
		if _, ok := integer(b); !ok && b != (None{}) {
			return nil, errType("slice indices must be integers or None")
		}
	}
	step := int64(1)
	if n, ok := integer(bounds[2]); ok {
		step = n
	}
	if step == 0 {
		return nil, errType("slice step cannot be zero")
	}
	low, high := int64(0), int64(length)
	start, stop := low, high
	if step < 0 {
		low, high = -1, int64(length)-1
		start, stop = high, low
	}
	start = clampBound(bounds[0], start, low, high, length)
	stop = clampBound(bounds[1], stop, low, high, length)
	return countSteps(start, stop, step), nil
}

func clampBound(bound Value, def, low, high int64, length int) int64 {
	n, ok := integer(bound)
	if !ok {
		return def
	}
	if n < 0 {
		n += int64(length)
	}
	return min(max(n, low), high)
}

func countSteps(start, stop, step int64) []int {
	out := []int{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		out = append(out, int(i))
		if step > 0 && step > stop-i || step < 0 && step < stop-i {
			break // the next index would pass stop, or overflow
		}
	}
	return out
}
