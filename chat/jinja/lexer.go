package jinja

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tokEOF tokenKind = iota
	tokData
	tokPrintBegin // {{
	tokPrintEnd
	tokBlockBegin // {%
	tokBlockEnd
	tokName
	tokString
	tokInt
	tokFloat
	tokOp
)

type token struct {
	kind tokenKind
	text string
	line int
}

func (t token) describe() string {
	switch t.kind {
	case tokEOF:
		return "end of template"
	case tokPrintEnd, tokBlockEnd:
		return "end of tag"
	}
	return fmt.Sprintf("%q", t.text)
}

// lexer splits a template into tokens, applying whitespace control,
// trim_blocks and lstrip_blocks on the way.
type lexer struct {
	src       string
	pos       int
	line      int
	lineStart bool // the text before pos ended with a newline
	tokens    []token
}

func lex(source string) ([]token, error) {
	lx := &lexer{src: normalizeNewlines(strings.ToValidUTF8(source, "\ufffd")), line: 1, lineStart: true}
	lx.src = strings.TrimSuffix(lx.src, "\n")
	for lx.pos < len(lx.src) {
		if err := lx.root(); err != nil {
			return nil, atLine(lx.line, err)
		}
	}
	lx.emit(tokEOF, "")
	return lx.tokens, nil
}

func normalizeNewlines(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n")
}

func (lx *lexer) emit(kind tokenKind, text string) {
	lx.tokens = append(lx.tokens, token{kind, text, lx.line})
}

// advance consumes n bytes of the source.
func (lx *lexer) advance(n int) {
	passed := lx.src[lx.pos : lx.pos+n]
	lx.line += strings.Count(passed, "\n")
	lx.lineStart = strings.HasSuffix(passed, "\n")
	lx.pos += n
}

func (lx *lexer) rest() string { return lx.src[lx.pos:] }

// root lexes text up to a tag, and the tag.
func (lx *lexer) root() error {
	at := nextTag(lx.rest())
	if at < 0 {
		lx.emit(tokData, lx.rest())
		lx.advance(len(lx.rest()))
		return nil
	}
	lx.data(at)
	opener := lx.rest()[:2]
	if opener == "{#" {
		return lx.comment()
	}
	if n := rawBegin(lx.rest()); n > 0 {
		lx.advance(n)
		return lx.raw()
	}
	lx.advance(2 + signLength(lx.rest()))
	if opener == "{{" {
		lx.emit(tokPrintBegin, opener)
		return lx.tag(tokPrintEnd, "}}")
	}
	lx.emit(tokBlockBegin, opener)
	return lx.tag(tokBlockEnd, "%}")
}

// nextTag finds the first tag opener.
func nextTag(s string) int {
	from := 0
	for {
		i := strings.IndexByte(s[from:], '{')
		if i < 0 || from+i+1 >= len(s) {
			return -1
		}
		if c := s[from+i+1]; c == '{' || c == '%' || c == '#' {
			return from + i
		}
		from += i + 1
	}
}

// signLength is 1 when the tag opener at the start of s carries - or +.
func signLength(s string) int {
	if len(s) > 2 && (s[2] == '-' || s[2] == '+') {
		return 1
	}
	return 0
}

// data emits the n bytes before a tag, stripped as the tag's sign asks, and
// stops at the tag.
func (lx *lexer) data(n int) {
	raw, tag := lx.rest()[:n], lx.rest()[n:]
	stripped := stripBefore(raw, tag, lx.lineStart)
	if stripped != "" {
		lx.emit(tokData, stripped)
	}
	lx.advance(n)
}

func stripBefore(data, tag string, lineStart bool) string {
	sign := byte(0)
	if signLength(tag) == 1 {
		sign = tag[2]
	}
	if sign == '-' {
		return strings.TrimRightFunc(data, isSpace)
	}
	if sign == '+' || strings.HasPrefix(tag, "{{") {
		return data
	}
	start := strings.LastIndexByte(data, '\n') + 1
	if (start > 0 || lineStart) && strings.TrimLeftFunc(data[start:], isSpace) == "" {
		return data[:start]
	}
	return data
}

func (lx *lexer) comment() error {
	body := lx.rest()[2:]
	end := strings.Index(body, "#}")
	if end < 0 {
		return fmt.Errorf("a comment is not closed")
	}
	trim := end > 0 && body[end-1] == '-'
	keep := end > 0 && body[end-1] == '+'
	lx.advance(2 + end + 2)
	lx.afterBlock(trim, keep)
	return nil
}

// afterBlock drops whitespace behind a closed block tag or comment: all of it
// for -, one newline (trim_blocks) unless +.
func (lx *lexer) afterBlock(trim, keep bool) {
	rest := lx.rest()
	switch {
	case trim:
		if n := spaceLength(rest); n > 0 {
			lx.advance(n)
		}
	case !keep && strings.HasPrefix(rest, "\n"):
		lx.advance(1)
	}
}

