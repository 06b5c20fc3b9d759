package jinja

// loopState is the loop variable of a for block.
type loopState struct {
	items []Value
	index int // of the current item, from 0
	last  []Value
	begun bool // changed() was called before
}

func (*loopState) typeName() string { return "LoopContext" }

func (s *forStmt) exec(vm *machine, sc *scope) (signal, error) {
	items, err := s.items(vm, sc)
	if err != nil {
		return proceed, atLine(s.line, err)
	}
	if len(items) == 0 {
		return vm.run(s.otherwise, sc.child())
	}
	loop := &loopState{items: items}
	for loop.index = range items {
		sig, err := s.iteration(vm, sc, loop)
		if err != nil {
			return proceed, err
		}
		if sig == breakLoop {
			break
		}
	}
	return proceed, nil
}

func (s *forStmt) iteration(vm *machine, sc *scope, loop *loopState) (signal, error) {
	inner := sc.child()
	inner.set("loop", loop)
	if err := vm.assign(s.target, loop.items[loop.index], inner); err != nil {
		return proceed, atLine(s.line, err)
	}
	return vm.run(s.body, inner)
}

// items evaluates the iterable and drops what the filter rejects.
func (s *forStmt) items(vm *machine, sc *scope) ([]Value, error) {
	v, err := vm.eval(s.iterable, sc)
	if err != nil {
		return nil, err
	}
	items, err := vm.iterate(v)
	if err != nil || s.filter == nil {
		return items, err
	}
	var kept []Value
	for _, item := range items {
		inner := sc.child()
		if err := vm.assign(s.target, item, inner); err != nil {
			return nil, err
		}
		ok, err := vm.eval(s.filter, inner)
		if err != nil {
			return nil, err
		}
		if truth(ok) {
			kept = append(kept, item)
		}
	}
	return kept, nil
}

// attribute returns loop.name.
func (l *loopState) attribute(name string) Value {
	n := len(l.items)
	switch name {
	case "index":
		return Int(l.index + 1)
	case "index0":
		return Int(l.index)
	case "revindex":
		return Int(n - l.index)
	case "revindex0":
		return Int(n - l.index - 1)
	case "first":
		return Bool(l.index == 0)
	case "last":
		return Bool(l.index == n-1)
	case "length":
		return Int(n)
	case "depth":
		return Int(1) // only recursive loops go deeper
	case "depth0":
		return Int(0)
	case "previtem":
		return l.neighbour(l.index-1, "there is no previous item")
	case "nextitem":
		return l.neighbour(l.index+1, "there is no next item")
	case "cycle":
		return &function{"cycle", l.cycle}
	case "changed":
		return &function{"changed", l.changed}
	}
	return &Undefined{reason: "loop has no attribute '" + name + "'"}
}

func (l *loopState) neighbour(i int, reason string) Value {
	if i < 0 || i >= len(l.items) {
		return &Undefined{reason: reason}
	}
	return l.items[i]
}

func (l *loopState) cycle(_ *machine, args *callArgs) (Value, error) {
	if len(args.positional) == 0 {
		return nil, errType("no items for cycling given")
	}
	return args.positional[l.index%len(args.positional)], nil
}

func (l *loopState) changed(vm *machine, args *callArgs) (Value, error) {
	before, begun := l.last, l.begun
	l.last, l.begun = args.positional, true
	if !begun || len(before) != len(args.positional) {
		return Bool(true), nil
	}
	for i, v := range args.positional {
		same, err := vm.equal(before[i], v, 0)
		if err != nil || !same {
			return Bool(true), err
		}
	}
	return Bool(false), nil
}
