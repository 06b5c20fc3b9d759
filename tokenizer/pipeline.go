package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"

	"reprise/internal/plainjson"
)

// loadPipeline reads the sections that are the same for every vocabulary.
func (t *Tokenizer) loadPipeline(found map[string][]byte) error {
	var version string
	if raw := found["version"]; raw != nil {
		if err := json.Unmarshal(raw, &version); err != nil || version != "1.0" {
			return fmt.Errorf("version: %s is not supported, want \"1.0\"", raw)
		}
	}
	var err error
	if t.compose, err = parseNormalizer(found["normalizer"]); err != nil {
		return fmt.Errorf("normalizer: %w", err)
	}
	if t.scan, err = parsePreTokenizer(found["pre_tokenizer"]); err != nil {
		return fmt.Errorf("pre_tokenizer: %w", err)
	}
	if err := parseDecoder(found["decoder"]); err != nil {
		return fmt.Errorf("decoder: %w", err)
	}
	return nil
}

// typeOf is the "type" of a pipeline section.
func typeOf(data []byte) (string, error) {
	var section struct {
		Type string `json:"type"`
	}
	if absent(data) {
		return "", fmt.Errorf("missing")
	}
	if err := plainjson.Decode(data, &section, false); err != nil {
		return "", err
	}
	return section.Type, nil
}

func unsupported(kind string) error { return fmt.Errorf("type %q is not supported", kind) }

// parseNormalizer tells whether text is composed (NFC).
func parseNormalizer(data []byte) (compose bool, err error) {
	if absent(data) {
		return false, nil
	}
	kind, err := typeOf(data)
	if err != nil {
		return false, err
	}
	switch kind {
	case "NFC":
		var section struct {
			Type string `json:"type"`
		}
		return true, decodeStrict(data, &section)
	case "Sequence":
		return parseNormalizerSequence(data)
	}
	return false, unsupported(kind)
}

func parseNormalizerSequence(data []byte) (compose bool, err error) {
	var section struct {
		Type  string            `json:"type"`
		Parts []json.RawMessage `json:"normalizers"`
	}
	if err := decodeStrict(data, &section); err != nil {
		return false, err
	}
	for i, part := range section.Parts {
		one, err := parseNormalizer(part)
		if err != nil {
			return false, fmt.Errorf("normalizers[%d]: %w", i, err)
		}
		compose = compose || one
	}
	return compose, nil
}

// parsePreTokenizer accepts ByteLevel alone, and a Sequence of a Split by a known
// regular expression and a ByteLevel that does not split again.
func parsePreTokenizer(data []byte) (scanner, error) {
	kind, err := typeOf(data)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "ByteLevel":
		splits, err := parseByteLevel(data)
		if err != nil || !splits {
			return wholeText, err
		}
		return scanGPT2, nil
	case "Sequence":
		return parsePreTokenizerSequence(data)
	}
	return nil, unsupported(kind)
}

func parsePreTokenizerSequence(data []byte) (scanner, error) {
	var section struct {
		Type  string            `json:"type"`
		Parts []json.RawMessage `json:"pretokenizers"`
	}
	if err := decodeStrict(data, &section); err != nil {
		return nil, err
	}
	if len(section.Parts) != 2 {
		return nil, fmt.Errorf("pretokenizers: %d parts are not supported, want Split and ByteLevel", len(section.Parts))
	}
	for i, want := range []string{"Split", "ByteLevel"} {
		if kind, err := typeOf(section.Parts[i]); err != nil || kind != want {
			return nil, fmt.Errorf("pretokenizers[%d]: type %q is not supported here, want %s", i, kind, want)
		}
	}
	scan, err := parseSplit(section.Parts[0])
	if err != nil {
		return nil, fmt.Errorf("pretokenizers[0]: %w", err)
	}
	splits, err := parseByteLevel(section.Parts[1])
	if err == nil && splits {
		err = fmt.Errorf("use_regex true is not supported behind a Split")
	}
	if err != nil {
		return nil, fmt.Errorf("pretokenizers[1]: %w", err)
	}
	return scan, nil
}

func parseSplit(data []byte) (scanner, error) {
	var section struct {
		Type    string `json:"type"`
		Pattern struct {
			Regex *string
			Text  *string `json:"String"`
		} `json:"pattern"`
		Behavior string `json:"behavior"`
		Invert   bool   `json:"invert"`
	}
	if err := decodeStrict(data, &section); err != nil {
		return nil, err
	}
	if section.Pattern.Regex == nil {
		return nil, fmt.Errorf("pattern: only Regex is supported")
	}
	// Dropping what does not match is the same: every known pattern matches all text.
	isolated := section.Behavior == "Isolated" && !section.Invert
	if !isolated && (section.Behavior != "Removed" || !section.Invert) {
		return nil, fmt.Errorf("behavior: %q with invert %v is not supported, want Isolated", section.Behavior, section.Invert)
	}
	scan := scannerFor(*section.Pattern.Regex)
	if scan == nil {
		return nil, fmt.Errorf("pattern.Regex: no scanner for %q", *section.Pattern.Regex)
	}
	return scan, nil
}

