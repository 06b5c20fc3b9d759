package jinja

func (s *textStmt) exec(vm *machine, _ *scope) (signal, error) { return proceed, vm.write(s.text) }

func (s *printStmt) exec(vm *machine, sc *scope) (signal, error) {
	v, err := vm.eval(s.value, sc)
	if err != nil {
		return proceed, atLine(s.line, err)
	}
	text, err := vm.str(v)
	if err == nil {
		err = vm.write(text)
	}
	return proceed, atLine(s.line, err)
}

func (s *ifStmt) exec(vm *machine, sc *scope) (signal, error) {
	for _, b := range s.branches {
		v, err := vm.eval(b.test, sc)
		if err != nil {
			return proceed, atLine(s.line, err)
		}
		if truth(v) {
			return vm.run(b.body, sc)
		}
	}
	return vm.run(s.otherwise, sc)
}

func (s *setStmt) exec(vm *machine, sc *scope) (signal, error) {
	v, err := vm.eval(s.value, sc)
	if err == nil {
		err = vm.assign(s.target, v, sc)
	}
	return proceed, atLine(s.line, err)
}

// captureBody renders statements in a scope of their own.
func (vm *machine) captureBody(body []statement, sc *scope) (String, error) {
	return vm.capture(func() error {
		_, err := vm.run(body, sc)
		return err
	})
}

func (s *setBlock) exec(vm *machine, sc *scope) (signal, error) {
	text, err := vm.captureBody(s.body, sc.child())
	if err != nil {
		return proceed, atLine(s.line, err)
	}
	v, err := vm.applyFilters(s.filter, text, sc)
	if err == nil {
		err = vm.assign(s.target, v, sc)
	}
	return proceed, atLine(s.line, err)
}

func (s *filterStmt) exec(vm *machine, sc *scope) (signal, error) {
	text, err := vm.captureBody(s.body, sc.child())
	if err != nil {
		return proceed, atLine(s.line, err)
	}
	v, err := vm.applyFilters(s.filter, text, sc)
	if err != nil {
		return proceed, atLine(s.line, err)
	}
	out, err := vm.str(v)
	if err == nil {
		err = vm.write(out)
	}
	return proceed, atLine(s.line, err)
}

func (s *withStmt) exec(vm *machine, sc *scope) (signal, error) {
	values, err := vm.evalAll(s.values, sc)
	if err != nil {
		return proceed, atLine(s.line, err)
	}
	inner := sc.child()
	for i, t := range s.targets {
		if err := vm.assign(t, values[i], inner); err != nil {
			return proceed, atLine(s.line, err)
		}
	}
	return vm.run(s.body, inner)
}

func (s *groupStmt) exec(vm *machine, sc *scope) (signal, error) { return vm.run(s.body, sc.child()) }

func (*breakStmt) exec(*machine, *scope) (signal, error)    { return breakLoop, nil }
func (*continueStmt) exec(*machine, *scope) (signal, error) { return continueLoop, nil }
