package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"reprise/tokenizer"
)

// prompt is one prompt as tokens, and as text where it came as text.
type prompt struct {
	ids  []int32
	text string
	cut  bool // truncated: ids are not all of text
}

// prompts reads a string, an array of strings, an array of token ids, or an array of arrays of token ids.
func (a *API) prompts(f *fields, c *common) []prompt {
	const name = "prompt"
	raw := f.raw(name)
	switch {
	case f.err != nil:
		return nil
	case raw == nil:
		f.refuse(name, "is required")
		return nil
	case raw[0] == '"':
		return []prompt{a.textPrompt(f, c, name, raw)}
	case raw[0] != '[':
		f.wrongType(name, "a string, an array of strings, an array of token ids, or an array of arrays of token ids", raw)
		return nil
	}
	switch first := bytes.TrimLeft(raw[1:], jsonSpace); {
	case first[0] == ']':
		f.refuse(name, "must not be empty")
		return nil
	case kindOf(first) == "a number":
		return []prompt{a.tokenPrompt(f, c, name, raw)}
	}
	return a.promptList(f, c, name, raw)
}

func (a *API) promptList(f *fields, c *common, name string, raw json.RawMessage) []prompt {
	items := f.asArray(name, raw, maxPrompts)
	if f.err != nil {
		return nil
	}
	var out []prompt
	for i, item := range items {
		at := element(name, i)
		switch item[0] {
		case '"':
			out = append(out, a.textPrompt(f, c, at, item))
		case '[':
			out = append(out, a.tokenPrompt(f, c, at, item))
		default:
			f.wrongType(at, "a string or an array of token ids", item)
		}
		if f.err != nil {
			return nil
		}
	}
	return out
}

func (a *API) tokenPrompt(f *fields, c *common, name string, raw json.RawMessage) prompt {
	p := prompt{ids: f.asTokens(name, raw, maxPromptIDs)}
	a.inVocabulary(f, name, p.ids)
	return a.fit(f, c, name, p, false)
}

func (a *API) inVocabulary(f *fields, name string, ids []int32) {
	vocab := a.config.Engine.Limits().Vocab
	for i, id := range ids {
		if int(id) >= vocab {
			f.refuse(element(name, i), "token id %d is outside of the vocabulary of %d", id, vocab)
			break
		}
	}
}

func (a *API) textPrompt(f *fields, c *common, name string, raw json.RawMessage) prompt {
	text, ok := asText(raw)
	if !ok {
		f.wrongType(name, "a string", raw)
	}
	return a.encodePrompt(f, c, name, text)
}

// encodePrompt turns text into a prompt. Text that is far too long is not encoded to its end.
func (a *API) encodePrompt(f *fields, c *common, name, text string) prompt {
	if f.err != nil {
		return prompt{}
	}
	if a.config.Tokenizer == nil {
		f.fail(a.noTokenizer(name))
		return prompt{}
	}
	limit := a.config.Engine.Limits().MaxLen
	if c.truncateLast != 0 {
		limit = 4*limit + 1<<16
	}
	ids := a.config.Tokenizer.Encode(text, tokenizer.EncodeOptions{AddSpecial: c.addSpecial, MaxTokens: limit})
	return a.fit(f, c, name, prompt{ids: ids, text: text}, len(ids) > limit)
}

// fit truncates as asked for and refuses what the context cannot hold; partial says that ids are not all of the text.
func (a *API) fit(f *fields, c *common, name string, p prompt, partial bool) prompt {
	limit := a.config.Engine.Limits().MaxLen
	keep := c.truncateLast
	if keep == -1 {
		keep = max(limit-max(c.maxTokens, 1), 1)
	}
	if keep > 0 && len(p.ids) > keep && !partial {
		p.ids, p.cut = p.ids[len(p.ids)-keep:], true
	}
	switch n := len(p.ids); {
	case f.err != nil:
	case n == 0:
		f.refuse(name, "must have at least one token")
	case partial:
		f.fail(tooLong(f.prefix+name, fmt.Sprintf("more than %d", n-1), limit))
	case n > limit || n == limit && c.maxTokens != 0:
		f.fail(tooLong(f.prefix+name, strconv.Itoa(n), limit))
	}
	return p
}

func (a *API) encode(text string) []int32 {
	return a.config.Tokenizer.Encode(text, tokenizer.EncodeOptions{})
}

// decode is the text of a prompt as an echo shows it.
func (a *API) decode(p prompt) string {
	switch {
	case p.text != "" && !p.cut:
		return p.text
	case a.config.Tokenizer == nil:
		return ""
	}
	return a.config.Tokenizer.Decode(p.ids, false)
}

func (a *API) noTokenizer(name string) *Error {
	return &Error{
		Status: http.StatusBadRequest, Type: TypeInvalid, Param: name, Code: "no_tokenizer",
		Message: name + ": this server runs without a tokenizer (--skip-tokenizer-init): it takes and answers token ids only",
	}
}

func (a *API) noTemplate() *Error {
	return &Error{
		Status: http.StatusBadRequest, Type: TypeInvalid, Param: "messages", Code: "no_chat_template",
		Message: "messages: this model has no chat template (--chat-template FILE gives one)",
	}
}