func spaceLength(s string) int { return len(s) - len(strings.TrimLeftFunc(s, isSpace)) }

// rawBegin returns the length of a {% raw %} tag at the start of s, or 0.
func rawBegin(s string) int { return namedTag(s, "raw", false) }

// namedTag matches an argument-less tag, with what it swallows behind it.
func namedTag(s, name string, trimNewline bool) int {
	if !strings.HasPrefix(s, "{%") {
		return 0
	}
	pos := 2 + signLength(s)
	pos += spaceLength(s[pos:])
	if !strings.HasPrefix(s[pos:], name) {
		return 0
	}
	pos += len(name)
	pos += spaceLength(s[pos:])
	switch {
	case strings.HasPrefix(s[pos:], "-%}"):
		pos += 3
		return pos + spaceLength(s[pos:])
	case trimNewline && strings.HasPrefix(s[pos:], "+%}"):
		return pos + 3
	case strings.HasPrefix(s[pos:], "%}\n") && trimNewline:
		return pos + 3
	case strings.HasPrefix(s[pos:], "%}"):
		return pos + 2
	}
	return 0
}

func (lx *lexer) raw() error {
	rest := lx.rest()
	for from := 0; ; {
		i := strings.Index(rest[from:], "{%")
		if i < 0 {
			return fmt.Errorf("a raw block is not closed")
		}
		if n := namedTag(rest[from+i:], "endraw", true); n > 0 {
			lx.data(from + i)
			lx.advance(n)
			return nil
		}
		from += i + 2
	}
}

// tag lexes the inside of {{ }} or {% %}.
func (lx *lexer) tag(endKind tokenKind, end string) error {
	brackets := []byte{}
	for {
		if n := spaceLength(lx.rest()); n > 0 {
			lx.advance(n)
		}
		if lx.pos >= len(lx.src) {
			return fmt.Errorf("a tag is not closed by %s", end)
		}
		if len(brackets) == 0 && lx.tagEnd(endKind, end) {
			return nil
		}
		if err := lx.expressionToken(&brackets); err != nil {
			return err
		}
	}
}

// tagEnd consumes the end of the tag if it is next.
func (lx *lexer) tagEnd(kind tokenKind, end string) bool {
	rest := lx.rest()
	trim := strings.HasPrefix(rest, "-"+end)
	keep := kind == tokBlockEnd && strings.HasPrefix(rest, "+"+end)
	if !trim && !keep && !strings.HasPrefix(rest, end) {
		return false
	}
	lx.emit(kind, end)
	n := len(end)
	if trim || keep {
		n++
	}
	lx.advance(n)
	if trim || kind == tokBlockEnd {
		lx.afterBlock(trim, keep)
	}
	return true
}

func (lx *lexer) expressionToken(brackets *[]byte) error {
	rest := lx.rest()
	c := rest[0]
	switch {
	case c >= '0' && c <= '9':
		return lx.number()
	case c == '\'' || c == '"':
		return lx.stringLiteral(c)
	}
	if n := nameLength(rest); n > 0 {
		lx.emit(tokName, rest[:n])
		lx.advance(n)
		return nil
	}
	op := operatorAt(rest)
	if op == "" {
		r, _ := utf8.DecodeRuneInString(rest)
		return fmt.Errorf("unexpected character %q", r)
	}
	if err := balance(brackets, op[0]); err != nil {
		return err
	}
	lx.emit(tokOp, op)
	lx.advance(len(op))
	return nil
}

func nameLength(s string) int {
	for i, r := range s {
		if r != '_' && !unicode.IsLetter(r) && (i == 0 || !unicode.IsDigit(r)) {
			return i
		}
	}
	return len(s)
}

var longOperators = []string{"//", "**", "==", "!=", ">=", "<="}

func operatorAt(s string) string {
	for _, op := range longOperators {
		if strings.HasPrefix(s, op) {
			return op
		}
	}
	if strings.IndexByte("+-/*%~[](){}><=.:|,;", s[0]) >= 0 {
		return s[:1]
	}
	return ""
}

var closing = map[byte]byte{'(': ')', '[': ']', '{': '}'}

func balance(brackets *[]byte, c byte) error {
	if end := closing[c]; end != 0 {
		*brackets = append(*brackets, end)
		return nil
	}
	if c != ')' && c != ']' && c != '}' {
		return nil
	}
	n := len(*brackets)
	if n == 0 || (*brackets)[n-1] != c {
		return fmt.Errorf("unexpected %q", c)
	}
	*brackets = (*brackets)[:n-1]
	return nil
}
