package jinja

// builtinGlobals are the functions every template sees.
var builtinGlobals = map[string]Value{
	"range":           &function{"range", globalRange},
	"dict":            &function{"dict", globalDict},
	"namespace":       &function{"namespace", globalNamespace},
	"raise_exception": &function{"raise_exception", globalRaise},
	"strftime_now":    &function{"strftime_now", globalNow},
}

// maxRange is the sandbox's bound on the length of a range.
const maxRange = 100_000

func globalRange(vm *machine, args *callArgs) (Value, error) {
	n := len(args.positional)
	if n < 1 || n > 3 || len(args.named) > 0 {
		return nil, errType("range takes 1 to 3 arguments")
	}
	bounds := [3]int64{0, 0, 1}
	for i, v := range args.positional {
		value, ok := integer(v)
		if !ok {
			return nil, errType("'%s' object cannot be interpreted as an integer", v.typeName())
		}
		if n == 1 {
			i = 1
		}
		bounds[i] = value
	}
	return vm.makeRange(bounds[0], bounds[1], bounds[2])
}

func (vm *machine) makeRange(start, stop, step int64) (Value, error) {
	if step == 0 {
		return nil, errType("range() arg 3 must not be zero")
	}
	l := &List{Form: FormRange}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(l.Items) == maxRange {
			return nil, &LimitError{"a range of more than 100000 items"}
		}
		l.Items = append(l.Items, Int(i))
		if remaining := stop - i; step > 0 && remaining > 0 && step >= remaining || step < 0 && remaining < 0 && step <= remaining {
			break
		}
	}
	return l, vm.growList(len(l.Items))
}

func globalDict(vm *machine, args *callArgs) (Value, error) {
	d := NewDict()
	if len(args.positional) > 1 {
		return nil, errType("dict takes at most 1 positional argument")
	}
	for _, v := range args.positional {
		if err := vm.fillDict(d, v); err != nil {
			return nil, err
		}
	}
	for _, n := range args.named {
		d.Set(n.name, n.value)
	}
	return d, vm.growList(2 * d.Len())
}

// fillDict adds the entries of a mapping or of a sequence of pairs.
func (vm *machine) fillDict(d *Dict, v Value) error {
	entries, err := vm.pairsOf(v)
	if err != nil {
		return err
	}
	for _, e := range entries {
		pair, err := vm.iterate(e)
		if err != nil {
			return err
		}
		if len(pair) != 2 {
			return errType("a dictionary entry has %d values, not 2", len(pair))
		}
		if err := d.SetValue(pair[0], pair[1]); err != nil {
			return err
		}
	}
	return nil
}

func (vm *machine) pairsOf(v Value) ([]Value, error) {
	if d, ok := v.(*Dict); ok {
		return d.pairs(), vm.growList(3 * d.Len())
	}
	return vm.iterate(v)
}

func globalNamespace(vm *machine, args *callArgs) (Value, error) {
	d, err := globalDict(vm, args)
	if err != nil {
		return nil, err
	}
	return &Namespace{d.(*Dict)}, nil
}

func globalRaise(vm *machine, args *callArgs) (Value, error) {
	bound, err := args.bind("message")
	if err != nil {
		return nil, err
	}
	message, err := vm.str(bound[0])
	if err != nil {
		return nil, err
	}
	return nil, &RaisedError{message}
}

func globalNow(vm *machine, args *callArgs) (Value, error) {
	bound, err := args.bind("format")
	if err != nil {
		return nil, err
	}
	format, err := stringArg(bound[0], "")
	if err != nil {
		return nil, err
	}
	if err := vm.grow(16 * len(format)); err != nil { // no field is longer than 16 bytes a letter
		return nil, err
	}
	return String(strftime(vm.now(), format)), nil
}
