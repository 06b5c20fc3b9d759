package jinja

import (
	"strconv"
	"strings"
)

// percentFormat is format % values.
func (vm *machine) percentFormat(format, values Value) (Value, error) {
	f := &percentFormatter{vm: vm, p: printer{vm: vm}, values: []Value{values}}
	if t, ok := values.(*List); ok && t.Form == FormTuple {
		f.values = t.Items
	} else {
		f.lenient = ok
	}
	f.mapping, _ = values.(*Dict)
	_, f.safe = format.(Markup)
	s, _ := text(format)
	if err := f.run(s); err != nil {
		return nil, err
	}
	return retext(format, f.p.out.String()), nil
}

type percentFormatter struct {
	vm      *machine
	p       printer
	values  []Value
	mapping *Dict
	lenient bool // the one value is a list or mapping: it may stay unused
	safe    bool // the format is Markup: escape what is inserted
	used    int
}

func (f *percentFormatter) run(s string) error {
	for {
		at := strings.IndexByte(s, '%')
		if at < 0 {
			break
		}
		if err := f.p.write(s[:at]); err != nil {
			return err
		}
		rest, err := f.directive(s[at+1:])
		if err != nil {
			return err
		}
		s = rest
	}
	if f.used < len(f.values) && !f.lenient && f.mapping == nil {
		return errType("not all arguments converted during string formatting")
	}
	return f.p.write(s)
}

// directive formats one %... and returns what follows it.
func (f *percentFormatter) directive(s string) (string, error) {
	if strings.HasPrefix(s, "%") {
		return s[1:], f.p.write("%")
	}
	key, s, err := mappingKey(s)
	if err != nil {
		return "", err
	}
	spec, s, err := parsePercentSpec(s)
	if err != nil {
		return "", err
	}
	v, err := f.value(key)
	if err != nil {
		return "", err
	}
	out, err := f.format(spec, v)
	if err != nil {
		return "", err
	}
	return s, f.p.write(out)
}

func mappingKey(s string) (*string, string, error) {
	if !strings.HasPrefix(s, "(") {
		return nil, s, nil
	}
	end := strings.IndexByte(s, ')')
	if end < 0 {
		return nil, "", errType("incomplete format key")
	}
	key := s[1:end]
	return &key, s[end+1:], nil
}

func parsePercentSpec(s string) (formatSpec, string, error) {
	spec := formatSpec{fill: " ", precision: -1}
	for s != "" && strings.IndexByte("-+ 0#", s[0]) >= 0 {
		switch s[0] {
		case '-':
			spec.align = '<'
		case '0':
			if spec.align == 0 {
				spec.fill, spec.align = "0", '='
			}
		case '#':
			spec.alternate = true
		default:
			spec.sign = s[0]
		}
		s = s[1:]
	}
	width, n, err := leadingNumber(s)
	if err != nil {
		return spec, "", err
	}
	spec.width, s = width, s[n:]
	if strings.HasPrefix(s, ".") {
		precision, n, err := leadingNumber(s[1:])
		if err != nil {
			return spec, "", err
		}
		spec.precision, s = precision, s[1+n:]
	}
	if s == "" {
		return spec, "", errType("incomplete format")
	}
	spec.verb = s[0]
	return spec, s[1:], nil
}

func (f *percentFormatter) value(key *string) (Value, error) {
	if key != nil {
		if f.mapping == nil {
			return nil, errType("format requires a mapping")
		}
		if v := f.mapping.Get(*key); v != nil {
			return v, nil
		}
		return nil, errType("no key %q", *key)
	}
	if f.used == len(f.values) {
		return nil, errType("not enough arguments for format string")
	}
	f.used++
	return f.values[f.used-1], nil
}

