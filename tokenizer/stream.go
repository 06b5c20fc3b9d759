package tokenizer

// Stream decodes ids one by one. The texts it returns are valid UTF-8 each, and
// together equal Decode of all ids. Not safe for concurrent use.
type Stream struct {
	tokenizer   *Tokenizer
	skipSpecial bool
	rest        []byte // the beginning of a character: at most 3 bytes
	text        []byte
}

// NewStream starts a stream; skipSpecial as in Decode.
func (t *Tokenizer) NewStream(skipSpecial bool) *Stream {
	return &Stream{tokenizer: t, skipSpecial: skipSpecial}
}

// Push returns the text that is certain after one more id: "" while a character is
// incomplete, for a skipped token, and for an id without a token.
func (s *Stream) Push(id int32) string {
	if s.skipSpecial && s.tokenizer.IsSpecial(id) {
		return ""
	}
	token := s.tokenizer.TokenBytes(id)
	s.rest = append(s.rest, token...)
	text, rest := appendText(s.text[:0], s.rest)
	s.rest = append(s.rest[:0], rest...)
	s.text = text
	return string(text)
}

// Flush ends the stream: U+FFFD if a character was never completed, else "". The
// stream can then be used anew.
func (s *Stream) Flush() string {
	text := appendBroken(nil, s.rest)
	s.rest = s.rest[:0]
	return string(text)
}
