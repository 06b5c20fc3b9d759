package jinja

func (s *macroStmt) exec(_ *machine, sc *scope) (signal, error) {
	sc.set(s.name, s.def.bind(sc))
	return proceed, nil
}

func (s *callStmt) exec(vm *machine, sc *scope) (signal, error) {
	text, err := s.text(vm, sc)
	if err == nil {
		err = vm.write(text)
	}
	return proceed, atLine(s.line, err)
}

func (s *callStmt) text(vm *machine, sc *scope) (string, error) {
	callee, err := vm.eval(s.call.callee, sc)
	if err != nil {
		return "", err
	}
	args, err := s.call.args.eval(vm, sc)
	if err != nil {
		return "", err
	}
	withCaller := &callArgs{positional: args.positional}
	withCaller.named = append(withCaller.named, args.named...)
	if err := withCaller.addNamed("caller", s.caller.bind(sc)); err != nil {
		return "", err
	}
	v, err := vm.call(callee, withCaller)
	if err != nil {
		return "", err
	}
	return vm.str(v)
}

// bind makes the macro callable; it sees the variables of sc.
func (d *macroDef) bind(sc *scope) *function {
	return &function{d.name, func(vm *machine, args *callArgs) (Value, error) {
		inner := sc.child()
		if err := d.bindArgs(vm, inner, args); err != nil {
			return nil, err
		}
		return vm.captureBody(d.body, inner)
	}}
}

func (d *macroDef) bindArgs(vm *machine, inner *scope, args *callArgs) error {
	given := min(len(args.positional), len(d.params))
	for i, name := range d.params[:given] {
		inner.set(name, args.positional[i])
	}
	if err := d.bindNamed(vm, inner, args, given); err != nil {
		return err
	}
	extra := args.positional[given:]
	if len(extra) > 0 && !d.varargs {
		return errType("macro '%s' takes not more than %d argument(s)", d.name, len(d.params))
	}
	if d.varargs {
		inner.set("varargs", &List{Items: extra, Form: FormTuple})
	}
	return d.bindMissing(vm, inner)
}

// bindNamed sets keyword arguments; kwargs takes those without a parameter.
func (d *macroDef) bindNamed(vm *machine, inner *scope, args *callArgs, given int) error {
	rest := NewDict()
	for _, n := range args.named {
		at := d.param(n.name)
		switch {
		case at >= 0 && at < given:
			return errType("macro '%s' got multiple values for argument '%s'", d.name, n.name)
		case at >= 0:
			inner.set(n.name, n.value)
		case n.name == "caller" && d.caller:
			inner.set("caller", n.value)
		case d.kwargs:
			rest.Set(n.name, n.value)
		default:
			return errType("macro '%s' takes no keyword argument '%s'", d.name, n.name)
		}
	}
	if d.kwargs {
		inner.set("kwargs", rest)
	}
	if _, given := inner.vars["caller"]; d.caller && !given {
		inner.set("caller", &Undefined{reason: "No caller defined"})
	}
	return nil
}

func (d *macroDef) param(name string) int {
	for i, p := range d.params {
		if p == name {
			return i
		}
	}
	return -1
}

// bindMissing evaluates the defaults of parameters that were not given.
func (d *macroDef) bindMissing(vm *machine, inner *scope) error {
	first := len(d.params) - len(d.defaults)
	for i, name := range d.params {
		if _, given := inner.vars[name]; given {
			continue
		}
		if i < first {
			inner.set(name, &Undefined{reason: "parameter '" + name + "' was not provided"})
			continue
		}
		v, err := vm.eval(d.defaults[i-first], inner)
		if err != nil {
			return err
		}
		inner.set(name, v)
	}
	return nil
}
