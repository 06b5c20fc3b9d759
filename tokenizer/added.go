package tokenizer

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// addedToken is one entry of added_tokens: a text that becomes its id wherever it
// stands, before the text around it is split.
type addedToken struct {
	ID         *int   `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only where no word character touches it
	LStrip     bool   `json:"lstrip"`      // takes the white space in front of it
	RStrip     bool   `json:"rstrip"`      // takes the white space behind it
	Normalized bool   `json:"normalized"`  // looked for in the normalised text
	Special    bool   `json:"special"`
}

// loadAdded enters the added tokens, and of more those that the file does not have.
func (t *Tokenizer) loadAdded(data []byte, more []addedToken) error {
	var tokens []addedToken
	if !absent(data) {
		if err := decodeStrict(data, &tokens); err != nil {
			return fmt.Errorf("added_tokens: %w", err)
		}
	}
	t.flags = make([]uint8, len(t.spelling))
	for i := range tokens {
		if err := t.addToken(&tokens[i]); err != nil {
			return fmt.Errorf("added_tokens[%d]: %w", i, err)
		}
	}
	for i := range more {
		if _, known := t.added[more[i].Content]; known {
			continue
		}
		if err := t.addToken(&more[i]); err != nil {
			return fmt.Errorf("added_tokens_decoder of tokenizer_config.json: %w", err)
		}
	}
	return nil
}

func (t *Tokenizer) addToken(token *addedToken) error {
	if token.ID == nil {
		return fmt.Errorf("id: missing")
	}
	if _, twice := t.added[token.Content]; twice {
		return fmt.Errorf("content: %q appears twice", token.Content)
	}
	id, known := t.TokenID(token.Content)
	if known && int(id) != *token.ID {
		return fmt.Errorf("id: %q is %d in the vocabulary, not %d", token.Content, id, *token.ID)
	}
	if !known {
		var err error
		if t.spelling, err = place(t.spelling, *token.ID, token.Content); err != nil {
			return err
		}
		id = int32(*token.ID)
	}
	t.added[token.Content] = id
	t.setFlags(id, token.Special)
	if token.Normalized {
		t.composed.add(t.normalize(token.Content), id, token)
	} else {
		t.raw.add(token.Content, id, token)
	}
	return nil
}

func (t *Tokenizer) setFlags(id int32, special bool) {
	for len(t.flags) < len(t.spelling) {
		t.flags = append(t.flags, 0)
	}
	t.flags[id] = flagAdded
	if special {
		t.flags[id] |= flagSpecial
	}
}

func (t *Tokenizer) normalize(text string) string {
	if !t.compose || norm.NFC.IsNormalString(text) {
		return text
	}
	return composeText(text)
}

// matcher finds the leftmost longest of a set of added tokens, through a trie.
type matcher struct {
	nodes []trieNode // nodes[0] is the root
	first [256]bool  // bytes that a token can begin with
}

type trieNode struct {
	next  map[byte]int32
	token *addedToken // nil where no token ends
	id    int32
}

func (m *matcher) add(text string, id int32, token *addedToken) {
	if len(m.nodes) == 0 {
		m.nodes = make([]trieNode, 1)
	}
	m.first[text[0]] = true
	at := int32(0)
	for i := range len(text) {
		node := &m.nodes[at]
		if node.next == nil {
			node.next = map[byte]int32{}
		}
		child, ok := node.next[text[i]]
		if !ok {
			child = int32(len(m.nodes))
			node.next[text[i]] = child
			m.nodes = append(m.nodes, trieNode{})
		}
		at = child
	}
	if m.nodes[at].token == nil {
		m.nodes[at].token, m.nodes[at].id = token, id
	}
}

// segments cuts text at the added tokens: plain gets what is between them, found the
// ids, in order. Either may return false to stop.
func (m *matcher) segments(text string, plain func(string) bool, found func(int32) bool) bool {
	if len(m.nodes) == 0 {
		return plain(text)
	}
	done := 0
	for at := 0; at < len(text); {
		node, stop := m.longest(text, at)
		if node == nil {
			at++
			continue
		}
		if node.token.SingleWord && insideWord(text, at, stop) {
			at = stop
			continue
		}
		start, end := max(at, done), stop
		if node.token.LStrip {
			start = done + len(strings.TrimRightFunc(text[done:start], unicode.IsSpace))
		}
		if node.token.RStrip {
			end = len(text) - len(strings.TrimLeftFunc(text[stop:], unicode.IsSpace))
		}
		if start > done && !plain(text[done:start]) || !found(node.id) {
			return false
		}
		at, done = stop, end
	}
	return done >= len(text) || plain(text[done:])
}

// longest is the node of the longest token that starts at a position, or nil.
func (m *matcher) longest(text string, start int) (node *trieNode, stop int) {
	if !m.first[text[start]] {
		return nil, 0
	}
	at := int32(0)
	for i := start; i < len(text); i++ {
		child, ok := m.nodes[at].next[text[i]]
		if !ok {
			break
		}
		at = child
		if m.nodes[at].token != nil {
			node, stop = &m.nodes[at], i+1
		}
	}
	return node, stop
}

func insideWord(text string, start, stop int) bool {
	before, n := utf8.DecodeLastRuneInString(text[:start])
	after, k := utf8.DecodeRuneInString(text[stop:])
	return n > 0 && wordCharacter(before) || k > 0 && wordCharacter(after)
}

// wordCharacter is \w of a Unicode regular expression (UTS 18, annex C).
func wordCharacter(r rune) bool {
	return classOf(r)&(classLetter|classMark) != 0 || r == '\u200c' || r == '\u200d' ||
		unicode.In(r, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic)
}
