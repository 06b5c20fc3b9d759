package jinja

import (
	"math"
	"strconv"
	"strings"
	"unicode"
)

// filterFunc computes value | name(args).
type filterFunc func(vm *machine, v Value, args *callArgs) (Value, error)

var builtinFilters = map[string]filterFunc{
	"tojson": filterToJSON, "string": filterString, "safe": filterSafe, "default": filterDefault, "d": filterDefault,
	"escape": filterEscape, "e": filterEscape, "forceescape": filterForceEscape,
	"length": filterLength, "count": filterLength, "int": filterInt, "float": filterFloat, "abs": filterAbs,
	"round": filterRound, "attr": filterAttr, "format": filterFormat,

	"trim": filterTrim, "upper": textFilter(toUpper), "lower": textFilter(toLower),
	"title": textFilter(filterTitle), "capitalize": textFilter(capitalize), "replace": filterReplace,
	"indent": filterIndent, "center": filterCenter, "truncate": filterTruncate, "wordcount": filterWordCount,

	"items": filterItems, "list": filterList, "first": filterFirst, "last": filterLast, "join": filterJoin,
	"reverse": filterReverse, "sort": filterSort, "dictsort": filterDictSort, "unique": filterUnique,
	"min": filterExtreme(false), "max": filterExtreme(true), "sum": filterSum, "batch": filterBatch,
	"map": filterMap, "groupby": filterGroupBy,
	"select": filterSelect(true), "reject": filterSelect(false),
	"selectattr": filterSelectAttr(true), "rejectattr": filterSelectAttr(false),
}

// filter evaluates value | name(args).
func (vm *machine) filter(name string, v Value, args *callArgs) (Value, error) {
	f, ok := vm.filters[name]
	if !ok {
		return nil, errType("no filter named %q", name)
	}
	if err := vm.enter(); err != nil {
		return nil, err
	}
	defer vm.leave()
	return f(vm, v, args)
}

// maxIndent bounds one level of indentation.
const maxIndent = 1000

func filterToJSON(vm *machine, v Value, args *callArgs) (Value, error) {
	bound, err := args.bind("ensure_ascii?", "indent?", "separators?", "sort_keys?")
	if err != nil {
		return nil, err
	}
	style := plainJSON
	style.ascii, style.sortKeys = truthArg(bound[0], false), truthArg(bound[3], false)
	if err := style.setIndent(bound[1]); err != nil {
		return nil, err
	}
	if err := style.setSeparators(bound[2]); err != nil {
		return nil, err
	}
	s, err := vm.toJSON(v, style)
	return String(s), err
}

func (s *jsonStyle) setIndent(v Value) error {
	if v == nil || v == (None{}) {
		return nil
	}
	s.pretty, s.item = true, ","
	indent, isText := text(v)
	if n, ok := integer(v); ok {
		indent = strings.Repeat(" ", int(min(max(n, 0), maxIndent+1)))
	} else if !isText {
		return errType("tojson: indent must be an int or a str")
	}
	if len(indent) > maxIndent {
		return &LimitError{"tojson: an indent of more than 1000"}
	}
	s.indent = indent
	return nil
}

func (s *jsonStyle) setSeparators(v Value) error {
	if v == nil || v == (None{}) {
		return nil
	}
	l, ok := v.(*List)
	if !ok || len(l.Items) != 2 {
		return errType("tojson: separators must be a pair of strings")
	}
	var err error
	if s.item, err = stringArg(l.Items[0], ""); err != nil {
		return err
	}
	s.key, err = stringArg(l.Items[1], "")
	return err
}

func filterString(vm *machine, v Value, args *callArgs) (Value, error) {
	if _, ok := text(v); ok {
		return v, nil
	}
	s, err := vm.str(v)
	return String(s), err
}

func filterSafe(vm *machine, v Value, _ *callArgs) (Value, error) {
	s, err := vm.str(v)
	return Markup(s), err
}

func filterEscape(vm *machine, v Value, _ *callArgs) (Value, error) { return vm.escape(v) }

func filterForceEscape(vm *machine, v Value, _ *callArgs) (Value, error) {
	s, err := vm.str(v)
	if err != nil {
		return nil, err
	}
	return vm.escape(String(s))
}

func filterDefault(_ *machine, v Value, args *callArgs) (Value, error) {
	bound, err := args.bind("default_value?", "boolean?")
	if err != nil {
		return nil, err
	}
	_, undefined := v.(*Undefined)
	if !undefined && !(truthArg(bound[1], false) && !truth(v)) {
		return v, nil
	}
	if bound[0] == nil {
		return String(""), nil
	}
	return bound[0], nil
}

func filterLength(vm *machine, v Value, args *callArgs) (Value, error) {
	if _, err := args.bind(); err != nil {
		return nil, err
	}
	n, err := vm.length(v)
	return Int(n), err
}

func filterInt(_ *machine, v Value, args *callArgs) (Value, error) {
	bound, err := args.bind("default?", "base?")
	if err != nil {
		return nil, err
	}
	base, err := intArg(bound[1], 10)
	if err != nil {
		return nil, err
	}
	if u, ok := v.(*Undefined); ok {
		return nil, errUndefined(u)
	}
	if n, ok := toInt(v, base); ok {
		return n, nil
	}
	if bound[0] == nil {
		return Int(0), nil
	}
	return bound[0], nil
}

