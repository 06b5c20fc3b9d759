package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"slices"

	"reprise/internal/plainjson"
)

// Limits on files, so that a broken or hostile one costs bounded memory and time.
const (
	maxFileBytes  = 128 << 20 // tokenizer.json; the largest known is 33 MB
	maxConfigSize = 16 << 20  // tokenizer_config.json and chat_template.jinja
	maxVocab      = 1 << 20   // ids
	maxTokenBytes = 4 << 10   // text of one token in the file
)

// LoadFS loads the tokenizer of a checkpoint folder: tokenizer.json, and where there
// are such files tokenizer_config.json and chat_template.jinja (which wins over the
// config's template).
func LoadFS(fsys fs.FS) (*Tokenizer, error) {
	model, err := readFile(fsys, "tokenizer.json", maxFileBytes)
	if err != nil {
		return nil, err
	}
	config, err := readOptional(fsys, "tokenizer_config.json")
	if err != nil {
		return nil, err
	}
	template, err := readOptional(fsys, "chat_template.jinja")
	if err != nil {
		return nil, err
	}
	t, err := Load(model, config)
	if err == nil && template != nil {
		t.chatTemplate = string(template)
	}
	return t, err
}

func readOptional(fsys fs.FS, name string) ([]byte, error) {
	data, err := readFile(fsys, name, maxConfigSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

func readFile(fsys fs.FS, name string, limit int) ([]byte, error) {
	file, err := fsys.Open(name)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	defer file.Close()
	var buffer bytes.Buffer
	if info, err := file.Stat(); err == nil && info.Size() <= int64(limit) {
		buffer.Grow(int(info.Size()) + bytes.MinRead)
	}
	if _, err := buffer.ReadFrom(io.LimitReader(file, int64(limit)+1)); err != nil {
		return nil, fmt.Errorf("tokenizer: read %s: %w", name, err)
	}
	if buffer.Len() > limit {
		return nil, fmt.Errorf("tokenizer: %s is larger than %d bytes", name, limit)
	}
	return buffer.Bytes(), nil
}

// Load builds a tokenizer from the bytes of tokenizer.json and, unless nil, those of
// tokenizer_config.json. An error names the file and the field.
func Load(tokenizerJSON, configJSON []byte) (*Tokenizer, error) {
	if len(tokenizerJSON) > maxFileBytes {
		return nil, fmt.Errorf("tokenizer.json: larger than %d bytes", maxFileBytes)
	}
	config, err := parseConfig(configJSON)
	if err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	t, err := build(tokenizerJSON, config.addedTokens)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	if err := t.applyConfig(config); err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	return t, nil
}

var topLevelFields = []string{"version", "truncation", "padding", "added_tokens", "normalizer",
	"pre_tokenizer", "post_processor", "decoder", "model"}

func build(data []byte, more []addedToken) (*Tokenizer, error) {
	found, err := fields(data)
	if err != nil {
		return nil, err
	}
	for key, value := range found {
		if !slices.Contains(topLevelFields, key) {
			return nil, fmt.Errorf("field %q is not supported", key)
		}
		if key != "model" && !json.Valid(value) {
			return nil, fmt.Errorf("%s: invalid JSON", key)
		}
	}
	t := &Tokenizer{seed: maphash.MakeSeed(), added: map[string]int32{}}
	if err := t.loadPipeline(found); err != nil {
		return nil, err
	}
	vocab, err := t.loadModel(found["model"])
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	t.spelling = vocab
	if err := t.loadAdded(found["added_tokens"], more); err != nil {
		return nil, err
	}
	t.decodeTokens()
	return t, t.loadPostProcessor(found["post_processor"])
}

// decodeStrict reads a small JSON value into v; fields that v does not have are errors.
func decodeStrict(data []byte, v any) error {
	return plainjson.Decode(data, v, true)
}

func absent(data []byte) bool {
	return len(data) == 0 || string(data) == "null"
}
