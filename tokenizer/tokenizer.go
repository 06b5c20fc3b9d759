// Package tokenizer turns text into token ids and back for byte-level BPE models
// described by a Hugging Face tokenizer.json.
//
// What lives here: the loader (strict: what it does not implement is an error that
// names the field, never different ids), NFC, added tokens, the split scanners, BPE
// merging, post-processing (BOS and the like), decoding and the streaming
// detokenizer. What does not: chat templates (the text of one is only handed on),
// stop strings, and which ids end a generation.
//
// The vocabulary is that of github.com/nlpodyssey/gotokenizers. Merging itself is one
// loop of our own for every piece length: the library's Tokenize is quadratic in a
// piece without spaces (a request can hold megabytes of that), and allocates a symbol
// a byte. The tests hold the loop to the library's result.
//
// Ids equal those of the Rust library (0.22), down to its Unicode tables: version 16 in
// split patterns, version 9 in NFC.
// Truncation and padding sections are ignored, as transformers resets both a call.
package tokenizer

import (
	"hash/maphash"
)

// Tokenizer is immutable after loading and safe for concurrent use.
type Tokenizer struct {
	model    bpe
	cache    pieceCache
	seed     maphash.Seed
	compose  bool // normaliser is NFC
	scan     scanner
	raw      matcher // added tokens found in the text as it came
	composed matcher // added tokens found after normalisation
	prefix   []int32 // ids in front of a sequence when special tokens are added
	suffix   []int32 // ids behind it

	spelling []string // id -> text in tokenizer.json; "" is a hole
	arena    []byte   // decoded bytes of all tokens, in order of id
	offset   []uint32 // id -> start in arena; one more than ids
	longest  int      // bytes of the longest token in arena
	added    map[string]int32
	flags    []uint8 // id -> flagAdded | flagSpecial

	names        specialNames
	chatTemplate string
}

const (
	flagAdded = 1 << iota
	flagSpecial
)

// VocabSize is the highest id plus one, added tokens included.
func (t *Tokenizer) VocabSize() int { return len(t.spelling) }

// TokenID is the id of a token by its text in tokenizer.json ("Ġthe", "<think>").
func (t *Tokenizer) TokenID(text string) (int32, bool) {
	if id, ok := t.added[text]; ok {
		return id, true
	}
	id, ok := t.model.vocabulary.GetID(text)
	if !ok || t.spelling[id] != text {
		return 0, false
	}
	return int32(id), true
}

// TokenText is the inverse of TokenID: the token as tokenizer.json spells it, not
// the text it stands for. It is "" for an id without a token.
func (t *Tokenizer) TokenText(id int32) string {
	if !t.known(id) {
		return ""
	}
	return t.spelling[id]
}

// TokenBytes are the bytes that id adds to the decoded text, possibly part of a
// character; empty for an id without a token. The caller must not change them.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	if !t.known(id) {
		return nil
	}
	start, end := t.offset[id], t.offset[id+1]
	return t.arena[start:end:end]
}

// IsSpecial tells whether id is an added token flagged special: hidden when special
// tokens are skipped.
func (t *Tokenizer) IsSpecial(id int32) bool { return t.known(id) && t.flags[id]&flagSpecial != 0 }

// IsAdded tells whether id is an added token, special or not.
func (t *Tokenizer) IsAdded(id int32) bool { return t.known(id) && t.flags[id]&flagAdded != 0 }

// BOS is tokenizer_config.json's bos_token.
func (t *Tokenizer) BOS() (int32, bool) { return t.named(t.names.bos) }

// EOS is tokenizer_config.json's eos_token.
func (t *Tokenizer) EOS() (int32, bool) { return t.named(t.names.eos) }

// Pad is tokenizer_config.json's pad_token.
func (t *Tokenizer) Pad() (int32, bool) { return t.named(t.names.pad) }

// ChatTemplate is the Jinja source of the default chat template, or "".
func (t *Tokenizer) ChatTemplate() string { return t.chatTemplate }

func (t *Tokenizer) named(text string) (int32, bool) {
	if text == "" {
		return 0, false
	}
	return t.TokenID(text)
}

func (t *Tokenizer) known(id int32) bool { return id >= 0 && int(id) < len(t.spelling) }