func toInt(v Value, base int) (Value, bool) {
	if n, ok := integer(v); ok {
		return Int(n), true
	}
	if big, ok := v.(BigInt); ok {
		return big, true
	}
	if s, ok := text(v); ok {
		if n, ok := parseInt(s, base); ok {
			return Int(n), true
		}
	}
	f, ok := toFloat(v)
	if !ok || math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, false
	}
	if math.Abs(f) >= 1<<63 {
		return BigInt(strconv.FormatFloat(f, 'f', 0, 64)), true
	}
	return Int(int64(f)), true
}

// parseInt is int(s, base): underscores between digits and, in bases 2, 8
// and 16, the base's prefix are allowed.
func parseInt(s string, base int) (int64, bool) {
	s = strings.TrimFunc(s, isSpace)
	digits := strings.TrimLeft(s, "+-")
	if len(s)-len(digits) > 1 || strings.HasPrefix(digits, "_") || strings.HasSuffix(digits, "_") || strings.Contains(digits, "__") {
		return 0, false
	}
	prefix := map[int]string{2: "0b", 8: "0o", 16: "0x"}[base]
	if prefix != "" && len(digits) > 2 && strings.EqualFold(digits[:2], prefix) {
		digits = digits[2:]
	}
	if base != 0 {
		digits = strings.ReplaceAll(digits, "_", "")
	}
	if base < 0 || base == 1 || base > 36 {
		return 0, false
	}
	n, err := strconv.ParseInt(s[:len(s)-len(strings.TrimLeft(s, "+-"))]+digits, base, 64)
	return n, err == nil
}

func toFloat(v Value) (float64, bool) {
	if f, ok := number(v); ok {
		return f, true
	}
	s, ok := text(v)
	if big, isBig := v.(BigInt); isBig {
		s, ok = string(big), true
	}
	if !ok || strings.ContainsAny(s, "xXpP") {
		return 0, false
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(strings.TrimFunc(s, isSpace), "_", ""), 64)
	return f, err == nil || math.IsInf(f, 0)
}

func filterFloat(_ *machine, v Value, args *callArgs) (Value, error) {
	bound, err := args.bind("default?")
	if err != nil {
		return nil, err
	}
	if u, ok := v.(*Undefined); ok {
		return nil, errUndefined(u)
	}
	if f, ok := toFloat(v); ok {
		return Float(f), nil
	}
	if bound[0] == nil {
		return Float(0), nil
	}
	return bound[0], nil
}

func filterAbs(_ *machine, v Value, args *callArgs) (Value, error) {
	if _, err := args.bind(); err != nil {
		return nil, err
	}
	x, ok := number(v)
	if !ok {
		x = 0
	}
	return signed(v, x < 0)
}

func filterRound(_ *machine, v Value, args *callArgs) (Value, error) {
	bound, err := args.bind("precision?", "method?")
	if err != nil {
		return nil, err
	}
	precision, err := intArg(bound[0], 0)
	if err != nil {
		return nil, err
	}
	method, err := stringArg(bound[1], "common")
	if err != nil {
		return nil, err
	}
	x, ok := number(v)
	if !ok {
		return nil, errType("round: a number is required, not %s", v.typeName())
	}
	return roundTo(v, x, precision, method)
}

func roundTo(v Value, x float64, precision int, method string) (Value, error) {
	scale := math.Pow(10, float64(precision))
	switch method {
	case "ceil":
		return Float(math.Ceil(x*scale) / scale), nil
	case "floor":
		return Float(math.Floor(x*scale) / scale), nil
	case "common":
	default:
		return nil, errType("round: method must be common, ceil or floor")
	}
	if n, ok := integer(v); ok && precision >= 0 {
		return Int(n), nil
	}
	if precision < 0 {
		return Float(math.RoundToEven(x*scale) / scale), nil
	}
	r, err := strconv.ParseFloat(strconv.FormatFloat(x, 'f', min(precision, 300), 64), 64)
	return Float(r), err
}

func filterAttr(vm *machine, v Value, args *callArgs) (Value, error) {
	bound, err := args.bind("name")
	if err != nil {
		return nil, err
	}
	name, err := stringArg(bound[0], "")
	if err != nil {
		return nil, err
	}
	if loop, ok := v.(*loopState); ok {
		return loop.attribute(name), nil
	}
	if ns, ok := v.(*Namespace); ok && ns.vars.Get(name) != nil {
		return ns.vars.Get(name), nil
	}
	if u, ok := v.(*Undefined); ok {
		return nil, errUndefined(u)
	}
	if m := method(v, name); m != nil {
		return m, nil
	}
	return missing(v, name), nil
}

func filterFormat(vm *machine, v Value, args *callArgs) (Value, error) {
	s, err := filterString(vm, v, nil)
	if err != nil {
		return nil, err
	}
	if len(args.named) == 0 {
		return vm.percentFormat(s, &List{Items: args.positional, Form: FormTuple})
	}
	if len(args.positional) > 0 {
		return nil, errType("format: positional and keyword arguments do not mix")
	}
	d := NewDict()
	for _, n := range args.named {
		d.Set(n.name, n.value)
	}
	return vm.percentFormat(s, d)
}

// filterTitle capitalises what follows whitespace, - ( { [ or <.
func filterTitle(s string) string {
	start := true
	return strings.Map(func(r rune) rune {
		first := start
		start = isSpace(r) || strings.ContainsRune("-({[<", r)
		if first {
			return unicode.ToUpper(r)
		}
		return unicode.ToLower(r)
	}, s)
}
