package jinja

import (
	"sort"
	"strings"
)

// sortKey folds strings unless case matters.
func (vm *machine) sortKey(v Value, caseSensitive bool) Value {
	if s, ok := text(v); ok && !caseSensitive {
		return String(toLower(s))
	}
	return v
}

// sortBy sorts items stably by key, which may fail.
func (vm *machine) sortBy(items []Value, reverse bool, key func(Value) (Value, error)) ([]Value, error) {
	if err := vm.growList(3 * len(items)); err != nil {
		return nil, err
	}
	keys := make([]Value, len(items))
	order := make([]int, len(items))
	for i, item := range items {
		k, err := key(item)
		if err != nil {
			return nil, err
		}
		keys[i], order[i] = k, i
	}
	var failed error
	sort.SliceStable(order, func(i, j int) bool {
		if failed != nil {
			return false
		}
		a, b := keys[order[i]], keys[order[j]]
		if reverse {
			a, b = b, a
		}
		less, err := vm.less(a, b, 0)
		failed = err
		return less
	})
	out := make([]Value, len(items))
	for i, at := range order {
		out[i] = items[at]
	}
	return out, failed
}

// attributeKey makes a sort key of one or several attributes ("a,b").
func (vm *machine) attributeKey(path Value, caseSensitive bool) func(Value) (Value, error) {
	names, several := path, []string(nil)
	if s, ok := text(path); ok && strings.Contains(s, ",") {
		several = strings.Split(s, ",")
	}
	return func(item Value) (Value, error) {
		if several == nil {
			v, err := vm.attributeOf(item, names)
			return vm.sortKey(v, caseSensitive), err
		}
		key := NewList()
		for _, name := range several {
			v, err := vm.attributeOf(item, String(name))
			if err != nil {
				return nil, err
			}
			key.Items = append(key.Items, vm.sortKey(v, caseSensitive))
		}
		return key, nil
	}
}

func filterSort(vm *machine, v Value, args *callArgs) (Value, error) {
	bound, err := args.bind("reverse?", "case_sensitive?", "attribute?")
	if err != nil {
		return nil, err
	}
	items, err := vm.iterate(v)
	if err != nil {
		return nil, err
	}
	key := vm.attributeKey(bound[2], truthArg(bound[1], false))
	out, err := vm.sortBy(items, truthArg(bound[0], false), key)
	return NewList(out...), err
}

func filterDictSort(vm *machine, v Value, args *callArgs) (Value, error) {
	bound, err := args.bind("case_sensitive?", "by?", "reverse?")
	if err != nil {
		return nil, err
	}
	d, ok := v.(*Dict)
	if !ok {
		return nil, errType("dictsort: a mapping is required, not %s", v.typeName())
	}
	by, err := stringArg(bound[1], "key")
	if err != nil {
		return nil, err
	}
	position := map[string]int{"key": 0, "value": 1}
	at, known := position[by]
	if !known {
		return nil, errType("dictsort: by must be key or value")
	}
	out, err := vm.sortBy(d.pairs(), truthArg(bound[2], false), func(pair Value) (Value, error) {
		return vm.sortKey(pair.(*List).Items[at], truthArg(bound[0], false)), nil
	})
	return NewList(out...), err
}

func filterUnique(vm *machine, v Value, args *callArgs) (Value, error) {
	bound, err := args.bind("case_sensitive?", "attribute?")
	if err != nil {
		return nil, err
	}
	items, err := vm.iterate(v)
	if err != nil {
		return nil, err
	}
	key := vm.attributeKey(bound[1], truthArg(bound[0], false))
	seen, out := NewDict(), &List{Form: FormGenerator}
	for _, item := range items {
		k, err := key(item)
		if err != nil {
			return nil, err
		}
		before := seen.Len()
		if err := seen.SetValue(k, None{}); err != nil {
			return nil, err
		}
		if seen.Len() > before {
			out.Items = append(out.Items, item)
		}
	}
	return out, vm.growList(3 * len(out.Items))
}

// filterExtreme is min or max.
func filterExtreme(largest bool) filterFunc {
	return func(vm *machine, v Value, args *callArgs) (Value, error) {
		bound, err := args.bind("case_sensitive?", "attribute?")
		if err != nil {
			return nil, err
		}
		items, err := vm.iterate(v)
		if err != nil {
			return nil, err
		}
		if len(items) == 0 {
			return &Undefined{reason: "No aggregated item, sequence was empty."}, nil
		}
		key := vm.attributeKey(bound[1], truthArg(bound[0], false))
		return vm.extreme(items, largest, key)
	}
}

func (vm *machine) extreme(items []Value, largest bool, key func(Value) (Value, error)) (Value, error) {
	best := items[0]
	bestKey, err := key(best)
	if err != nil {
		return nil, err
	}
	for _, item := range items[1:] {
		k, err := key(item)
		if err != nil {
			return nil, err
		}
		a, b := k, bestKey
		if largest {
			a, b = b, a
		}
		better, err := vm.less(a, b, 0)
		if err != nil {
			return nil, err
		}
		if better {
			best, bestKey = item, k
		}
	}
	return best, nil
}

// filterGroupBy yields (key, items) tuples in key order.
func filterGroupBy(vm *machine, v Value, args *callArgs) (Value, error) {
	bound, err := args.bind("attribute", "default?", "case_sensitive?")
	if err != nil {
		return nil, err
	}
	items, err := vm.iterate(v)
	if err != nil {
		return nil, err
	}
	plain := func(item Value) (Value, error) {
		got, err := vm.attributeOf(item, bound[0])
		if _, undefined := got.(*Undefined); undefined && bound[1] != nil {
			return bound[1], err
		}
		return got, err
	}
	folded := func(item Value) (Value, error) {
		got, err := plain(item)
		return vm.sortKey(got, truthArg(bound[2], false)), err
	}
	sorted, err := vm.sortBy(items, false, folded)
	if err != nil {
		return nil, err
	}
	return vm.groups(sorted, plain, folded)
}

func (vm *machine) groups(sorted []Value, plain, folded func(Value) (Value, error)) (Value, error) {
	out, last := NewList(), Value(nil)
	for _, item := range sorted {
		key, err := folded(item)
		if err != nil {
			return nil, err
		}
		same := false
		if last != nil {
			if same, err = vm.equal(key, last, 0); err != nil {
				return nil, err
			}
		}
		if !same {
			name, err := plain(item)
			if err != nil {
				return nil, err
			}
			out.Items = append(out.Items, &List{Items: []Value{name, NewList()}, Form: FormTuple})
			last = key
		}
		group := out.Items[len(out.Items)-1].(*List).Items[1].(*List)
		group.Items = append(group.Items, item)
	}
	return out, vm.growList(4 * len(sorted))
}
