package api

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"reprise/engine"
)

// lowestLogProb stands for minus infinity and NaN, which JSON cannot say.
const lowestLogProb = -9999

func finite(p float32) float32 {
	if p > lowestLogProb {
		return p
	}
	return lowestLogProb
}

// tokenText is how a token is shown among log probabilities.
func (c *choice) tokenText(id int32) string {
	if c.job.idsAsText {
		return "token_id:" + strconv.Itoa(int(id))
	}
	return strings.ToValidUTF8(string(c.job.api.config.Tokenizer.TokenBytes(id)), "\uFFFD")
}

// completionLogProbs are log probabilities in the format of completions.
type completionLogProbs struct {
	Tokens        []string             `json:"tokens"`
	TokenLogProbs []*float32           `json:"token_logprobs"`
	TopLogProbs   []map[string]float32 `json:"top_logprobs"`
	TextOffset    []int                `json:"text_offset"`
}

func (l *completionLogProbs) extend(more *completionLogProbs) {
	l.Tokens = append(l.Tokens, more.Tokens...)
	l.TokenLogProbs = append(l.TokenLogProbs, more.TokenLogProbs...)
	l.TopLogProbs = append(l.TopLogProbs, more.TopLogProbs...)
	l.TextOffset = append(l.TextOffset, more.TextOffset...)
}

// add appends a token; scored is nil for the first token of a prompt, which nothing predicts. Offsets count characters.
func (l *completionLogProbs) add(c *choice, id int32, scored *engine.Token, offset *int) {
	text := c.tokenText(id)
	l.Tokens = append(l.Tokens, text)
	l.TextOffset = append(l.TextOffset, *offset)
	*offset += utf8.RuneCountInString(text)
	if scored == nil {
		l.TokenLogProbs = append(l.TokenLogProbs, nil)
		l.TopLogProbs = append(l.TopLogProbs, nil)
		return
	}
	own := finite(scored.LogProb)
	top := map[string]float32{}
	for _, t := range scored.Top {
		if name := c.tokenText(t.ID); !has(top, name) { // the likeliest of those that look the same
			top[name] = finite(t.LogProb)
		}
	}
	if !has(top, text) {
		top[text] = own
	}
	l.TokenLogProbs = append(l.TokenLogProbs, &own)
	l.TopLogProbs = append(l.TopLogProbs, top)
}

func has(m map[string]float32, key string) bool {
	_, ok := m[key]
	return ok
}

// chatLogProbs are log probabilities in the format of chats.
type chatLogProbs struct {
	Content []chatToken `json:"content"`
}

type chatToken struct {
	Token   string         `json:"token"`
	LogProb float32        `json:"logprob"`
	Bytes   []int          `json:"bytes"`
	Top     []chatTopToken `json:"top_logprobs"`
}

type chatTopToken struct {
	Token   string  `json:"token"`
	LogProb float32 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

func (c *choice) chatLogProbs(tokens []engine.Token) *chatLogProbs {
	out := &chatLogProbs{Content: []chatToken{}}
	for _, t := range tokens {
		entry := chatToken{c.tokenText(t.ID), finite(t.LogProb), c.tokenBytes(t.ID), []chatTopToken{}}
		for _, alt := range t.Top {
			entry.Top = append(entry.Top, chatTopToken{c.tokenText(alt.ID), finite(alt.LogProb), c.tokenBytes(alt.ID)})
		}
		out.Content = append(out.Content, entry)
	}
	return out
}

func (c *choice) tokenBytes(id int32) []int {
	bytes := c.job.api.config.Tokenizer.TokenBytes(id)
	out := make([]int, len(bytes))
	for i, b := range bytes {
		out[i] = int(b)
	}
	return out
}

// promptLogProb is an entry of prompt_logprobs, by token id.
type promptLogProb struct {
	LogProb float32 `json:"logprob"`
	Rank    *int32  `json:"rank"`
	Decoded string  `json:"decoded_token"`
}

// promptLogProbs lists, behind a null for the first token, the alternatives at every token of the prompt.
func (c *choice) promptLogProbs(scores []engine.Token) []map[string]promptLogProb {
	out := []map[string]promptLogProb{nil}
	for _, t := range scores {
		t.Top = t.Top[:min(len(t.Top), c.job.promptProbs)]
		at := map[string]promptLogProb{}
		for i, alt := range t.Top {
			rank := int32(i + 1)
			at[strconv.Itoa(int(alt.ID))] = promptLogProb{finite(alt.LogProb), &rank, c.tokenText(alt.ID)}
		}
		at[strconv.Itoa(int(t.ID))] = promptLogProb{finite(t.LogProb), &t.Rank, c.tokenText(t.ID)}
		out = append(out, at)
	}
	return out
}
