package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// textFilter makes a filter from a change of text; Markup stays Markup.
func textFilter(change func(string) string) filterFunc {
	return func(vm *machine, v Value, args *callArgs) (Value, error) {
		if _, err := args.bind(); err != nil {
			return nil, err
		}
		s, err := vm.str(v)
		if err == nil {
			err = vm.scan(len(s))
		}
		if err != nil {
			return nil, err
		}
		out := change(s)
		return retext(v, out), vm.grow(len(out))
	}
}

func filterTrim(vm *machine, v Value, args *callArgs) (Value, error) {
	s, err := vm.str(v)
	if err == nil {
		err = vm.scan(len(s))
	}
	if err != nil {
		return nil, err
	}
	out, err := stringMethods["strip"](vm, s, args)
	if err != nil {
		return nil, err
	}
	trimmed, _ := text(out)
	return retext(v, trimmed), nil
}

func filterReplace(vm *machine, v Value, args *callArgs) (Value, error) {
	bound, err := args.bind("old", "new", "count?")
	if err != nil {
		return nil, err
	}
	var parts [3]string
	for i, part := range []Value{v, bound[0], bound[1]} {
		if parts[i], err = vm.str(part); err != nil {
			return nil, err
		}
	}
	if bound[2] == (None{}) {
		bound[2] = nil
	}
	count, err := intArg(bound[2], -1)
	if err != nil {
		return nil, err
	}
	return vm.replace(parts[0], parts[1], parts[2], count)
}

func filterIndent(vm *machine, v Value, args *callArgs) (Value, error) {
	bound, err := args.bind("width?", "first?", "blank?")
	if err != nil {
		return nil, err
	}
	s, ok := text(v)
	if !ok {
		return nil, errType("indent: a str is required, not %s", v.typeName())
	}
	indent, isText := text(bound[0])
	if !isText {
		width, err := intArg(bound[0], 4)
		if err != nil {
			return nil, err
		}
		indent = strings.Repeat(" ", min(max(width, 0), maxIndent+1))
	}
	if len(indent) > maxIndent {
		return nil, &LimitError{"an indent of more than 1000"}
	}
	out, err := vm.indent(s, indent, truthArg(bound[1], false), truthArg(bound[2], false))
	return retext(v, out), err
}

func (vm *machine) indent(s, indent string, first, blank bool) (string, error) {
	if err := vm.growList(len(s)); err != nil {
		return "", err
	}
	p := printer{vm: vm}
	for i, line := range splitLines(s+"\n", false) {
		if i > 0 {
			line = "\n" + indentIf(line, indent, blank || line != "")
		} else {
			line = indentIf(line, indent, first)
		}
		if err := p.write(line); err != nil {
			return "", err
		}
	}
	return p.out.String(), nil
}

func indentIf(line, indent string, yes bool) string {
	if yes {
		return indent + line
	}
	return line
}

func filterCenter(vm *machine, v Value, args *callArgs) (Value, error) {
	bound, err := args.bind("width?")
	if err != nil {
		return nil, err
	}
	width, err := intArg(bound[0], 80)
	if err != nil {
		return nil, err
	}
	s, err := vm.str(v)
	if err != nil {
		return nil, err
	}
	return vm.pad(s, width, " ", 1)
}

// truncateLeeway is the excess that truncate leaves alone by default.
const truncateLeeway = 5

func filterTruncate(vm *machine, v Value, args *callArgs) (Value, error) {
	bound, err := args.bind("length?", "killwords?", "end?", "leeway?")
	if err != nil {
		return nil, err
	}
	length, err := intArg(bound[0], 255)
	if err != nil {
		return nil, err
	}
	end, err := stringArg(bound[2], "...")
	if err != nil {
		return nil, err
	}
	leeway, err := intArg(bound[3], truncateLeeway)
	if err != nil {
		return nil, err
	}
	s, ok := text(v)
	if !ok {
		return nil, errType("truncate: a str is required, not %s", v.typeName())
	}
	keep := length - utf8.RuneCountInString(end)
	if keep < 0 || leeway < 0 {
		return nil, errType("truncate: length and leeway are too small")
	}
	if utf8.RuneCountInString(s) <= length+leeway {
		return v, nil
	}
	cut := truncateRunes(s, keep)
	if space := strings.LastIndexByte(cut, ' '); space >= 0 && !truthArg(bound[1], false) {
		cut = cut[:space]
	}
	return vm.made(cut + end)
}

func filterWordCount(vm *machine, v Value, args *callArgs) (Value, error) {
	if _, err := args.bind(); err != nil {
		return nil, err
	}
	s, err := vm.str(v)
	words := strings.FieldsFunc(s, func(r rune) bool {
		return r != '_' && !unicode.IsLetter(r) && !unicode.IsNumber(r)
	})
	if err == nil {
		err = vm.growList(len(words))
	}
	return Int(len(words)), err
}
