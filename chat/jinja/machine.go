package jinja

import (
	"strings"
	"time"
)

// machine is the state of one render.
type machine struct {
	budget
	out     *strings.Builder
	now     func() time.Time
	filters map[string]filterFunc
	tests   map[string]testFunc
}

func newMachine(limits Limits) *machine {
	return &machine{
		budget:  budget{limits: limits.withDefaults()},
		out:     &strings.Builder{},
		now:     time.Now,
		filters: builtinFilters,
		tests:   builtinTests,
	}
}

// write appends to the current output.
func (vm *machine) write(s string) error {
	if vm.out.Len()+len(s) > vm.limits.OutputBytes {
		return &LimitError{"the output is too large"}
	}
	if err := vm.grow(len(s)); err != nil {
		return err
	}
	vm.out.WriteString(s)
	return nil
}

// capture runs body and returns what it wrote instead of writing it.
func (vm *machine) capture(body func() error) (String, error) {
	outer := vm.out
	vm.out = &strings.Builder{}
	defer func() { vm.out = outer }()
	if err := body(); err != nil {
		return "", err
	}
	return String(vm.out.String()), nil
}

func (vm *machine) eval(e expression, sc *scope) (Value, error) {
	if err := vm.step(1); err != nil {
		return nil, err
	}
	return e.eval(vm, sc)
}

func (vm *machine) evalAll(list []expression, sc *scope) ([]Value, error) {
	out := make([]Value, len(list))
	for i, e := range list {
		v, err := vm.eval(e, sc)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, vm.growList(len(out))
}

// run executes statements until one breaks or continues a loop.
func (vm *machine) run(body []statement, sc *scope) (signal, error) {
	for _, s := range body {
		if err := vm.step(1); err != nil {
			return proceed, err
		}
		sig, err := s.exec(vm, sc)
		if err != nil || sig != proceed {
			return sig, err
		}
	}
	return proceed, nil
}

// scope holds the variables of a block; names not in it are its parent's.
type scope struct {
	vars   map[string]Value
	parent *scope
}

func (sc *scope) child() *scope { return &scope{parent: sc} }

func (sc *scope) set(name string, v Value) {
	if sc.vars == nil {
		sc.vars = map[string]Value{}
	}
	sc.vars[name] = v
}

// get returns a variable and how many scopes were searched.
func (sc *scope) get(name string) (Value, int) {
	hops := 1
	for s := sc; s != nil; s = s.parent {
		if v, ok := s.vars[name]; ok {
			return v, hops
		}
		hops++
	}
	return &Undefined{name: name}, hops
}

// assign writes v to a target.
func (vm *machine) assign(t target, v Value, sc *scope) error {
	switch {
	case t.tuple != nil:
		return vm.unpack(t.tuple, v, sc)
	case t.attribute != "":
		object, _ := sc.get(t.name)
		ns, ok := object.(*Namespace)
		if !ok {
			return errType("cannot assign attribute on non-namespace object")
		}
		ns.vars.Set(t.attribute, v)
	default:
		sc.set(t.name, v)
	}
	return vm.grow(valueBytes)
}

func (vm *machine) unpack(parts []target, v Value, sc *scope) error {
	items, err := vm.iterate(v)
	if err != nil {
		return err
	}
	if len(items) != len(parts) {
		return errType("cannot unpack %d values into %d names", len(items), len(parts))
	}
	for i, part := range parts {
		if err := vm.assign(part, items[i], sc); err != nil {
			return err
		}
	}
	return nil
}
