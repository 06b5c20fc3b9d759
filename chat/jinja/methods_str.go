package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// stringMethods is filled once, in init: format looks methods up itself.
var stringMethods map[string]methodFunc

func init() {
	stringMethods = map[string]methodFunc{
		"strip":        stripMethod(strings.TrimFunc),
		"lstrip":       stripMethod(strings.TrimLeftFunc),
		"rstrip":       stripMethod(strings.TrimRightFunc),
		"upper":        mapMethod(toUpper),
		"lower":        mapMethod(toLower),
		"title":        mapMethod(titleWords),
		"capitalize":   mapMethod(capitalize),
		"casefold":     mapMethod(toLower),
		"swapcase":     mapMethod(swapCase),
		"startswith":   affixMethod(strings.HasPrefix),
		"endswith":     affixMethod(strings.HasSuffix),
		"removeprefix": trimMethod(strings.TrimPrefix),
		"removesuffix": trimMethod(strings.TrimSuffix),
		"split":        splitMethod, "rsplit": rsplitMethod, "splitlines": splitlinesMethod,
		"partition": partitionMethod(strings.Index, false), "rpartition": partitionMethod(strings.LastIndex, true),
		"replace": replaceMethod, "join": joinMethod, "format": formatMethod, "zfill": zfillMethod,
		"find": findMethod(strings.Index, false), "rfind": findMethod(strings.LastIndex, false),
		"index": findMethod(strings.Index, true), "rindex": findMethod(strings.LastIndex, true),
		"count":  countMethod,
		"center": padMethod(1), "ljust": padMethod(0), "rjust": padMethod(2),
		"isalpha": allMethod(unicode.IsLetter),
		"isalnum": allMethod(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }),
		"isdigit": allMethod(unicode.IsDigit), "isdecimal": allMethod(unicode.IsDigit), "isnumeric": allMethod(unicode.IsNumber),
		"isspace": allMethod(isSpace),
		"islower": boolMethod(isLower), "isupper": boolMethod(isUpper),
		"istitle": boolMethod(func(s string) bool { return strings.IndexFunc(s, unicode.IsLetter) >= 0 && titleWords(s) == s }),
		"isascii": boolMethod(func(s string) bool { return strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) < 0 }),
	}
}

// textArgs binds arguments that must be strings; absent ones are nil pointers.
func textArgs(args *callArgs, params ...string) ([]*string, error) {
	bound, err := args.bind(params...)
	if err != nil {
		return nil, err
	}
	out := make([]*string, len(bound))
	for i, v := range bound {
		if v == nil || v == (None{}) && strings.HasSuffix(params[i], "?") {
			continue
		}
		s, err := stringArg(v, "")
		if err != nil {
			return nil, err
		}
		out[i] = &s
	}
	return out, nil
}

func stripMethod(trim func(string, func(rune) bool) string) methodFunc {
	return func(_ *machine, s string, args *callArgs) (Value, error) {
		bound, err := textArgs(args, "chars?")
		if err != nil {
			return nil, err
		}
		drop := isSpace
		if bound[0] != nil {
			drop = func(r rune) bool { return strings.ContainsRune(*bound[0], r) }
		}
		return String(trim(s, drop)), nil
	}
}

func mapMethod(change func(string) string) methodFunc {
	return func(vm *machine, s string, args *callArgs) (Value, error) {
		if _, err := args.bind(); err != nil {
			return nil, err
		}
		return vm.made(change(s))
	}
}

func boolMethod(is func(string) bool) methodFunc {
	return func(_ *machine, s string, args *callArgs) (Value, error) {
		_, err := args.bind()
		return Bool(is(s)), err
	}
}

func allMethod(is func(rune) bool) methodFunc {
	return boolMethod(func(s string) bool {
		return s != "" && strings.IndexFunc(s, func(r rune) bool { return !is(r) }) < 0
	})
}

// affixMethod is startswith or endswith: of a string or any of a tuple.
func affixMethod(has func(s, affix string) bool) methodFunc {
	return func(_ *machine, s string, args *callArgs) (Value, error) {
		bound, err := args.bind("affix")
		if err != nil {
			return nil, err
		}
		affixes := []Value{bound[0]}
		if l, ok := bound[0].(*List); ok && l.Form == FormTuple {
			affixes = l.Items
		}
		for _, v := range affixes {
			affix, err := stringArg(v, "")
			if err != nil || has(s, affix) {
				return Bool(true), err
			}
		}
		return Bool(false), nil
	}
}

func trimMethod(trim func(s, affix string) string) methodFunc {
	return func(_ *machine, s string, args *callArgs) (Value, error) {
		bound, err := textArgs(args, "affix")
		if err != nil {
			return nil, err
		}
		return String(trim(s, *bound[0])), nil
	}
}

