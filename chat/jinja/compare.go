package jinja

import (
	"strconv"
	"strings"
)

func (vm *machine) compare(op string, l, r Value) (bool, error) {
	switch op {
	case "==":
		return vm.equal(l, r, 0)
	case "!=":
		same, err := vm.equal(l, r, 0)
		return !same, err
	case "in":
		return vm.contains(r, l)
	case "not in":
		found, err := vm.contains(r, l)
		return !found, err
	case "<":
		return vm.less(l, r, 0)
	case ">":
		return vm.less(r, l, 0)
	}
	if op == ">=" {
		l, r = r, l
	}
	return vm.lessEqual(l, r)
}

func (vm *machine) lessEqual(l, r Value) (bool, error) {
	less, err := vm.less(l, r, 0)
	if err != nil || less {
		return less, err
	}
	return vm.equal(l, r, 0)
}

// equal is Python's l == r.
func (vm *machine) equal(l, r Value, depth int) (bool, error) {
	if err := vm.checkDepth(depth); err != nil {
		return false, err
	}
	if err := vm.step(1); err != nil {
		return false, err
	}
	if a, ok := number(l); ok {
		b, ok := number(r)
		return ok && equalNumbers(l, r, a, b), nil
	}
	if a, ok := text(l); ok {
		b, ok := text(r)
		return ok && a == b, vm.touch(len(a))
	}
	switch a := l.(type) {
	case *List:
		b, ok := r.(*List)
		if !ok || a.Form != b.Form || len(a.Items) != len(b.Items) || a.Form > FormRange {
			return ok && a == b, nil
		}
		return vm.equalItems(a.Items, b.Items, depth+1)
	case *Dict:
		b, ok := r.(*Dict)
		if !ok || a.Len() != b.Len() {
			return false, nil
		}
		return vm.equalDicts(a, b, depth+1)
	case *Undefined:
		_, ok := r.(*Undefined)
		return ok, nil
	}
	return l == r, nil
}

// equalNumbers compares two ints exactly and others as floats.
func equalNumbers(l, r Value, a, b float64) bool {
	m, ok := integer(l)
	n, ok2 := integer(r)
	if ok && ok2 {
		return m == n
	}
	return a == b
}

func (vm *machine) equalItems(a, b []Value, depth int) (bool, error) {
	for i := range a {
		same, err := vm.equal(a[i], b[i], depth)
		if err != nil || !same {
			return false, err
		}
	}
	return true, nil
}

func (vm *machine) equalDicts(a, b *Dict, depth int) (bool, error) {
	for i, key := range a.keys {
		other, err := b.lookup(key)
		if err != nil || other == nil {
			return false, err
		}
		same, err := vm.equal(a.values[i], other, depth)
		if err != nil || !same {
			return false, err
		}
	}
	return true, nil
}

// less is Python's l < r.
func (vm *machine) less(l, r Value, depth int) (bool, error) {
	if err := vm.checkDepth(depth); err != nil {
		return false, err
	}
	if err := vm.step(1); err != nil {
		return false, err
	}
	if m, ok := integer(l); ok {
		if n, ok := integer(r); ok {
			return m < n, nil
		}
	}
	if a, ok := magnitudeOf(l); ok {
		if b, ok := magnitudeOf(r); ok {
			return a < b, nil
		}
	}
	if a, ok := text(l); ok {
		if b, ok := text(r); ok {
			return a < b, vm.touch(min(len(a), len(b)))
		}
	}
	a, ok := l.(*List)
	b, ok2 := r.(*List)
	if ok && ok2 && a.Form == b.Form && a.Form <= FormTuple {
		return vm.lessItems(a.Items, b.Items, depth+1)
	}
	return false, errCompare(l, r)
}

// magnitudeOf is any number as a float, those beyond 64 bits rounded.
func magnitudeOf(v Value) (float64, bool) {
	if big, ok := v.(BigInt); ok {
		f, _ := strconv.ParseFloat(string(big), 64)
		return f, true
	}
	return number(v)
}

func errCompare(l, r Value) error {
	for _, v := range []Value{l, r} {
		if u, ok := v.(*Undefined); ok {
			return errUndefined(u)
		}
	}
	return errType("'<' not supported between instances of '%s' and '%s'", l.typeName(), r.typeName())
}

func (vm *machine) lessItems(a, b []Value, depth int) (bool, error) {
	for i := range min(len(a), len(b)) {
		same, err := vm.equal(a[i], b[i], depth)
		if err != nil {
			return false, err
		}
		if !same {
			return vm.less(a[i], b[i], depth)
		}
	}
	return len(a) < len(b), nil
}

// contains is Python's item in container.
func (vm *machine) contains(container, item Value) (bool, error) {
	switch c := container.(type) {
	case *Dict:
		v, err := c.lookup(item)
		return v != nil, err
	case *List, *Undefined:
		return vm.containsItem(c, item)
	}
	s, ok := text(container)
	if !ok {
		return false, errType("argument of type '%s' is not iterable", container.typeName())
	}
	part, ok := text(item)
	if u, undefined := item.(*Undefined); undefined {
		return false, errUndefined(u)
	}
	if !ok {
		return false, errType("'in <string>' requires string as left operand, not %s", item.typeName())
	}
	return strings.Contains(s, part), vm.touch(len(s))
}

func (vm *machine) containsItem(container, item Value) (bool, error) {
	items, err := vm.iterate(container)
	if err != nil {
		return false, err
	}
	for _, v := range items {
		same, err := vm.equal(v, item, 0)
		if err != nil || same {
			return same, err
		}
	}
	return false, nil
}
