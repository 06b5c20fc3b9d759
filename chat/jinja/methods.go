package jinja

import "strings"

// methodFunc is a method of a string receiver.
type methodFunc func(vm *machine, s string, args *callArgs) (Value, error)

// method returns the bound method object.name, an undefined for a method that
// the sandbox forbids, or nil when there is no such method.
func method(object Value, name string) Value {
	switch o := object.(type) {
	case *Dict:
		if f := dictMethod(o, name); f != nil {
			return f
		}
		return forbidden("dict", name, "clear", "fromkeys", "pop", "popitem", "setdefault", "update")
	case *List:
		if f := listMethod(o, name); f != nil {
			return f
		}
		if o.Form == FormList {
			return forbidden("list", name, "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort")
		}
	case String, Markup:
		if f := stringMethods[name]; f != nil {
			return bindText(o, name, f)
		}
	}
	return nil
}

func forbidden(typeName, name string, names ...string) Value {
	for _, n := range names {
		if n == name {
			return &Undefined{reason: "access to attribute '" + name + "' of '" + typeName + "' object is unsafe."}
		}
	}
	return nil
}

// bindText binds a string method; methods of Markup return Markup and escape
// what they insert.
func bindText(receiver Value, name string, f methodFunc) *function {
	s, _ := text(receiver)
	_, safe := receiver.(Markup)
	return &function{name, func(vm *machine, args *callArgs) (Value, error) {
		if err := vm.scan(len(s)); err != nil {
			return nil, err
		}
		if safe && (name == "join" || name == "replace" || name == "format") {
			return vm.markupInsert(s, name, f, args)
		}
		v, err := f(vm, s, args)
		if err != nil || !safe {
			return v, err
		}
		return markAll(v), nil
	}}
}

// markupInsert calls a method that puts its arguments into a Markup.
func (vm *machine) markupInsert(s, name string, f methodFunc, args *callArgs) (Value, error) {
	escaped := &callArgs{named: args.named}
	for i, v := range args.positional {
		var err error
		if l, ok := v.(*List); ok && name == "join" {
			v, err = vm.escapeItems(l)
		} else if _, isText := text(v); isText && !(name == "replace" && i == 0) {
			v, err = vm.escape(v)
		}
		if err != nil {
			return nil, err
		}
		escaped.positional = append(escaped.positional, v)
	}
	v, err := f(vm, s, escaped)
	if err != nil {
		return nil, err
	}
	return markAll(v), nil
}

func (vm *machine) escapeItems(l *List) (Value, error) {
	out := make([]Value, 0, len(l.Items))
	for _, item := range l.take() {
		m, err := vm.escape(item)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return NewList(out...), nil
}

// markAll turns the strings of a result into Markup.
func markAll(v Value) Value {
	switch x := v.(type) {
	case String:
		return Markup(x)
	case *List:
		for i, item := range x.Items {
			x.Items[i] = markAll(item)
		}
	}
	return v
}

func dictMethod(d *Dict, name string) Value {
	view := func(form ListForm, items func() []Value) *function {
		return &function{name, func(vm *machine, args *callArgs) (Value, error) {
			if _, err := args.bind(); err != nil {
				return nil, err
			}
			return &List{Items: items(), Form: form}, vm.growList(3 * d.Len())
		}}
	}
	switch name {
	case "items":
		return view(FormItems, d.pairs)
	case "keys":
		return view(FormKeys, func() []Value { return append([]Value(nil), d.keys...) })
	case "values":
		return view(FormValues, func() []Value { return append([]Value(nil), d.values...) })
	case "get":
		return &function{name, d.getMethod}
	case "copy":
		return &function{name, func(vm *machine, args *callArgs) (Value, error) {
			_, err := args.bind()
			if err == nil {
				err = vm.growList(4 * d.Len())
			}
			return d.Copy(), err
		}}
	}
	return nil
}

func (d *Dict) getMethod(_ *machine, args *callArgs) (Value, error) {
	if len(args.named) > 0 {
		return nil, errType("dict.get() takes no keyword arguments")
	}
	bound, err := args.bind("key", "default?")
	if err != nil {
		return nil, err
	}
	v, err := d.lookup(bound[0])
	if err != nil || v != nil {
		return v, err
	}
	if bound[1] != nil {
		return bound[1], nil
	}
	return None{}, nil
}

func listMethod(l *List, name string) Value {
	switch {
	case name == "count" && l.indexed():
		return &function{name, l.countMethod}
	case name == "index" && l.indexed():
		return &function{name, l.indexMethod}
	case name == "copy" && l.Form == FormList:
		return &function{name, func(vm *machine, _ *callArgs) (Value, error) {
			return NewList(append([]Value(nil), l.Items...)...), vm.growList(len(l.Items))
		}}
	}
	return nil
}

func (l *List) countMethod(vm *machine, args *callArgs) (Value, error) {
	bound, err := args.bind("value")
	if err != nil {
		return nil, err
	}
	n := 0
	for _, item := range l.Items {
		same, err := vm.equal(item, bound[0], 0)
		if err != nil {
			return nil, err
		}
		if same {
			n++
		}
	}
	return Int(n), nil
}

func (l *List) indexMethod(vm *machine, args *callArgs) (Value, error) {
	bound, err := args.bind("value")
	if err != nil {
		return nil, err
	}
	for i, item := range l.Items {
		same, err := vm.equal(item, bound[0], 0)
		if err != nil || same {
			return Int(i), err
		}
	}
	return nil, errType("the value is not in the list")
}

// stringList wraps the parts of a split string.
func (vm *machine) stringList(parts []string) (Value, error) {
	out := make([]Value, len(parts))
	for i, p := range parts {
		out[i] = String(p)
	}
	return &List{Items: out}, vm.growList(2 * len(parts))
}

// made wraps a new string, charging its size.
func (vm *machine) made(s string) (Value, error) { return String(s), vm.grow(len(s)) }

// replace is str.replace; count < 0 means all.
func (vm *machine) replace(s, old, new string, count int) (Value, error) {
	n := strings.Count(s, old)
	if count >= 0 {
		n = min(n, count)
	}
	if err := vm.grow(len(s) + n*(len(new)-len(old))); err != nil {
		return nil, err
	}
	return String(strings.Replace(s, old, new, count)), nil
}
