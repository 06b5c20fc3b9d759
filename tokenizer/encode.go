package tokenizer

import (
	"slices"
	"unicode/utf8"
)

// EncodeOptions are the zero value for plain text.
type EncodeOptions struct {
	// AddSpecial adds what the post-processor says (BOS and the like).
	AddSpecial bool
	// MaxTokens, when positive, lets Encode stop early on text that is too long: the
	// result then has more than MaxTokens ids and is incomplete.
	MaxTokens int
}

// Encode turns text into ids. Added tokens in it ("<|im_start|>") become their ids.
// Every byte that is not UTF-8 counts as U+FFFD. Memory is linear: about 8 bytes a byte
// of ordinary text, 40 at worst (no white space or punctuation at all). Text from
// strangers should come with MaxTokens, so that what cannot fit is not encoded to its
// end.
func (t *Tokenizer) Encode(text string, options EncodeOptions) []int32 {
	if !utf8.ValidString(text) {
		text = string([]rune(text))
	}
	e := encoding{tokenizer: t, limit: options.MaxTokens}
	if options.AddSpecial {
		e.ids = append(e.ids, t.prefix...)
	}
	e.ids = slices.Grow(e.ids, len(text)/4+len(t.suffix))
	t.raw.segments(text, e.normalize, e.token)
	if options.AddSpecial {
		e.ids = append(e.ids, t.suffix...)
	}
	return e.ids
}

// encoding is one call of Encode. Its methods return false when the limit is passed.
type encoding struct {
	tokenizer *Tokenizer
	ids       []int32
	limit     int // 0: none
	word      word
}

func (e *encoding) token(id int32) bool {
	e.ids = append(e.ids, id)
	return !e.full()
}

func (e *encoding) full() bool { return e.limit > 0 && len(e.ids) > e.limit }

func (e *encoding) normalize(text string) bool {
	t := e.tokenizer
	return t.composed.segments(t.normalize(text), e.split, e.token)
}

func (e *encoding) split(text string) bool {
	t := e.tokenizer
	for start := 0; start < len(text); {
		end := t.scan(text, start)
		e.ids = t.encodePiece(&e.word, e.ids, e.enough(text[start:end]))
		if e.full() {
			return false
		}
		start = end
	}
	return true
}

// enough cuts off what is not needed of a piece to pass the limit.
func (e *encoding) enough(piece string) string {
	if e.limit <= 0 {
		return piece
	}
	most := (e.limit + 1 - len(e.ids)) * e.tokenizer.longest
	return piece[:min(most, len(piece))]
}
