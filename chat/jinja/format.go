package jinja

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// formatSpec is a Python format specification: the common part of % and
// format().
type formatSpec struct {
	fill      string
	align     byte // < > ^ = or 0
	sign      byte // + space or 0
	alternate bool // #
	width     int
	grouping  byte // , _ or 0
	precision int  // -1 when absent
	verb      byte // 0 when absent
}

// maxFormatNumber bounds widths and precisions.
const maxFormatNumber = 10_000

// leadingNumber reads the decimal number s starts with.
func leadingNumber(s string) (value, length int, err error) {
	for length < len(s) && s[length] >= '0' && s[length] <= '9' {
		length++
	}
	if length == 0 {
		return 0, 0, nil
	}
	value, err = strconv.Atoi(s[:length])
	if err != nil || value > maxFormatNumber {
		return 0, 0, errType("a format width is larger than %d", maxFormatNumber)
	}
	return value, length, nil
}

// parseFormatSpec reads what follows the colon in {:...}.
func parseFormatSpec(s string) (formatSpec, error) {
	f := formatSpec{fill: " ", precision: -1}
	s = f.parseAlign(s)
	if s != "" && strings.IndexByte("+- ", s[0]) >= 0 {
		if s[0] != '-' {
			f.sign = s[0]
		}
		s = s[1:]
	}
	if strings.HasPrefix(s, "#") {
		f.alternate, s = true, s[1:]
	}
	if strings.HasPrefix(s, "0") && f.align == 0 {
		f.fill, f.align = "0", '='
	}
	width, n, err := leadingNumber(s)
	if err != nil {
		return f, err
	}
	f.width, s = width, s[n:]
	if s != "" && (s[0] == ',' || s[0] == '_') {
		f.grouping, s = s[0], s[1:]
	}
	return f, f.parseTail(s)
}

func (f *formatSpec) parseAlign(s string) string {
	_, width := utf8.DecodeRuneInString(s)
	if len(s) > width && strings.IndexByte("<>^=", s[width]) >= 0 {
		f.fill, f.align = s[:width], s[width]
		return s[width+1:]
	}
	if s != "" && strings.IndexByte("<>^=", s[0]) >= 0 {
		f.align = s[0]
		return s[1:]
	}
	return s
}

// parseTail reads .precision and the verb.
func (f *formatSpec) parseTail(s string) error {
	if strings.HasPrefix(s, ".") {
		precision, n, err := leadingNumber(s[1:])
		if err != nil {
			return err
		}
		if n == 0 {
			return errType("format specifier is missing a precision")
		}
		f.precision, s = precision, s[1+n:]
	}
	if len(s) > 1 {
		return errType("invalid format specifier")
	}
	if s != "" {
		f.verb = s[0]
	}
	return nil
}

// apply formats one value.
func (f formatSpec) apply(vm *machine, v Value) (string, error) {
	if f == (formatSpec{fill: " ", precision: -1}) {
		return vm.str(v)
	}
	_, isNumber := number(v)
	if _, isBool := v.(Bool); isBool && f.verb == 0 {
		isNumber = false
	}
	if !isNumber {
		return f.applyText(vm, v)
	}
	body, err := f.number(v)
	if err != nil {
		return "", err
	}
	return f.pad(body, '>'), nil
}

func (f formatSpec) applyText(vm *machine, v Value) (string, error) {
	if _, ok := text(v); !ok && v != Bool(true) && v != Bool(false) {
		return "", errType("unsupported format string passed to %s.__format__", v.typeName())
	}
	if f.verb != 0 && f.verb != 's' || f.align == '=' || f.sign != 0 || f.grouping != 0 {
		return "", errType("invalid format specifier for a string")
	}
	s, err := vm.str(v)
	if err != nil {
		return "", err
	}
	return f.pad(truncateRunes(s, f.precision), '<'), nil
}

func truncateRunes(s string, n int) string {
	if n < 0 || utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n])
}

// number formats a number without padding.
func (f formatSpec) number(v Value) (string, error) {
	n, isInt := integer(v)
	if isInt && (f.verb == 0 || strings.IndexByte("dxXobcn", f.verb) >= 0) {
		return f.integer(n)
	}
	x, _ := number(v)
	digits, err := f.float(math.Abs(x))
	if err != nil {
		return "", err
	}
	return f.signFor(math.Signbit(x)) + group(digits, f.grouping), nil
}

