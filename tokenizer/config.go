package tokenizer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"reprise/internal/plainjson"
)

// config is what is used of tokenizer_config.json.
type config struct {
	names        specialNames
	chatTemplate string
	addedTokens  []addedToken
}

type specialNames struct{ bos, eos, pad string }

func parseConfig(data []byte) (*config, error) {
	c := &config{}
	if data == nil {
		return c, nil
	}
	if len(data) > maxConfigSize {
		return nil, fmt.Errorf("larger than %d bytes", maxConfigSize)
	}
	var file struct {
		BOS          json.RawMessage            `json:"bos_token"`
		EOS          json.RawMessage            `json:"eos_token"`
		Pad          json.RawMessage            `json:"pad_token"`
		ChatTemplate json.RawMessage            `json:"chat_template"`
		AddedTokens  map[string]json.RawMessage `json:"added_tokens_decoder"`
	}
	if err := plainjson.Decode(data, &file, false); err != nil {
		return nil, err
	}
	var err error
	for _, field := range []struct {
		name string
		data []byte
		into *string
	}{{"bos_token", file.BOS, &c.names.bos}, {"eos_token", file.EOS, &c.names.eos}, {"pad_token", file.Pad, &c.names.pad}} {
		if *field.into, err = parseTokenName(field.data); err != nil {
			return nil, fmt.Errorf("%s: %w", field.name, err)
		}
	}
	if c.chatTemplate, err = parseChatTemplate(file.ChatTemplate); err != nil {
		return nil, fmt.Errorf("chat_template: %w", err)
	}
	if c.addedTokens, err = parseAddedDecoder(file.AddedTokens); err != nil {
		return nil, fmt.Errorf("added_tokens_decoder: %w", err)
	}
	return c, nil
}

// parseTokenName reads a token given as null, as its text, or as an object with its
// content.
func parseTokenName(data []byte) (string, error) {
	if absent(data) {
		return "", nil
	}
	var text string
	if json.Unmarshal(data, &text) == nil {
		return text, nil
	}
	var object struct {
		Content *string `json:"content"`
	}
	if err := json.Unmarshal(data, &object); err != nil || object.Content == nil {
		return "", fmt.Errorf("want a string or an object with content")
	}
	return *object.Content, nil
}

// parseChatTemplate reads a template, or of a list of named ones the one called default.
func parseChatTemplate(data []byte) (string, error) {
	if absent(data) {
		return "", nil
	}
	var text string
	if json.Unmarshal(data, &text) == nil {
		return text, nil
	}
	var list []struct {
		Name     string `json:"name"`
		Template string `json:"template"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return "", fmt.Errorf("want a string or a list of objects with name and template")
	}
	for _, entry := range list {
		if entry.Name == "default" {
			return entry.Template, nil
		}
	}
	return "", nil
}

// parseAddedDecoder reads {"id": token}; transformers adds those of them that
// tokenizer.json lacks.
func parseAddedDecoder(entries map[string]json.RawMessage) ([]addedToken, error) {
	var tokens []addedToken
	for key, data := range entries {
		var token addedToken
		if err := plainjson.Decode(data, &token, false); err != nil {
			return nil, fmt.Errorf("%q: %w", key, err)
		}
		id, err := strconv.Atoi(key)
		if err != nil {
			return nil, fmt.Errorf("%q is not an id", key)
		}
		token.ID = &id
		tokens = append(tokens, token)
	}
	slices.SortFunc(tokens, func(a, b addedToken) int { return cmp.Compare(*a.ID, *b.ID) })
	return tokens, nil
}

func (t *Tokenizer) applyConfig(c *config) error {
	t.names, t.chatTemplate = c.names, c.chatTemplate
	for _, field := range []struct{ name, token string }{
		{"bos_token", c.names.bos}, {"eos_token", c.names.eos}, {"pad_token", c.names.pad},
	} {
		if _, ok := t.named(field.token); field.token != "" && !ok {
			return fmt.Errorf("%s: %q is not in the vocabulary", field.name, field.token)
		}
	}
	return nil
}
