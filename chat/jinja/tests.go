package jinja

import (
	"strings"
	"unicode"
)

// testFunc decides value is name(args).
type testFunc func(vm *machine, v Value, args *callArgs) (bool, error)

var builtinTests = testTable()

func testTable() map[string]testFunc {
	t := map[string]testFunc{
		"divisibleby": testDivisibleBy, "odd": testParity(1), "even": testParity(0),
		"in": testIn, "sameas": testSameAs, "iterable": testIterable, "lower": testLower, "upper": testUpper,
		"filter": func(vm *machine, v Value, _ *callArgs) (bool, error) {
			s, _ := text(v)
			return vm.filters[s] != nil, nil
		},
		"test": func(vm *machine, v Value, _ *callArgs) (bool, error) { s, _ := text(v); return vm.tests[s] != nil, nil },
	}
	for name, is := range typeTests() {
		t[name] = func(_ *machine, v Value, args *callArgs) (bool, error) {
			_, err := args.bind()
			return is(v), err
		}
	}
	for op, names := range map[string][]string{
		"==": {"eq", "equalto", "=="}, "!=": {"ne", "!="}, "<": {"lt", "lessthan", "<"},
		"<=": {"le", "<="}, ">": {"gt", "greaterthan", ">"}, ">=": {"ge", ">="},
	} {
		for _, name := range names {
			t[name] = testCompare(op)
		}
	}
	return t
}

// typeTests are the tests that look at the value's type alone.
func typeTests() map[string]func(Value) bool {
	undefined := func(v Value) bool { _, ok := v.(*Undefined); return ok }
	return map[string]func(Value) bool{
		"defined":   func(v Value) bool { return !undefined(v) },
		"undefined": undefined,
		"none":      func(v Value) bool { return v == None{} },
		"string":    func(v Value) bool { _, ok := text(v); return ok },
		"mapping":   func(v Value) bool { _, ok := v.(*Dict); return ok },
		"sequence":  isSequence,
		"boolean":   func(v Value) bool { _, ok := v.(Bool); return ok },
		"true":      func(v Value) bool { return v == Bool(true) },
		"false":     func(v Value) bool { return v == Bool(false) },
		"integer":   isInteger,
		"float":     func(v Value) bool { _, ok := v.(Float); return ok },
		"number":    func(v Value) bool { _, ok := number(v); _, big := v.(BigInt); return ok || big },
		"callable":  func(v Value) bool { _, ok := v.(*function); return ok || undefined(v) },
		"escaped":   func(v Value) bool { _, ok := v.(Markup); return ok },
	}
}

func isInteger(v Value) bool {
	switch v.(type) {
	case Int, BigInt:
		return true
	}
	return false
}

func isSequence(v Value) bool {
	switch x := v.(type) {
	case *List:
		return x.indexed()
	case String, Markup, *Dict, *Undefined:
		return true
	}
	return false
}

// test evaluates value is name(args).
func (vm *machine) test(name string, v Value, args *callArgs) (bool, error) {
	f, ok := vm.tests[name]
	if !ok {
		return false, errType("no test named %q", name)
	}
	return f(vm, v, args)
}

func testCompare(op string) testFunc {
	return func(vm *machine, v Value, args *callArgs) (bool, error) {
		bound, err := args.bind("other")
		if err != nil {
			return false, err
		}
		return vm.compare(op, v, bound[0])
	}
}

func testIn(vm *machine, v Value, args *callArgs) (bool, error) {
	bound, err := args.bind("seq")
	if err != nil {
		return false, err
	}
	return vm.contains(bound[0], v)
}

func testSameAs(_ *machine, v Value, args *callArgs) (bool, error) {
	bound, err := args.bind("other")
	return err == nil && v == bound[0], err
}

func testIterable(_ *machine, v Value, args *callArgs) (bool, error) {
	_, err := args.bind()
	switch v.(type) {
	case *List, *Dict, *Undefined, String, Markup:
		return true, err
	}
	return false, err
}

func testDivisibleBy(vm *machine, v Value, args *callArgs) (bool, error) {
	bound, err := args.bind("num")
	if err != nil {
		return false, err
	}
	rest, err := vm.arithmetic("%", v, bound[0])
	if err != nil {
		return false, err
	}
	return vm.equal(rest, Int(0), 0)
}

func testParity(rest Int) testFunc {
	return func(vm *machine, v Value, _ *callArgs) (bool, error) {
		got, err := vm.arithmetic("%", v, Int(2))
		if err != nil {
			return false, err
		}
		return vm.equal(got, rest, 0)
	}
}

func testLower(vm *machine, v Value, _ *callArgs) (bool, error) {
	s, err := vm.str(v)
	return isLower(s), err
}

func testUpper(vm *machine, v Value, _ *callArgs) (bool, error) {
	s, err := vm.str(v)
	return isUpper(s), err
}

func isLower(s string) bool {
	return strings.IndexFunc(s, unicode.IsLower) >= 0 && strings.IndexFunc(s, isCapital) < 0
}

func isUpper(s string) bool {
	return strings.IndexFunc(s, isCapital) >= 0 && strings.IndexFunc(s, unicode.IsLower) < 0
}

func isCapital(r rune) bool { return unicode.IsUpper(r) || unicode.IsTitle(r) }