func (f formatSpec) signFor(negative bool) string {
	switch {
	case negative:
		return "-"
	case f.sign != 0:
		return string(rune(f.sign))
	}
	return ""
}

func (f formatSpec) integer(n int64) (string, error) {
	if f.precision >= 0 {
		return "", errType("precision not allowed in integer format specifier")
	}
	digits, prefix := "", ""
	switch abs := magnitude(n); f.verb {
	case 'x':
		digits, prefix = strconv.FormatUint(abs, 16), "0x"
	case 'X':
		digits, prefix = strings.ToUpper(strconv.FormatUint(abs, 16)), "0X"
	case 'o':
		digits, prefix = strconv.FormatUint(abs, 8), "0o"
	case 'b':
		digits, prefix = strconv.FormatUint(abs, 2), "0b"
	case 'c':
		if n < 0 || n > utf8.MaxRune {
			return "", errType("%%c arg not in range")
		}
		return string(rune(n)), nil
	default:
		digits = group(strconv.FormatUint(abs, 10), f.grouping)
	}
	if !f.alternate {
		prefix = ""
	}
	return f.signFor(n < 0) + prefix + digits, nil
}

func (f formatSpec) float(abs float64) (string, error) {
	precision := f.precision
	if precision < 0 {
		precision = 6
	}
	switch f.verb {
	case 'f', 'F':
		return strconv.FormatFloat(abs, 'f', precision, 64), nil
	case 'e', 'E':
		return strconv.FormatFloat(abs, f.verb, precision, 64), nil
	case '%':
		return strconv.FormatFloat(abs*100, 'f', precision, 64) + "%", nil
	case 'g', 'G':
		return general(abs, max(precision, 1), f.verb), nil
	case 0:
		if f.precision < 0 {
			return reprFloat(abs), nil
		}
		s := general(abs, max(precision, 1), 'g')
		if !strings.ContainsAny(s, ".e") {
			s += ".0"
		}
		return s, nil
	}
	return "", errType("unknown format code '%c' for a number", f.verb)
}

// general is %g: exponent form below 1e-4 and from 10**precision.
func general(abs float64, precision int, verb byte) string {
	exponent := 0
	if abs != 0 && !math.IsInf(abs, 0) {
		e := strconv.FormatFloat(abs, 'e', precision-1, 64)
		exponent, _ = strconv.Atoi(e[strings.IndexByte(e, 'e')+1:])
	}
	if exponent < -4 || exponent >= precision {
		mantissa, exp, _ := strings.Cut(strconv.FormatFloat(abs, 'e', precision-1, 64), "e")
		return trimZeros(mantissa) + string(rune(verb-2)) + exp
	}
	return trimZeros(strconv.FormatFloat(abs, 'f', max(precision-1-exponent, 0), 64))
}

func trimZeros(s string) string {
	if !strings.Contains(s, ".") {
		return s
	}
	return strings.TrimRight(strings.TrimRight(s, "0"), ".")
}

// group puts a separator between each three digits before the point.
func group(digits string, separator byte) string {
	if separator == 0 {
		return digits
	}
	whole, rest := digits, ""
	if at := strings.IndexAny(digits, ".e%"); at >= 0 {
		whole, rest = digits[:at], digits[at:]
	}
	var b strings.Builder
	for i := range len(whole) {
		if i > 0 && (len(whole)-i)%3 == 0 {
			b.WriteByte(separator)
		}
		b.WriteByte(whole[i])
	}
	return b.String() + rest
}

// pad fills s to the width.
func (f formatSpec) pad(s string, align byte) string {
	total := f.width - utf8.RuneCountInString(s)
	if total <= 0 {
		return s
	}
	if f.align != 0 {
		align = f.align
	}
	switch fill := strings.Repeat(f.fill, total); align {
	case '<':
		return s + fill
	case '^':
		left := len(f.fill) * (total / 2)
		return fill[:left] + s + fill[left:]
	case '=':
		body := strings.TrimLeft(s, "+- ")
		return s[:len(s)-len(body)] + fill + body
	default:
		return fill + s
	}
}
