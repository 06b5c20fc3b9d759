package api

import "reprise/tokenizer"

// tokenizeAnswer is what /tokenize answers.
type tokenizeAnswer struct {
	Count       int      `json:"count"`
	MaxModelLen int      `json:"max_model_len"`
	Tokens      []int32  `json:"tokens"`
	TokenTexts  []string `json:"token_strs"`
}

// Tokenize answers the body of a request to /tokenize: of text in prompt, or of a conversation in messages.
func (a *API) Tokenize(body []byte) (any, error) {
	f := parseFields(body)
	if model := f.text("model", ""); f.err == nil && !a.knows(model) {
		f.fail(a.unknownModel(model))
	}
	if a.config.Tokenizer == nil {
		f.fail(a.noTokenizer("prompt"))
	}
	text := f.text("prompt", "")
	special := f.boolean("add_special_tokens", !f.has("messages"))
	switch {
	case f.has("messages") && f.has("prompt"):
		f.refuse("prompt", "only allowed without messages")
	case f.has("messages"):
		j := &chatJob{job: job{api: a}}
		j.readTools(f)
		j.render(f)
		text = j.rendered
	case f.err == nil && !f.has("prompt"):
		f.refuse("prompt", "is required")
	}
	withTexts := f.boolean("return_token_strs", false)
	if f.err != nil {
		return nil, f.err
	}
	ids := a.config.Tokenizer.Encode(text, tokenizer.EncodeOptions{AddSpecial: special, MaxTokens: maxPromptIDs})
	if len(ids) > maxPromptIDs {
		return nil, invalid("prompt", "more than %d tokens", maxPromptIDs)
	}
	out := tokenizeAnswer{Count: len(ids), MaxModelLen: a.config.Engine.Limits().MaxLen, Tokens: append([]int32{}, ids...)}
	if withTexts {
		for _, id := range out.Tokens {
			out.TokenTexts = append(out.TokenTexts, a.config.Tokenizer.TokenText(id))
		}
	}
	return out, nil
}

// Detokenize answers the body of a request to /detokenize.
func (a *API) Detokenize(body []byte) (any, error) {
	f := parseFields(body)
	if model := f.text("model", ""); f.err == nil && !a.knows(model) {
		f.fail(a.unknownModel(model))
	}
	if a.config.Tokenizer == nil {
		f.fail(a.noTokenizer("tokens"))
	}
	if f.err == nil && !f.has("tokens") {
		f.refuse("tokens", "is required")
	}
	ids := f.tokens("tokens", maxPromptIDs)
	a.inVocabulary(f, "tokens", ids)
	if f.err != nil {
		return nil, f.err
	}
	return map[string]string{"prompt": a.config.Tokenizer.Decode(ids, false)}, nil
}

// Model is a model as /v1/models lists it.
type Model struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	Root        string `json:"root"`
	MaxModelLen int    `json:"max_model_len"`
	VocabSize   int    `json:"vocab_size"` // token ids are below this
}

// Models lists the names under which the model is served.
func (a *API) Models() []Model {
	var out []Model
	limits := a.config.Engine.Limits()
	for _, name := range a.config.Models {
		out = append(out, Model{name, "model", a.config.Created.Unix(), "reprise", a.config.Models[0], limits.MaxLen, limits.Vocab})
	}
	return out
}

// Model finds a model by name; the error is *Error.
func (a *API) Model(name string) (Model, error) {
	for _, m := range a.Models() {
		if m.ID == name {
			return m, nil
		}
	}
	return Model{}, a.unknownModel(name)
}
