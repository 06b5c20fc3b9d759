package tokenizer

import (
	"math"
	"unicode/utf8"
)

// charTable is the token of each character of more than a byte that merging may start from, instead of from its bytes:
// those whose own merges come before every merge that other text around them could bring in between. Starting from
// characters then changes no id, and text without spaces has a third of the symbols.
type charTable [charPages]*[256]charToken

const charPages = (utf8.MaxRune + 1) >> 8

// charToken is a character's token and where it may stand for the character.
type charToken struct {
	id    int32
	where charPlace
}

type charPlace uint8

const (
	nowhere   charPlace = iota
	awayASCII           // neither the byte in front nor the one behind is ASCII
	everywhere
)

// at is the token of the character at a position of a piece and the character's width; false if it must be merged from
// its bytes.
func (c *charTable) at(piece string, at int) (id int32, width int, ok bool) {
	r, width := utf8.DecodeRuneInString(piece[at:])
	page := c[r>>8]
	if page == nil || width == 1 {
		return 0, 0, false
	}
	token, end := page[r&255], at+width
	if token.where == awayASCII && (at > 0 && piece[at-1] < utf8.RuneSelf || end < len(piece) && piece[end] < utf8.RuneSelf) {
		return 0, 0, false
	}
	return token.id, width, token.where != nowhere
}

func (c *charTable) set(r rune, token charToken) {
	if c[r>>8] == nil {
		c[r>>8] = new([256]charToken)
	}
	c[r>>8][r&255] = token
}

// charLimits is, of every character of more than a byte and of every fragment of one, the rank of the first merge that
// it takes part in together with anything outside that character: next to a byte of ASCII, and otherwise.
type charLimits struct{ ascii, other map[string]int }

func newCharLimits() charLimits { return charLimits{map[string]int{}, map[string]int{}} }

// add enters the merge that gives joined. A merge inside a character sets no limit: nothing around the
// character changes it.
func (l charLimits) add(joined []byte, rank int) {
	if insideChar(joined) {
		return
	}
	for from := 0; from < len(joined); {
		to := charEnd(joined, from)
		if joined[from] >= utf8.RuneSelf {
			limits := l.other
			if from > 0 && joined[from-1] < utf8.RuneSelf || to < len(joined) && joined[to] < utf8.RuneSelf {
				limits = l.ascii
			}
			if first, ok := limits[string(joined[from:to])]; !ok || rank < first {
				limits[string(joined[from:to])] = rank
			}
		}
		from = to
	}
}

// charEnd is where the character, or what there is of it, ends that begins at a position.
func charEnd(text []byte, from int) int {
	to := from + 1
	if text[from] >= utf8.RuneSelf {
		for to < min(len(text), from+charWidth(text[from])) && !utf8.RuneStart(text[to]) {
			to++
		}
	}
	return to
}

// place is where a character may be taken as whole whose own merges have ranks up to last.
func (l charLimits) place(char string, last int) charPlace {
	switch {
	case last >= limitOf(l.other, char):
		return nowhere
	case last >= limitOf(l.ascii, char):
		return awayASCII
	}
	return everywhere
}

// limitOf is the limit of a character: that of itself, or of a beginning or an end of it.
func limitOf(limits map[string]int, char string) int {
	limit := math.MaxInt
	for i := range len(char) {
		for _, part := range [2]string{char[:i+1], char[i:]} {
			if rank, ok := limits[part]; ok {
				limit = min(limit, rank)
			}
		}
	}
	return limit
}

// charWidth is how many bytes a character has that begins with b; of a byte that begins none, how many can follow in
// one.
func charWidth(b byte) int {
	switch {
	case b >= 0xF0:
		return 4
	case b >= 0xE0 || b < 0xC0:
		return 3
	}
	return 2
}

// insideChar tells whether bytes can only stand inside one character (or are one): none but the first begins one.
func insideChar(b []byte) bool {
	if len(b) > charWidth(b[0]) || b[0] < utf8.RuneSelf {
		return false
	}
	for _, c := range b[1:] {
		if utf8.RuneStart(c) {
			return false
		}
	}
	return true
}

// fill enters the characters among the tokens. Each is merged alone to learn the ranks of its merges: while it is not
// whole, one of those merges is on offer, so a merge of a higher rank that would tie its bytes to what is around them
// is never the next one, and one that needs it whole cannot come too late.
func (c *charTable) fill(m *bpe, limits charLimits, vocab []string) {
	var w word
	var text []byte
	for id, token := range vocab {
		text = appendTokenBytes(text[:0], token)
		r, size := utf8.DecodeRune(text)
		if size < 2 || size != len(text) {
			continue
		}
		w.start(m, string(text))
		last := w.mergeAll(m)
		if first := w.symbols[0]; first.next < 0 && first.id == int32(id) {
			c.set(r, charToken{int32(id), limits.place(string(text), int(last))})
		}
	}
}