func replaceMethod(vm *machine, s string, args *callArgs) (Value, error) {
	bound, err := args.bind("old", "new", "count?")
	if err != nil {
		return nil, err
	}
	old, err := stringArg(bound[0], "")
	if err != nil {
		return nil, err
	}
	with, err := stringArg(bound[1], "")
	if err != nil {
		return nil, err
	}
	count, err := intArg(bound[2], -1)
	if err != nil {
		return nil, err
	}
	return vm.replace(s, old, with, count)
}

func joinMethod(vm *machine, s string, args *callArgs) (Value, error) {
	bound, err := args.bind("iterable")
	if err != nil {
		return nil, err
	}
	items, err := vm.iterate(bound[0])
	if err != nil {
		return nil, err
	}
	p := printer{vm: vm}
	for i, item := range items {
		part, ok := text(item)
		if !ok {
			return nil, errType("sequence item %d: expected str instance, %s found", i, item.typeName())
		}
		if i > 0 {
			part = s + part
		}
		if err := p.write(part); err != nil {
			return nil, err
		}
	}
	return String(p.out.String()), nil
}

// searchArgs are those of searches in s: what to look for, the part to look in, and the offset of its start.
func searchArgs(s string, args *callArgs) (sub, part string, offset int, err error) {
	bound, err := args.bind("sub", "start?", "end?")
	if err != nil {
		return "", "", 0, err
	}
	if sub, err = stringArg(bound[0], ""); err != nil {
		return "", "", 0, err
	}
	part, offset, err = span(s, bound[1], bound[2])
	return sub, part, offset, err
}

// findMethod searches by code points; index variants fail when absent.
func findMethod(search func(s, sub string) int, must bool) methodFunc {
	return func(_ *machine, s string, args *callArgs) (Value, error) {
		sub, part, offset, err := searchArgs(s, args)
		if err != nil {
			return nil, err
		}
		at := search(part, sub)
		if at < 0 && must {
			return nil, errType("substring not found")
		}
		if at < 0 || offset < 0 {
			return Int(-1), nil
		}
		return Int(offset + utf8.RuneCountInString(part[:at])), nil
	}
}

// span is s[start:end] with the offset of its start; -1 when start is beyond s.
func span(s string, start, end Value) (string, int, error) {
	bounds := [3]Value{start, end, None{}}
	for i, v := range bounds {
		if v == nil {
			bounds[i] = None{}
		}
	}
	if bounds[0] == (None{}) && bounds[1] == (None{}) {
		return s, 0, nil
	}
	runes := []rune(s)
	at, err := sliceIndices(bounds, len(runes))
	if err != nil {
		return "", 0, err
	}
	if len(at) > 0 {
		return string(runes[at[0] : at[len(at)-1]+1]), at[0], nil
	}
	if n, _ := integer(bounds[0]); n <= int64(len(runes)) {
		return "", int(max(n, 0)), nil
	}
	return "", -1, nil
}

func countMethod(_ *machine, s string, args *callArgs) (Value, error) {
	sub, part, _, err := searchArgs(s, args)
	return Int(strings.Count(part, sub)), err
}

func zfillMethod(vm *machine, s string, args *callArgs) (Value, error) {
	bound, err := args.bind("width")
	if err != nil {
		return nil, err
	}
	width, err := intArg(bound[0], 0)
	if err != nil {
		return nil, err
	}
	missing := max(width-utf8.RuneCountInString(s), 0)
	if err := vm.grow(missing + len(s)); err != nil {
		return nil, err
	}
	sign := ""
	if s != "" && (s[0] == '-' || s[0] == '+') {
		sign, s = s[:1], s[1:]
	}
	return String(sign + strings.Repeat("0", missing) + s), nil
}

// padMethod pads to a width: side 0 on the right, 1 on both, 2 on the left.
func padMethod(side int) methodFunc {
	return func(vm *machine, s string, args *callArgs) (Value, error) {
		bound, err := args.bind("width", "fillchar?")
		if err != nil {
			return nil, err
		}
		width, err := intArg(bound[0], 0)
		if err != nil {
			return nil, err
		}
		fill, err := stringArg(bound[1], " ")
		if err == nil && utf8.RuneCountInString(fill) != 1 {
			err = errType("the fill character must be exactly one character long")
		}
		if err != nil {
			return nil, err
		}
		return vm.pad(s, width, fill, side)
	}
}

func (vm *machine) pad(s string, width int, fill string, side int) (Value, error) {
	total := max(width-utf8.RuneCountInString(s), 0)
	if total > vm.limits.OutputBytes {
		return nil, &LimitError{"padding is too wide"}
	}
	if err := vm.grow(len(s) + total*len(fill)); err != nil {
		return nil, err
	}
	left := 0
	switch side {
	case 1:
		left = total/2 + total&width&1
	case 2:
		left = total
	}
	return String(strings.Repeat(fill, left) + s + strings.Repeat(fill, total-left)), nil
}
