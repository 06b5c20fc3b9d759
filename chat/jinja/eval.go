package jinja

func (e *constant) eval(*machine, *scope) (Value, error) { return e.value, nil }
func (e *nameExpr) eval(vm *machine, sc *scope) (Value, error) {
	v, hops := sc.get(e.name)
	return v, vm.step(hops / 8)
}

func (e *listExpr) eval(vm *machine, sc *scope) (Value, error) {
	items, err := vm.evalAll(e.items, sc)
	return &List{Items: items}, err
}

func (e *tupleExpr) eval(vm *machine, sc *scope) (Value, error) {
	items, err := vm.evalAll(e.items, sc)
	return &List{Items: items, Form: FormTuple}, err
}

func (e *dictExpr) eval(vm *machine, sc *scope) (Value, error) {
	keys, err := vm.evalAll(e.keys, sc)
	if err != nil {
		return nil, err
	}
	values, err := vm.evalAll(e.values, sc)
	if err != nil {
		return nil, err
	}
	d := NewDict()
	for i, key := range keys {
		if err := d.SetValue(key, values[i]); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func (e *attribute) eval(vm *machine, sc *scope) (Value, error) {
	object, err := vm.eval(e.object, sc)
	if err != nil {
		return nil, err
	}
	return vm.getAttribute(object, e.name)
}

func (e *subscript) eval(vm *machine, sc *scope) (Value, error) {
	object, err := vm.eval(e.object, sc)
	if err != nil {
		return nil, err
	}
	index, err := vm.eval(e.index, sc)
	if err != nil {
		return nil, err
	}
	return vm.getItem(object, index)
}

func (e *sliceExpr) eval(vm *machine, sc *scope) (Value, error) {
	object, err := vm.eval(e.object, sc)
	if err != nil {
		return nil, err
	}
	var bounds [3]Value
	for i, bound := range []expression{e.start, e.stop, e.step} {
		bounds[i] = None{}
		if bound == nil {
			continue
		}
		if bounds[i], err = vm.eval(bound, sc); err != nil {
			return nil, err
		}
	}
	return vm.slice(object, bounds)
}

func (e *callExpr) eval(vm *machine, sc *scope) (Value, error) {
	callee, err := vm.eval(e.callee, sc)
	if err != nil {
		return nil, err
	}
	args, err := e.args.eval(vm, sc)
	if err != nil {
		return nil, err
	}
	return vm.call(callee, args)
}

// call invokes a callable one level deeper.
func (vm *machine) call(callee Value, args *callArgs) (Value, error) {
	switch f := callee.(type) {
	case *Undefined:
		return nil, errUndefined(f)
	case *function:
		if err := vm.enter(); err != nil {
			return nil, err
		}
		defer vm.leave()
		return f.call(vm, args)
	}
	return nil, errType("'%s' object is not callable", callee.typeName())
}

func (e *filterExpr) eval(vm *machine, sc *scope) (Value, error) {
	input, err := vm.eval(e.input, sc)
	if err != nil {
		return nil, err
	}
	return e.apply(vm, sc, input)
}

// apply runs the filter on a value; filter blocks have the block's text as
// the innermost input.
func (e *filterExpr) apply(vm *machine, sc *scope, input Value) (Value, error) {
	args, err := e.args.eval(vm, sc)
	if err != nil {
		return nil, err
	}
	return vm.filter(e.name, input, args)
}

// applyFilters runs a chain of filters whose innermost input is absent.
func (vm *machine) applyFilters(chain expression, input Value, sc *scope) (Value, error) {
	f, ok := chain.(*filterExpr)
	if !ok {
		return input, nil
	}
	inner, err := vm.applyFilters(f.input, input, sc)
	if err != nil {
		return nil, err
	}
	return f.apply(vm, sc, inner)
}

func (e *testExpr) eval(vm *machine, sc *scope) (Value, error) {
	input, err := vm.eval(e.input, sc)
	if err != nil {
		return nil, err
	}
	args, err := e.args.eval(vm, sc)
	if err != nil {
		return nil, err
	}
	ok, err := vm.test(e.name, input, args)
	return Bool(ok), err
}

func (e *notExpr) eval(vm *machine, sc *scope) (Value, error) {
	v, err := vm.eval(e.operand, sc)
	if err != nil {
		return nil, err
	}
	return Bool(!truth(v)), nil
}

func (e *signExpr) eval(vm *machine, sc *scope) (Value, error) {
	v, err := vm.eval(e.operand, sc)
	if err != nil {
		return nil, err
	}
	return signed(v, e.negative)
}

func (e *andExpr) eval(vm *machine, sc *scope) (Value, error) {
	left, err := vm.eval(e.left, sc)
	if err != nil || !truth(left) {
		return left, err
	}
	return vm.eval(e.right, sc)
}

func (e *orExpr) eval(vm *machine, sc *scope) (Value, error) {
	left, err := vm.eval(e.left, sc)
	if err != nil || truth(left) {
		return left, err
	}
	return vm.eval(e.right, sc)
}

func (e *arithmetic) eval(vm *machine, sc *scope) (Value, error) {
	left, err := vm.eval(e.left, sc)
	if err != nil {
		return nil, err
	}
	right, err := vm.eval(e.right, sc)
	if err != nil {
		return nil, err
	}
	return vm.arithmetic(e.op, left, right)
}

func (e *concatExpr) eval(vm *machine, sc *scope) (Value, error) {
	p := printer{vm: vm}
	for _, part := range e.parts {
		v, err := vm.eval(part, sc)
		if err != nil {
			return nil, err
		}
		s, err := vm.str(v)
		if err != nil {
			return nil, err
		}
		if err := p.write(s); err != nil {
			return nil, err
		}
	}
	return String(p.out.String()), nil
}

func (e *comparison) eval(vm *machine, sc *scope) (Value, error) {
	left, err := vm.eval(e.first, sc)
	if err != nil {
		return nil, err
	}
	for _, link := range e.rest {
		right, err := vm.eval(link.right, sc)
		if err != nil {
			return nil, err
		}
		ok, err := vm.compare(link.op, left, right)
		if err != nil || !ok {
			return Bool(false), err
		}
		left = right
	}
	return Bool(true), nil
}

func (e *conditional) eval(vm *machine, sc *scope) (Value, error) {
	test, err := vm.eval(e.test, sc)
	if err != nil {
		return nil, err
	}
	switch {
	case truth(test):
		return vm.eval(e.then, sc)
	case e.otherwise != nil:
		return vm.eval(e.otherwise, sc)
	}
	return &Undefined{reason: "the inline if-expression evaluated to false and no else section was defined."}, nil
}
