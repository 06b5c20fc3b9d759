package tokenizer

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

var patterns = map[string]string{"qwen2": patternQwen2, "qwen35": patternQwen35, "llama3": patternLlama3,
	"tekken": patternTekken, "gpt2": patternGPT2}

// splitParts are what the patterns tell apart.
var splitParts = []string{"'s", "'S", "'ſ", "'ſt", "'re", "'Re", "'LL", "'l", "'", "'ve", " ", "  ", "\n", "\r", "\t", "\u0085",
	"\u00a0", "\u3000", "a", "B", "ab", "Cd", "EF", "ß", "中", "ǅ", "ʰ", "\u0301", "\u0903", "1", "23", "4567", "½", "٣", "Ⅷ", ".", "!?", "/",
	"//", "-", "😀", "\u200d", "\u0000", "\u0378", "\U00010d50", "\U000105c0", "\ufffd"}

func TestSplitEqualsPattern(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	rounds := 20_000
	if testing.Short() {
		rounds = 2_000
	}
	for name, pattern := range patterns {
		oracle := compilePattern(pattern)
		for range rounds {
			var text strings.Builder
			for range 1 + random.IntN(9) {
				text.WriteString(splitParts[random.IntN(len(splitParts))])
			}
			checkSplit(t, name, oracle, scannerFor(pattern), text.String())
		}
	}
}

func FuzzSplit(f *testing.F) {
	f.Add("I've 123 'LL  \r\n done/\n e\u0301 中文ABc  ")
	f.Add(strings.Join(splitParts, ""))
	oracles := map[string]node{}
	for name, pattern := range patterns {
		oracles[name] = compilePattern(pattern)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 2000 || !utf8.ValidString(text) {
			return
		}
		for name, pattern := range patterns {
			checkSplit(t, name, oracles[name], scannerFor(pattern), text)
		}
	})
}

func checkSplit(t *testing.T, name string, oracle node, scan scanner, text string) {
	t.Helper()
	runes := []rune(text)
	for at, done := 0, 0; at < len(text); {
		end := scan(text, at)
		want := oracle.match(runes, done, func(end int) int { return end })
		if want < 0 || string(runes[done:want]) != text[at:end] {
			t.Fatalf("%s: %+q at byte %d: got %+q, pattern matches %d to %d", name, text, at, text[at:end], done, want)
		}
		at, done = end, want
	}
}

// TestSplitIsLinear runs texts that a scanner could look at again and again.
func TestSplitIsLinear(t *testing.T) {
	for _, unit := range []string{"a", "A", "中A", "中AAAAAAAA", " ", "\n ", "\n          ", "'", ".", "\u0301", "\u0301A", "1", "/\n", " \u0301"} {
		text := strings.Repeat(unit, 2_000_000/len(unit))
		for name, pattern := range patterns {
			start, scan := time.Now(), scannerFor(pattern)
			for at := 0; at < len(text); {
				at = scan(text, at)
			}
			if spent := time.Since(start); spent > 3*time.Second {
				t.Errorf("%s: 2 MB of %q took %v", name, unit, spent)
			}
		}
	}
}

// node is a compiled part of a pattern: a plain backtracking matcher, the oracle for
// the scanners. match calls then with each possible end, in order of preference, until
// one call returns something else than -1.
type node interface {
	match(text []rune, at int, then func(end int) int) int
}

type (
	oneOf    struct{ has func(rune) bool }
	sequence []node
	choice   []node
	repeat   struct {
		of        node
		min, most int
	}
	notFollowed struct{ by node }
)

func (n oneOf) match(text []rune, at int, then func(int) int) int {
	if at < len(text) && n.has(text[at]) {
		return then(at + 1)
	}
	return -1
}

func (n sequence) match(text []rune, at int, then func(int) int) int {
	if len(n) == 0 {
		return then(at)
	}
	return n[0].match(text, at, func(end int) int { return n[1:].match(text, end, then) })
}

func (n choice) match(text []rune, at int, then func(int) int) int {
	for _, alternative := range n {
		if end := alternative.match(text, at, then); end >= 0 {
			return end
		}
	}
	return -1
}

