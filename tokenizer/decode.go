package tokenizer

import "unicode/utf8"

// decodeTokens fills the arena from the tokens' texts.
func (t *Tokenizer) decodeTokens() {
	t.offset = make([]uint32, 1, len(t.spelling)+1)
	for _, token := range t.spelling {
		t.arena = appendTokenBytes(t.arena, token)
		t.longest = max(t.longest, len(t.arena)-int(t.offset[len(t.offset)-1]))
		t.offset = append(t.offset, uint32(len(t.arena)))
	}
}

// Decode joins the tokens' bytes; what is not UTF-8 in them becomes U+FFFD, one for
// each maximal part of a character. Ids without a token add nothing; special tokens
// neither if skipSpecial.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	size := 0
	for _, id := range ids {
		size += len(t.TokenBytes(id))
	}
	joined := make([]byte, 0, size)
	for _, id := range ids {
		if !skipSpecial || !t.IsSpecial(id) {
			joined = append(joined, t.TokenBytes(id)...)
		}
	}
	if utf8.Valid(joined) {
		return string(joined)
	}
	text, rest := appendText(make([]byte, 0, size), joined)
	return string(appendBroken(text, rest))
}

// appendText appends src to dst as valid UTF-8 and returns what is left: the
// beginning of a character that more bytes could complete.
func appendText(dst, src []byte) (text, rest []byte) {
	for len(src) > 0 {
		if r, n := utf8.DecodeRune(src); r != utf8.RuneError || n > 1 {
			dst, src = append(dst, src[:n]...), src[n:]
			continue
		}
		if !utf8.FullRune(src) {
			break
		}
		dst, src = utf8.AppendRune(dst, utf8.RuneError), src[brokenLength(src):]
	}
	return dst, src
}

// brokenLength is the length of the maximal part of a character at the start of src,
// where no whole character is: bytes that some character begins with, else one byte.
func brokenLength(src []byte) int {
	n := 1
	for n < len(src) && !utf8.FullRune(src[:n+1]) {
		n++
	}
	return n
}

// appendBroken ends a text whose rest never came.
func appendBroken(dst, rest []byte) []byte {
	if len(rest) > 0 {
		dst = utf8.AppendRune(dst, utf8.RuneError)
	}
	return dst
}