// parseByteLevel tells whether the section also splits by the GPT-2 pattern.
func parseByteLevel(data []byte) (splits bool, err error) {
	var section struct {
		Type           string `json:"type"`
		AddPrefixSpace *bool  `json:"add_prefix_space"`
		TrimOffsets    bool   `json:"trim_offsets"`
		UseRegex       *bool  `json:"use_regex"`
	}
	if err := decodeStrict(data, &section); err != nil {
		return false, err
	}
	if section.AddPrefixSpace == nil {
		return false, fmt.Errorf("add_prefix_space: missing")
	}
	if *section.AddPrefixSpace {
		return false, fmt.Errorf("add_prefix_space: true is not supported")
	}
	return section.UseRegex == nil || *section.UseRegex, nil
}

// parseDecoder accepts ByteLevel, whose options say nothing about decoding.
func parseDecoder(data []byte) error {
	kind, err := typeOf(data)
	if err != nil {
		return err
	}
	switch kind {
	case "ByteLevel":
		return nil
	case "Sequence":
		return parseDecoderSequence(data)
	}
	return unsupported(kind)
}

func parseDecoderSequence(data []byte) error {
	var section struct {
		Type  string            `json:"type"`
		Parts []json.RawMessage `json:"decoders"`
	}
	if err := decodeStrict(data, &section); err != nil {
		return err
	}
	if len(section.Parts) != 1 {
		return fmt.Errorf("decoders: %d parts are not supported, want one ByteLevel", len(section.Parts))
	}
	return parseDecoder(section.Parts[0])
}

// loadPostProcessor reads what is put around a sequence when special tokens are added.
func (t *Tokenizer) loadPostProcessor(data []byte) error {
	if absent(data) {
		return nil
	}
	if err := t.postProcessor(data, true); err != nil {
		return fmt.Errorf("post_processor: %w", err)
	}
	return nil
}

func (t *Tokenizer) postProcessor(data []byte, nest bool) error {
	kind, err := typeOf(data)
	if err != nil {
		return err
	}
	switch {
	case kind == "ByteLevel": // changes offsets only
		return nil
	case kind == "TemplateProcessing":
		return t.template(data)
	case kind == "Sequence" && nest:
		return t.postProcessorSequence(data)
	}
	return unsupported(kind)
}

func (t *Tokenizer) postProcessorSequence(data []byte) error {
	var section struct {
		Type  string            `json:"type"`
		Parts []json.RawMessage `json:"processors"`
	}
	if err := decodeStrict(data, &section); err != nil {
		return err
	}
	for i, part := range section.Parts {
		if err := t.postProcessor(part, false); err != nil {
			return fmt.Errorf("processors[%d]: %w", i, err)
		}
	}
	return nil
}

type templateSection struct {
	Type    string          `json:"type"`
	Single  []templatePart  `json:"single"`
	Pair    json.RawMessage `json:"pair"`
	Special map[string]struct {
		ID     string   `json:"id"`
		IDs    []int32  `json:"ids"`
		Tokens []string `json:"tokens"`
	} `json:"special_tokens"`
}

type templatePart struct {
	SpecialToken *templateItem
	Sequence     *templateItem
}

type templateItem struct {
	ID     string `json:"id"`
	TypeID int    `json:"type_id"`
}

// template wraps the ids around a sequence in those of its "single" form.
func (t *Tokenizer) template(data []byte) error {
	var section templateSection
	if err := decodeStrict(data, &section); err != nil {
		return err
	}
	var around [2][]int32
	side := 0
	for i, part := range section.Single {
		switch {
		case part.SpecialToken != nil && part.Sequence == nil:
			token, ok := section.Special[part.SpecialToken.ID]
			if !ok {
				return fmt.Errorf("single[%d]: %q is not in special_tokens", i, part.SpecialToken.ID)
			}
			around[side] = append(around[side], token.IDs...)
		case part.Sequence != nil && part.SpecialToken == nil && part.Sequence.ID == "A" && side == 0:
			side = 1
		default:
			return fmt.Errorf("single[%d]: want a SpecialToken, or the Sequence A once", i)
		}
	}
	if side == 0 {
		return fmt.Errorf("single: has no Sequence A")
	}
	for _, id := range slices.Concat(around[0], around[1]) {
		if !t.known(id) || t.spelling[id] == "" {
			return fmt.Errorf("special_tokens: id %d is not in the vocabulary", id)
		}
	}
	t.prefix = slices.Concat(around[0], t.prefix)
	t.suffix = append(t.suffix, around[1]...)
	return nil
}
