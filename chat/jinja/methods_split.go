package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// splitArgs binds sep and maxsplit; a nil sep splits at whitespace.
func splitArgs(args *callArgs) (sep *string, limit int, err error) {
	bound, err := args.bind("sep?", "maxsplit?")
	if err != nil {
		return nil, 0, err
	}
	if limit, err = intArg(bound[1], -1); err != nil {
		return nil, 0, err
	}
	if bound[0] == nil || bound[0] == (None{}) {
		return nil, limit, nil
	}
	s, err := stringArg(bound[0], "")
	if err == nil && s == "" {
		err = errType("empty separator")
	}
	return &s, limit, err
}

func splitMethod(vm *machine, s string, args *callArgs) (Value, error) {
	sep, limit, err := splitArgs(args)
	if err != nil {
		return nil, err
	}
	if err := vm.growList(len(s) / 2); err != nil {
		return nil, err
	}
	if sep == nil {
		return vm.stringList(splitSpace(s, limit))
	}
	if limit >= 0 {
		return vm.stringList(strings.SplitN(s, *sep, limit+1))
	}
	return vm.stringList(strings.Split(s, *sep))
}

// splitSpace splits at runs of whitespace, at most limit times (< 0: all).
func splitSpace(s string, limit int) []string {
	var out []string
	for s = strings.TrimLeftFunc(s, isSpace); s != ""; {
		end := strings.IndexFunc(s, isSpace)
		if end < 0 || limit >= 0 && len(out) == limit {
			return append(out, s)
		}
		out = append(out, s[:end])
		s = strings.TrimLeftFunc(s[end:], isSpace)
	}
	return out
}

func rsplitMethod(vm *machine, s string, args *callArgs) (Value, error) {
	sep, limit, err := splitArgs(args)
	if err != nil {
		return nil, err
	}
	if err := vm.growList(len(s) / 2); err != nil {
		return nil, err
	}
	if sep == nil {
		return vm.stringList(rsplitSpace(s, limit))
	}
	var out []string
	for limit < 0 || len(out) < limit {
		at := strings.LastIndex(s, *sep)
		if at < 0 {
			break
		}
		out = append(out, s[at+len(*sep):])
		s = s[:at]
	}
	out = append(out, s)
	slices.Reverse(out)
	return vm.stringList(out)
}

func rsplitSpace(s string, limit int) []string {
	var out []string
	for s = strings.TrimRightFunc(s, isSpace); s != ""; {
		start := strings.LastIndexFunc(s, isSpace)
		if start < 0 || limit >= 0 && len(out) == limit {
			out = append(out, s)
			break
		}
		_, width := utf8.DecodeRuneInString(s[start:])
		out = append(out, s[start+width:])
		s = strings.TrimRightFunc(s[:start], isSpace)
	}
	slices.Reverse(out)
	return out
}

const lineBreaks = "\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029"

// splitLines is str.splitlines.
func splitLines(s string, keepEnds bool) []string {
	var out []string
	for s != "" {
		end := strings.IndexAny(s, lineBreaks)
		if end < 0 {
			return append(out, s)
		}
		width := 1
		switch {
		case strings.HasPrefix(s[end:], "\r\n"):
			width = 2
		case s[end] >= 0x80:
			_, width = utf8.DecodeRuneInString(s[end:])
		}
		if keepEnds {
			out = append(out, s[:end+width])
		} else {
			out = append(out, s[:end])
		}
		s = s[end+width:]
	}
	return out
}

func splitlinesMethod(vm *machine, s string, args *callArgs) (Value, error) {
	bound, err := args.bind("keepends?")
	if err != nil {
		return nil, err
	}
	if err := vm.growList(len(s) / 2); err != nil {
		return nil, err
	}
	return vm.stringList(splitLines(s, truthArg(bound[0], false)))
}

// partitionMethod splits around one separator; rpartition keeps the rest last.
func partitionMethod(search func(s, sep string) int, restLast bool) methodFunc {
	return func(vm *machine, s string, args *callArgs) (Value, error) {
		bound, err := textArgs(args, "sep")
		if err != nil {
			return nil, err
		}
		sep := *bound[0]
		if sep == "" {
			return nil, errType("empty separator")
		}
		parts := []Value{String(s), String(""), String("")}
		if at := search(s, sep); at >= 0 {
			parts = []Value{String(s[:at]), String(sep), String(s[at+len(sep):])}
		} else if restLast {
			parts = []Value{String(""), String(""), String(s)}
		}
		return &List{Items: parts, Form: FormTuple}, vm.growList(len(parts))
	}
}

// toUpper and toLower follow the full Unicode mappings (ß becomes SS).
func toUpper(s string) string { return cases.Upper(language.Und).String(s) }
func toLower(s string) string { return cases.Lower(language.Und).String(s) }

func capitalize(s string) string {
	r, width := utf8.DecodeRuneInString(s)
	if width == 0 {
		return s
	}
	return string(unicode.ToTitle(r)) + toLower(s[width:])
}

// titleWords is str.title: a letter is lower when a letter comes before it.
func titleWords(s string) string {
	inWord := false
	return strings.Map(func(r rune) rune {
		before := inWord
		inWord = unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r)
		if before {
			return unicode.ToLower(r)
		}
		return unicode.ToTitle(r)
	}, s)
}

func swapCase(s string) string {
	return strings.Map(func(r rune) rune {
		if isCapital(r) {
			return unicode.ToLower(r)
		}
		return unicode.ToUpper(r)
	}, s)
}
