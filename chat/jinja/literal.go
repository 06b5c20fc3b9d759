package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// isSpace is Python's str.isspace for one character.
func isSpace(r rune) bool {
	return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f
}

func digitsLength(s string) int {
	n := 0
	for n < len(s) && (s[n] >= '0' && s[n] <= '9' || s[n] == '_' && n > 0 && n+1 < len(s) && s[n+1] >= '0' && s[n+1] <= '9') {
		n++
	}
	return n
}

// number lexes an integer or float; behind a dot (a.0.1) only an integer.
func (lx *lexer) number() error {
	rest := lx.rest()
	if n := radixLength(rest); n > 0 {
		lx.emit(tokInt, rest[:n])
		lx.advance(n)
		return nil
	}
	n := digitsLength(rest)
	kind := tokInt
	if lx.pos == 0 || lx.src[lx.pos-1] != '.' {
		if f := floatTail(rest[n:]); f > 0 {
			kind, n = tokFloat, n+f
		}
	}
	lx.emit(kind, strings.ReplaceAll(rest[:n], "_", ""))
	lx.advance(n)
	return nil
}

// radixLength matches 0x, 0o and 0b literals.
func radixLength(s string) int {
	if len(s) < 3 || s[0] != '0' {
		return 0
	}
	digits := map[byte]string{'x': "0123456789abcdef", 'o': "01234567", 'b': "01"}[s[1]|0x20]
	n := 2
	for n < len(s) && digits != "" && strings.IndexByte(digits+"_", s[n]|0x20) >= 0 {
		n++
	}
	if n == 2 {
		return 0
	}
	return n
}

// floatTail matches .digits and an exponent behind the leading digits.
func floatTail(s string) int {
	n := 0
	if strings.HasPrefix(s, ".") {
		if d := digitsLength(s[1:]); d > 0 {
			n = 1 + d
		}
	}
	if n < len(s) && s[n]|0x20 == 'e' {
		e := n + 1
		if e < len(s) && (s[e] == '+' || s[e] == '-') {
			e++
		}
		if d := digitsLength(s[e:]); d > 0 {
			n = e + d
		}
	}
	return n
}

func (lx *lexer) stringLiteral(quote byte) error {
	rest := lx.rest()
	for i := 1; i < len(rest); i++ {
		switch rest[i] {
		case '\\':
			i++
		case quote:
			value, err := unescape(rest[1:i])
			if err != nil {
				return err
			}
			lx.emit(tokString, value)
			lx.advance(i + 1)
			return nil
		}
	}
	return fmt.Errorf("a string is not closed")
}

var simpleEscapes = map[byte]string{
	'\n': "", '\\': "\\", '\'': "'", '"': `"`, 'a': "\a", 'b': "\b", 'f': "\f",
	'n': "\n", 'r': "\r", 't': "\t", 'v': "\v",
}

// unescape resolves the escapes of a Python string literal; unknown ones stay.
func unescape(s string) (string, error) {
	if !strings.Contains(s, `\`) {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			i++
			continue
		}
		n, err := unescapeOne(&b, s[i:])
		if err != nil {
			return "", err
		}
		i += n
	}
	return b.String(), nil
}

var hexEscapes = map[byte]int{'x': 2, 'u': 4, 'U': 8}

// unescapeOne writes the escape at the start of s and returns its length.
func unescapeOne(b *strings.Builder, s string) (int, error) {
	c := s[1]
	if plain, ok := simpleEscapes[c]; ok {
		b.WriteString(plain)
		return 2, nil
	}
	if digits := hexEscapes[c]; digits > 0 {
		if len(s) < 2+digits {
			return 0, fmt.Errorf("truncated \\%c escape in a string", c)
		}
		code, err := strconv.ParseUint(s[2:2+digits], 16, 32)
		if err != nil || code > utf8.MaxRune {
			return 0, fmt.Errorf("bad \\%c escape in a string", c)
		}
		b.WriteRune(rune(code))
		return 2 + digits, nil
	}
	if c >= '0' && c <= '7' {
		n := 2
		for n < 4 && n < len(s) && s[n] >= '0' && s[n] <= '7' {
			n++
		}
		code, _ := strconv.ParseUint(s[1:n], 8, 32)
		b.WriteRune(rune(code))
		return n, nil
	}
	b.WriteString(s[:1])
	return 1, nil
}