func (f *percentFormatter) format(spec formatSpec, v Value) (string, error) {
	switch spec.verb {
	case 's', 'r':
		return f.formatText(spec, v)
	case 'i', 'u':
		spec.verb = 'd'
	}
	x, isNumber := number(v)
	if strings.IndexByte("dxXocfFeEgG", spec.verb) < 0 {
		return "", errType("unsupported format character '%c'", spec.verb)
	}
	if s, ok := text(v); ok && spec.verb == 'c' && len([]rune(s)) == 1 {
		return spec.pad(s, '>'), nil
	}
	if !isNumber {
		return "", errType("%%%c format: a number is required, not %s", spec.verb, v.typeName())
	}
	if _, isFloat := v.(Float); isFloat && spec.verb == 'd' && x > -9e18 && x < 9e18 {
		v = Int(int64(x))
	}
	if strings.IndexByte("dxXo", spec.verb) >= 0 {
		spec.precision = -1
	}
	if _, isFloat := v.(Float); isFloat && strings.IndexByte("dxXoc", spec.verb) >= 0 {
		return "", errType("%%%c format: an integer is required, not float", spec.verb)
	}
	body, err := spec.number(v)
	return spec.pad(body, '>'), err
}

func (f *percentFormatter) formatText(spec formatSpec, v Value) (s string, err error) {
	if spec.verb == 'r' {
		s, err = f.vm.repr(v)
	} else {
		s, err = f.vm.str(v)
	}
	if _, safe := v.(Markup); f.safe && !safe {
		s = htmlEscaper.Replace(s)
	}
	if spec.align == '=' {
		spec.align, spec.fill = '>', " "
	}
	return spec.pad(truncateRunes(s, spec.precision), '>'), err
}

// formatMethod is str.format without nested fields.
func formatMethod(vm *machine, s string, args *callArgs) (Value, error) {
	p := printer{vm: vm}
	next := 0
	for s != "" {
		at := strings.IndexAny(s, "{}")
		if at < 0 {
			at = len(s)
		}
		if err := p.write(s[:at]); err != nil {
			return nil, err
		}
		s = s[at:]
		switch {
		case s == "":
		case strings.HasPrefix(s, "{{") || strings.HasPrefix(s, "}}"):
			if err := p.write(s[:1]); err != nil {
				return nil, err
			}
			s = s[2:]
		default:
			end := strings.IndexByte(s, '}')
			if s[0] == '}' || end < 0 {
				return nil, errType("a single '%c' in a format string", s[0])
			}
			out, err := vm.replacementField(s[1:end], args, &next)
			if err != nil {
				return nil, err
			}
			if err := p.write(out); err != nil {
				return nil, err
			}
			s = s[end+1:]
		}
	}
	return String(p.out.String()), nil
}

// replacementField formats name!conversion:spec.
func (vm *machine) replacementField(field string, args *callArgs, next *int) (string, error) {
	field, specText, _ := strings.Cut(field, ":")
	field, conversion, converted := strings.Cut(field, "!")
	v, err := vm.fieldValue(field, args, next)
	if err != nil {
		return "", err
	}
	if converted {
		var s string
		if conversion == "r" {
			s, err = vm.repr(v)
		} else {
			s, err = vm.str(v)
		}
		if err != nil || conversion != "r" && conversion != "s" {
			return "", errType("bad conversion in a format string")
		}
		v = String(s)
	}
	spec, err := parseFormatSpec(specText)
	if err != nil {
		return "", err
	}
	return spec.apply(vm, v)
}

// fieldValue finds {}, {0}, {name} and attribute or item paths behind them.
func (vm *machine) fieldValue(field string, args *callArgs, next *int) (Value, error) {
	end := strings.IndexAny(field, ".[")
	if end < 0 {
		end = len(field)
	}
	name, path := field[:end], field[end:]
	if name == "" {
		name = strconv.Itoa(*next)
		*next++
	}
	v, ok := args.lookup(name)
	if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(args.positional) {
		v, ok = args.positional[i], true
	}
	if !ok {
		return nil, errType("no argument for format field %q", name)
	}
	for path != "" && v != nil {
		var err error
		if v, path, err = vm.fieldStep(v, path); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func (vm *machine) fieldStep(v Value, path string) (Value, string, error) {
	rest := path[1:]
	if path[0] == '[' {
		key, after, closed := strings.Cut(rest, "]")
		if !closed {
			return nil, "", errType("missing ']' in a format string")
		}
		var index Value = String(key)
		if n, err := strconv.Atoi(key); err == nil {
			index = Int(n)
		}
		item, err := vm.getItem(v, index)
		return item, after, err
	}
	end := strings.IndexAny(rest, ".[")
	if end < 0 {
		end = len(rest)
	}
	item, err := vm.getAttribute(v, rest[:end])
	return item, rest[end:], err
}
