package jinja

import (
	"slices"
	"strings"
)

// callArgs are evaluated arguments.
type callArgs struct {
	positional []Value
	named      []namedValue
}

type namedValue struct {
	name  string
	value Value
}

var noArgs = &callArgs{}

func (a *callArgs) lookup(name string) (Value, bool) {
	for _, n := range a.named {
		if n.name == name {
			return n.value, true
		}
	}
	return nil, false
}

func (a *arguments) eval(vm *machine, sc *scope) (*callArgs, error) {
	if len(a.positional)+len(a.named) == 0 && a.spread == nil && a.spreadDict == nil {
		return noArgs, nil
	}
	values, err := vm.evalAll(a.positional, sc)
	if err != nil {
		return nil, err
	}
	args := &callArgs{positional: values}
	for _, n := range a.named {
		v, err := vm.eval(n.value, sc)
		if err != nil {
			return nil, err
		}
		if err := args.addNamed(n.name, v); err != nil {
			return nil, err
		}
	}
	return args, a.evalSpread(vm, sc, args)
}

func (a *callArgs) addNamed(name string, v Value) error {
	if _, twice := a.lookup(name); twice {
		return errType("keyword argument %q is given twice", name)
	}
	a.named = append(a.named, namedValue{name, v})
	return nil
}

func (a *arguments) evalSpread(vm *machine, sc *scope, args *callArgs) error {
	if a.spread != nil {
		v, err := vm.eval(a.spread, sc)
		if err != nil {
			return err
		}
		items, err := vm.iterate(v)
		if err != nil {
			return err
		}
		args.positional = append(args.positional, items...)
	}
	if a.spreadDict == nil {
		return nil
	}
	v, err := vm.eval(a.spreadDict, sc)
	if err != nil {
		return err
	}
	d, ok := v.(*Dict)
	if !ok || d.Len() > maxNames {
		return errType("argument after ** must be a mapping of at most %d entries", maxNames)
	}
	for i := range d.keys {
		name, ok := text(d.keys[i])
		if !ok {
			return errType("keywords must be strings")
		}
		if err := args.addNamed(name, d.values[i]); err != nil {
			return err
		}
	}
	return nil
}

// bind matches arguments to parameters. A name ending in ? is optional; its
// value is nil when absent.
func (a *callArgs) bind(params ...string) ([]Value, error) {
	if len(a.positional) > len(params) {
		return nil, errType("takes at most %d arguments, %d given", len(params), len(a.positional))
	}
	out := make([]Value, len(params))
	copy(out, a.positional)
	names := make([]string, len(params))
	for i, p := range params {
		names[i] = strings.TrimSuffix(p, "?")
	}
	for _, n := range a.named {
		i := slices.Index(names, n.name)
		if i < 0 {
			return nil, errType("unexpected keyword argument %q", n.name)
		}
		if out[i] != nil {
			return nil, errType("argument %q is given twice", n.name)
		}
		out[i] = n.value
	}
	for i, p := range params {
		if out[i] == nil && p == names[i] {
			return nil, errType("missing argument %q", p)
		}
	}
	return out, nil
}

// stringArg returns a string argument, or def when it is absent.
func stringArg(v Value, def string) (string, error) {
	if v == nil {
		return def, nil
	}
	if s, ok := text(v); ok {
		return s, nil
	}
	return "", errType("expected a str argument, got %s", v.typeName())
}

// intArg returns an integer argument, or def when it is absent.
func intArg(v Value, def int) (int, error) {
	switch n := v.(type) {
	case nil:
		return def, nil
	case Int:
		return int(n), nil
	case Bool:
		return boolInt(n), nil
	}
	return 0, errType("expected an int argument, got %s", v.typeName())
}

// truthArg returns the truth of an argument, or def when it is absent.
func truthArg(v Value, def bool) bool {
	if v == nil {
		return def
	}
	return truth(v)
}
