package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/nlpodyssey/gotokenizers/vocabulary"
)

// modelOptions are the fields of the model section apart from vocab and merges.
type modelOptions struct {
	Type         string   `json:"type"`
	Dropout      *float64 `json:"dropout"`
	UnknownToken *string  `json:"unk_token"` // never used: every byte has a token
	Prefix       *string  `json:"continuing_subword_prefix"`
	Suffix       *string  `json:"end_of_word_suffix"`
	FuseUnknown  bool     `json:"fuse_unk"`
	ByteFallback bool     `json:"byte_fallback"`
	IgnoreMerges bool     `json:"ignore_merges"`
}

func (o *modelOptions) check() error {
	switch {
	case o.Type != "BPE":
		return fmt.Errorf("type: %q is not supported, want BPE", o.Type)
	case o.Dropout != nil && *o.Dropout != 0:
		return fmt.Errorf("dropout: %v is not supported", *o.Dropout)
	case o.Prefix != nil && *o.Prefix != "":
		return fmt.Errorf("continuing_subword_prefix: %q is not supported", *o.Prefix)
	case o.Suffix != nil && *o.Suffix != "":
		return fmt.Errorf("end_of_word_suffix: %q is not supported", *o.Suffix)
	case o.ByteFallback:
		return fmt.Errorf("byte_fallback: true is not supported")
	}
	return nil
}

// loadModel fills t.model and returns the token of each id ("" where there is none).
func (t *Tokenizer) loadModel(data []byte) ([]string, error) {
	if absent(data) {
		return nil, fmt.Errorf("missing")
	}
	found, err := fields(data)
	if err != nil {
		return nil, err
	}
	rawVocab, rawMerges := found["vocab"], found["merges"]
	delete(found, "vocab")
	delete(found, "merges")
	var options modelOptions
	if err := decodeFields(found, &options); err != nil {
		return nil, err
	}
	if err := options.check(); err != nil {
		return nil, err
	}
	vocab, err := parseVocab(rawVocab)
	if err != nil {
		return nil, fmt.Errorf("vocab: %w", err)
	}
	t.model.vocabulary, t.model.ignoreMerges = newVocabulary(vocab), options.IgnoreMerges
	if t.model.vocabulary.Size() != len(vocab) {
		return nil, fmt.Errorf("vocab: a token appears twice")
	}
	if err := t.model.setBytes(); err != nil {
		return nil, fmt.Errorf("vocab: %w", err)
	}
	t.model.merges = newMergeTable(len(vocab))
	limits := newCharLimits()
	if err := t.model.loadMerges(rawMerges, limits); err != nil {
		return nil, fmt.Errorf("merges: %w", err)
	}
	t.model.chars.fill(&t.model, limits, vocab)
	return vocab, nil
}

// decodeFields puts split fields together again for encoding/json; the big ones are
// gone by then.
func decodeFields(found map[string][]byte, v any) error {
	small := map[string]json.RawMessage{}
	for key, value := range found {
		if !json.Valid(value) {
			return fmt.Errorf("%s: invalid JSON", key)
		}
		small[key] = value
	}
	text, err := json.Marshal(small)
	if err != nil {
		return err
	}
	return decodeStrict(text, v)
}

// parseVocab reads {"token": id} into a slice by id.
func parseVocab(data []byte) ([]string, error) {
	if absent(data) {
		return nil, fmt.Errorf("missing")
	}
	c := cursor{data: data}
	var vocab []string
	err := c.object(func(token string) error {
		id, err := c.integer()
		if err != nil {
			return fmt.Errorf("token %q: %w", token, err)
		}
		vocab, err = place(vocab, id, token)
		return err
	})
	return vocab, err
}

// place puts a token at its id, which must be free.
func place(vocab []string, id int, token string) ([]string, error) {
	switch {
	case token == "":
		return nil, fmt.Errorf("empty token with id %d", id)
	case len(token) > maxTokenBytes:
		return nil, fmt.Errorf("token of id %d is longer than %d bytes", id, maxTokenBytes)
	case id < 0 || id >= maxVocab:
		return nil, fmt.Errorf("token %q: id %d is not in [0, %d)", token, id, maxVocab)
	}
	for id >= len(vocab) {
		vocab = append(vocab, "")
	}
	if vocab[id] != "" {
		return nil, fmt.Errorf("tokens %q and %q share id %d", vocab[id], token, id)
	}
	vocab[id] = token
	return vocab, nil
}

// newVocabulary numbers the tokens as the library does: in order, without holes. A
// hole gets a name that no text of a JSON file can have.
func newVocabulary(vocab []string) *vocabulary.Vocabulary {
	v := vocabulary.NewVocabulary()
	for id, token := range vocab {
		if token == "" {
			token = fmt.Sprintf("\xff%d", id)
		}
		v.AddTerm(token)
	}
	return v
}

// loadMerges reads merges, best first, as "a b" strings or ["a", "b"] pairs.
func (m *bpe) loadMerges(data []byte, limits charLimits) error {
	if absent(data) {
		return fmt.Errorf("missing")
	}
	c := cursor{data: data}
	rank := 0
	var joined []byte
	return c.list('[', ']', func() error {
		left, right, err := c.merge()
		if err == nil && left != "" {
			err = m.loadMerge(rank, left, right)
			joined = appendTokenBytes(appendTokenBytes(joined[:0], left), right)
			limits.add(joined, rank)
		}
		if err != nil {
			return fmt.Errorf("merge %d: %w", rank, err)
		}
		if left != "" {
			rank++
		}
		return nil
	})
}

// merge reads one merge; a version comment gives two empty strings.
func (c *cursor) merge() (left, right string, err error) {
	if c.peek() == '[' {
		return c.mergePair()
	}
	text, err := c.str()
	if err != nil || strings.HasPrefix(text, "#version") {
		return "", "", err
	}
	left, right, ok := strings.Cut(text, " ")
	if !ok || left == "" || right == "" || strings.Contains(right, " ") {
		return "", "", fmt.Errorf("%q is not two tokens", text)
	}
	return left, right, nil
}

func (c *cursor) mergePair() (left, right string, err error) {
	var parts [2]string
	n := 0
	err = c.list('[', ']', func() error {
		part, err := c.str()
		parts[n%2] = part
		n++
		return err
	})
	if err == nil && (n != 2 || parts[0] == "" || parts[1] == "") {
		err = fmt.Errorf("%d parts, want two tokens", n)
	}
	return parts[0], parts[1], err
}

func (m *bpe) loadMerge(rank int, left, right string) error {
	var ids [3]int
	for i, token := range [3]string{left, right, left + right} {
		id, ok := m.vocabulary.GetID(token)
		if !ok {
			return fmt.Errorf("%q is not in vocab", token)
		}
		ids[i] = id
	}
	m.addMerge(ids[0], ids[1], ids[2], rank)
	return nil
}
