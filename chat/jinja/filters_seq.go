package jinja

import (
	"slices"
	"strconv"
	"strings"
)

func filterItems(vm *machine, v Value, args *callArgs) (Value, error) {
	if _, err := args.bind(); err != nil {
		return nil, err
	}
	switch d := v.(type) {
	case *Undefined:
		return &List{Form: FormGenerator}, nil
	case *Dict:
		return &List{Items: d.pairs(), Form: FormGenerator}, vm.growList(3 * d.Len())
	}
	return nil, errType("can only get item pairs from a mapping")
}

func filterList(vm *machine, v Value, args *callArgs) (Value, error) {
	if _, err := args.bind(); err != nil {
		return nil, err
	}
	items, err := vm.iterate(v)
	if err != nil {
		return nil, err
	}
	return NewList(slices.Clone(items)...), vm.growList(len(items))
}

func filterFirst(vm *machine, v Value, args *callArgs) (Value, error) {
	if _, err := args.bind(); err != nil {
		return nil, err
	}
	items, err := vm.iterate(v)
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return &Undefined{reason: "No first item, sequence was empty."}, nil
	}
	if l, ok := v.(*List); ok && l.Form == FormGenerator {
		l.Items = items[1:]
	}
	return items[0], nil
}

func filterLast(vm *machine, v Value, args *callArgs) (Value, error) {
	if _, err := args.bind(); err != nil {
		return nil, err
	}
	if l, ok := v.(*List); ok && l.Form == FormGenerator {
		return nil, errType("'generator' object is not reversible")
	}
	items, err := vm.iterate(v)
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return &Undefined{reason: "No last item, sequence was empty."}, nil
	}
	return items[len(items)-1], nil
}

func filterJoin(vm *machine, v Value, args *callArgs) (Value, error) {
	bound, err := args.bind("d?", "attribute?")
	if err != nil {
		return nil, err
	}
	separator := ""
	if bound[0] != nil {
		if separator, err = vm.str(bound[0]); err != nil {
			return nil, err
		}
	}
	items, err := vm.iterate(v)
	if err != nil {
		return nil, err
	}
	p := printer{vm: vm}
	for i, item := range items {
		if item, err = vm.attributeOf(item, bound[1]); err != nil {
			return nil, err
		}
		s, err := vm.str(item)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			s = separator + s
		}
		if err := p.write(s); err != nil {
			return nil, err
		}
	}
	return String(p.out.String()), nil
}

func filterReverse(vm *machine, v Value, args *callArgs) (Value, error) {
	if _, err := args.bind(); err != nil {
		return nil, err
	}
	if s, ok := text(v); ok {
		runes := []rune(s)
		slices.Reverse(runes)
		return retext(v, string(runes)), vm.growList(len(s))
	}
	items, err := vm.iterate(v)
	if err != nil {
		return nil, err
	}
	out := slices.Clone(items)
	slices.Reverse(out)
	return &List{Items: out, Form: FormGenerator}, vm.growList(len(out))
}

// attributeOf follows a dotted attribute path ("a.b", 0, nil for the item
// itself).
func (vm *machine) attributeOf(item, path Value) (Value, error) {
	switch p := path.(type) {
	case nil, None:
		return item, nil
	case Int:
		return vm.getItem(item, p)
	}
	s, err := stringArg(path, "")
	if err != nil {
		return nil, err
	}
	for _, part := range strings.Split(s, ".") {
		var key Value = String(part)
		if n, err := strconv.Atoi(part); err == nil {
			key = Int(n)
		}
		if item, err = vm.getItem(item, key); err != nil {
			return nil, err
		}
	}
	return item, nil
}

func filterSum(vm *machine, v Value, args *callArgs) (Value, error) {
	bound, err := args.bind("attribute?", "start?")
	if err != nil {
		return nil, err
	}
	items, err := vm.iterate(v)
	if err != nil {
		return nil, err
	}
	var total Value = Int(0)
	if bound[1] != nil {
		total = bound[1]
	}
	for _, item := range items {
		if item, err = vm.attributeOf(item, bound[0]); err != nil {
			return nil, err
		}
		if _, isText := text(item); isText {
			return nil, errType("sum() can't sum strings")
		}
		if total, err = vm.arithmetic("+", total, item); err != nil {
			return nil, err
		}
	}
	return total, nil
}