func (n repeat) match(text []rune, at int, then func(int) int) int {
	if n.most > 0 {
		again := repeat{n.of, max(0, n.min-1), n.most - 1}
		if end := n.of.match(text, at, func(end int) int { return again.match(text, end, then) }); end >= 0 {
			return end
		}
	}
	if n.min > 0 {
		return -1
	}
	return then(at)
}

func (n notFollowed) match(text []rune, at int, then func(int) int) int {
	if n.by.match(text, at, func(end int) int { return end }) >= 0 {
		return -1
	}
	return then(at)
}

// parser reads the part of regular expression syntax that the patterns use.
type parser struct {
	text []rune
	fold bool
}

func compilePattern(pattern string) node {
	p := &parser{text: []rune(pattern)}
	n := p.choice()
	if len(p.text) > 0 {
		panic("rest of pattern: " + string(p.text))
	}
	return n
}

func (p *parser) take(prefix string) bool {
	if rest, ok := strings.CutPrefix(string(p.text), prefix); ok {
		p.text = []rune(rest)
		return true
	}
	return false
}

func (p *parser) choice() node {
	alternatives := choice{p.sequence()}
	for p.take("|") {
		alternatives = append(alternatives, p.sequence())
	}
	return alternatives
}

func (p *parser) sequence() node {
	var parts sequence
	for len(p.text) > 0 && p.text[0] != '|' && p.text[0] != ')' {
		parts = append(parts, p.quantified(p.atom()))
	}
	return parts
}

func (p *parser) quantified(n node) node {
	const unlimited = 1 << 30
	switch {
	case p.take("?"):
		return repeat{n, 0, 1}
	case p.take("*"):
		return repeat{n, 0, unlimited}
	case p.take("+"):
		return repeat{n, 1, unlimited}
	case p.take("{1,3}"):
		return repeat{n, 1, 3}
	}
	return n
}

func (p *parser) atom() node {
	switch {
	case p.take("(?i:"):
		p.fold = true
		n := p.choice()
		p.fold = false
		return p.closed(n)
	case p.take("(?!"):
		return p.closed(notFollowed{p.choice()})
	case p.take("[^"):
		inside := p.class()
		return oneOf{func(r rune) bool { return !inside(r) }}
	case p.take("["):
		return oneOf{p.class()}
	}
	return oneOf{p.character()}
}

func (p *parser) closed(n node) node {
	if !p.take(")") {
		panic("missing ) before " + string(p.text))
	}
	return n
}

func (p *parser) class() func(rune) bool {
	var parts []func(rune) bool
	for !p.take("]") {
		parts = append(parts, p.character())
	}
	return func(r rune) bool {
		for _, has := range parts {
			if has(r) {
				return true
			}
		}
		return false
	}
}

func (p *parser) character() func(rune) bool {
	for escape, has := range escapes {
		if p.take(escape) {
			return has
		}
	}
	c := p.text[0]
	if strings.ContainsRune(`\()[]{}*+?.`, c) {
		panic(fmt.Sprintf("unknown syntax: %s", string(p.text)))
	}
	p.text = p.text[1:]
	if p.fold {
		return func(r rune) bool {
			return r == c || unicode.SimpleFold(r) == c || unicode.SimpleFold(unicode.SimpleFold(r)) == c
		}
	}
	return func(r rune) bool { return r == c }
}

// escapes ask the class table, which TestClasses compares with another library.
var escapes = map[string]func(rune) bool{
	`\r`: func(r rune) bool { return r == '\r' }, `\n`: func(r rune) bool { return r == '\n' },
	`\s`: hasClass(classSpace), `\S`: func(r rune) bool { return !hasClass(classSpace)(r) },
	`\p{L}`: hasClass(classLetter), `\p{N}`: hasClass(classNumber), `\p{M}`: hasClass(classMark),
	`\p{Lu}`: upperNotTitle, `\p{Lt}`: unicode.IsTitle, `\p{Ll}`: hasClass(classLower),
	`\p{Lm}`: isModifier, `\p{Lo}`: func(r rune) bool { return hasClass(classCaseless)(r) && !isModifier(r) },
}

func hasClass(c class) func(rune) bool { return func(r rune) bool { return classes[r]&c != 0 } }

func upperNotTitle(r rune) bool { return hasClass(classUpper)(r) && !unicode.IsTitle(r) }
func isModifier(r rune) bool    { return hasClass(classCaseless)(r) && unicode.Is(unicode.Lm, r) }
