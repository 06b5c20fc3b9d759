package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// class is a set of the properties that split patterns ask for.
type class uint8

const (
	classUpper    class = 1 << iota // Lu, Lt
	classLower                      // Ll
	classCaseless                   // Lm, Lo
	classMark                       // M
	classNumber                     // N
	classSpace                      // \s, line breaks included
	classNewline                    // \r \n

	classLetter  = classUpper | classLower | classCaseless
	classCapital = classUpper | classCaseless | classMark
	classSmall   = classLower | classCaseless | classMark
)

// classes has the class of every code point: 1.1 MB, filled in about 2 ms.
var classes = buildClasses()

func buildClasses() []class {
	table := make([]class, unicode.MaxRune+1)
	for _, property := range []struct {
		runes *unicode.RangeTable
		class class
	}{
		{unicode.Lu, classUpper}, {unicode.Lt, classUpper}, {unicode.Ll, classLower},
		{unicode.Lm, classCaseless}, {unicode.Lo, classCaseless}, {unicode.M, classMark},
		{unicode.N, classNumber}, {unicode.White_Space, classSpace},
	} {
		fillClass(table, property.runes, property.class)
	}
	for _, r := range sinceUnicode15 {
		for c := r.first; c <= r.last; c++ {
			table[c] = r.class
		}
	}
	table['\r'] |= classNewline
	table['\n'] |= classNewline
	return table
}

func fillClass(table []class, runes *unicode.RangeTable, add class) {
	for _, r := range runes.R16 {
		for c := uint32(r.Lo); c <= uint32(r.Hi); c += uint32(r.Stride) {
			table[c] |= add
		}
	}
	for _, r := range runes.R32 {
		for c := r.Lo; c <= r.Hi; c += r.Stride {
			table[c] |= add
		}
	}
}

func classOf(r rune) class { return classes[r] }

// classAt is the class and the width in bytes of the character at a position. A byte
// that is not UTF-8 is a character of no class.
func classAt(text string, at int) (class, int) {
	if b := text[at]; b < utf8.RuneSelf {
		return classes[b], 1
	}
	r, width := utf8.DecodeRuneInString(text[at:])
	return classes[r], width
}

// sinceUnicode15 are the letters, marks and numbers of Unicode 15.1 and 16, which the
// Rust library knows and Go's tables (15.0) do not.
var sinceUnicode15 = []struct {
	first, last rune
	class       class
}{
	{0x0897, 0x0897, classMark},
	{0x1C89, 0x1C89, classUpper},
	{0x1C8A, 0x1C8A, classLower},
	{0xA7CB, 0xA7CC, classUpper},
	{0xA7CD, 0xA7CD, classLower},
	{0xA7DA, 0xA7DA, classUpper},
	{0xA7DB, 0xA7DB, classLower},
	{0xA7DC, 0xA7DC, classUpper},
	{0x105C0, 0x105F3, classCaseless},
	{0x10D40, 0x10D49, classNumber},
	{0x10D4A, 0x10D4F, classCaseless},
	{0x10D50, 0x10D65, classUpper},
	{0x10D69, 0x10D6D, classMark},
	{0x10D6F, 0x10D6F, classCaseless},
	{0x10D70, 0x10D85, classLower},
	{0x10EC2, 0x10EC4, classCaseless},
	{0x10EFC, 0x10EFC, classMark},
	{0x11380, 0x11389, classCaseless},
	{0x1138B, 0x1138B, classCaseless},
	{0x1138E, 0x1138E, classCaseless},
	{0x11390, 0x113B5, classCaseless},
	{0x113B7, 0x113B7, classCaseless},
	{0x113B8, 0x113C0, classMark},
	{0x113C2, 0x113C2, classMark},
	{0x113C5, 0x113C5, classMark},
	{0x113C7, 0x113CA, classMark},
	{0x113CC, 0x113D0, classMark},
	{0x113D1, 0x113D1, classCaseless},
	{0x113D2, 0x113D2, classMark},
	{0x113D3, 0x113D3, classCaseless},
	{0x113E1, 0x113E2, classMark},
	{0x116D0, 0x116E3, classNumber},
	{0x11BC0, 0x11BE0, classCaseless},
	{0x11BF0, 0x11BF9, classNumber},
	{0x11F5A, 0x11F5A, classMark},
	{0x13460, 0x143FA, classCaseless},
	{0x16100, 0x1611D, classCaseless},
	{0x1611E, 0x1612F, classMark},
	{0x16130, 0x16139, classNumber},
	{0x16D40, 0x16D6C, classCaseless},
	{0x16D70, 0x16D79, classNumber},
	{0x18CFF, 0x18CFF, classCaseless},
	{0x1CCF0, 0x1CCF9, classNumber},
	{0x1E5D0, 0x1E5ED, classCaseless},
	{0x1E5EE, 0x1E5EF, classMark},
	{0x1E5F0, 0x1E5F0, classCaseless},
	{0x1E5F1, 0x1E5FA, classNumber},
	{0x2EBF0, 0x2EE5D, classCaseless},
}