func filterBatch(vm *machine, v Value, args *callArgs) (Value, error) {
	bound, err := args.bind("linecount", "fill_with?")
	if err != nil {
		return nil, err
	}
	size, err := intArg(bound[0], 0)
	if err == nil && (size < 1 || size > maxRange) {
		err = errType("batch: the size must be between 1 and %d", maxRange)
	}
	if err != nil {
		return nil, err
	}
	items, err := vm.iterate(v)
	if err != nil {
		return nil, err
	}
	out := &List{Form: FormGenerator}
	for chunk := range slices.Chunk(items, size) {
		chunk = slices.Clone(chunk)
		for len(chunk) < size && bound[1] != nil && bound[1] != (None{}) {
			chunk = append(chunk, bound[1])
		}
		out.Items = append(out.Items, NewList(chunk...))
	}
	return out, vm.growList(len(items) + size)
}

// filterMap is map(attribute=..., default=...) or map("filter", args...).
func filterMap(vm *machine, v Value, args *callArgs) (Value, error) {
	apply, err := vm.mapper(args)
	if err != nil {
		return nil, err
	}
	items, err := vm.iterateIf(v)
	if err != nil {
		return nil, err
	}
	out := make([]Value, len(items))
	for i, item := range items {
		if out[i], err = apply(item); err != nil {
			return nil, err
		}
	}
	return &List{Items: out, Form: FormGenerator}, vm.growList(len(out))
}

// iterateIf lists the items of v, none when v is false (None, say).
func (vm *machine) iterateIf(v Value) ([]Value, error) {
	if !truth(v) {
		return nil, nil
	}
	return vm.iterate(v)
}

func (vm *machine) mapper(args *callArgs) (func(Value) (Value, error), error) {
	if len(args.positional) > 0 {
		name, err := stringArg(args.positional[0], "")
		rest := &callArgs{args.positional[1:], args.named}
		return func(item Value) (Value, error) { return vm.filter(name, item, rest) }, err
	}
	path, ok := args.lookup("attribute")
	if !ok {
		return nil, errType("map requires a filter name or an attribute")
	}
	def, hasDefault := args.lookup("default")
	return func(item Value) (Value, error) {
		got, err := vm.attributeOf(item, path)
		if _, undefined := got.(*Undefined); undefined && hasDefault {
			return def, err
		}
		return got, err
	}, nil
}

// filterSelect keeps items by a test (truth without one).
func filterSelect(keep bool) filterFunc {
	return func(vm *machine, v Value, args *callArgs) (Value, error) {
		return vm.selectItems(v, nil, args, keep)
	}
}

// filterSelectAttr keeps items by a test of one attribute.
func filterSelectAttr(keep bool) filterFunc {
	return func(vm *machine, v Value, args *callArgs) (Value, error) {
		if len(args.positional) == 0 {
			return nil, errType("missing parameter for attribute name")
		}
		rest := &callArgs{args.positional[1:], args.named}
		return vm.selectItems(v, args.positional[0], rest, keep)
	}
}

func (vm *machine) selectItems(v, path Value, args *callArgs, keep bool) (Value, error) {
	items, err := vm.iterateIf(v)
	if err != nil {
		return nil, err
	}
	out := &List{Form: FormGenerator}
	for _, item := range items {
		subject, err := vm.attributeOf(item, path)
		if err != nil {
			return nil, err
		}
		ok := truth(subject)
		if len(args.positional) > 0 {
			name, err := stringArg(args.positional[0], "")
			if err != nil {
				return nil, err
			}
			if ok, err = vm.test(name, subject, &callArgs{args.positional[1:], args.named}); err != nil {
				return nil, err
			}
		}
		if ok == keep {
			out.Items = append(out.Items, item)
		}
	}
	return out, vm.growList(len(out.Items))
}
