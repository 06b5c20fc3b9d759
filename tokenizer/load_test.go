package tokenizer

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// object is a JSON object under construction.
type object = map[string]any

// tiny is the smallest tokenizer.json that loads: the bytes, two merges, one special
// token.
func tiny() object {
	vocab := object{}
	for b, r := range byteRunes {
		vocab[string(r)] = b
	}
	vocab["ab"], vocab["abc"] = 256, 257
	return object{
		"version":      "1.0",
		"added_tokens": []any{object{"id": 258, "content": "<s>", "special": true}},
		"pre_tokenizer": object{"type": "Sequence", "pretokenizers": []any{
			object{"type": "Split", "pattern": object{"Regex": patternQwen2}, "behavior": "Isolated", "invert": false},
			object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}}},
		"decoder": object{"type": "ByteLevel"},
		"model":   object{"type": "BPE", "vocab": vocab, "merges": []any{"a b", []any{"ab", "c"}}},
	}
}

func encodeJSON(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// at walks to the object that holds the last element of a dotted path.
func at(root object, path string) (object, string) {
	keys := strings.Split(path, ".")
	for _, key := range keys[:len(keys)-1] {
		switch next := root[key].(type) {
		case object:
			root = next
		case []any:
			root = object{"0": next[0], "1": next[len(next)-1]}
		default:
			panic("no " + key + " in " + path)
		}
	}
	return root, keys[len(keys)-1]
}

func TestLoadTiny(t *testing.T) {
	tok := mustLoad(t, encodeJSON(t, tiny()))
	if got := fmt.Sprint(tok.Encode("abcab<s>é", EncodeOptions{AddSpecial: true})); got != "[257 256 258 195 169]" {
		t.Errorf("ids %s", got)
	}
	if tok.VocabSize() != 259 || !tok.IsSpecial(258) || tok.IsSpecial(257) || !tok.IsAdded(258) {
		t.Errorf("size %d, special %v %v", tok.VocabSize(), tok.IsSpecial(258), tok.IsSpecial(257))
	}
	if id, ok := tok.TokenID("abc"); id != 257 || !ok {
		t.Errorf("abc is %d %v", id, ok)
	}
	if _, ok := tok.TokenID("nothing"); ok {
		t.Error("an unknown token has an id")
	}
	for _, id := range []int32{-1, 259, 1 << 30} {
		if tok.TokenText(id) != "" || len(tok.TokenBytes(id)) != 0 || tok.IsSpecial(id) || tok.Decode([]int32{id}, false) != "" {
			t.Errorf("id %d is not in the vocabulary but has text", id)
		}
	}
}

// TestLoadRefuses sets one field at a time; the error must name it.
func TestLoadRefuses(t *testing.T) {
	bytelevel := func(o object) object {
		full := object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
		maps.Copy(full, o)
		return full
	}
	template := func(single ...any) object {
		return object{"type": "TemplateProcessing", "single": single, "pair": []any{},
			"special_tokens": object{"<s>": object{"id": "<s>", "ids": []any{258}, "tokens": []any{"<s>"}},
				"bad": object{"id": "bad", "ids": []any{999}, "tokens": []any{"bad"}}}}
	}
	token := func(id string) object { return object{"SpecialToken": object{"id": id, "type_id": 0}} }
	sequence := func(id string) object { return object{"Sequence": object{"id": id, "type_id": 0}} }
	for _, c := range []struct {
		path  string
		value any
		want  string
	}{
		{"extra", 1, `field "extra" is not supported`},
		{"version", "2.0", "version"},
		{"normalizer", object{"type": "NFKC"}, `normalizer: type "NFKC"`},
		{"normalizer", object{"type": "Sequence", "normalizers": []any{object{"type": "NFC"}, object{"type": "Lowercase"}}}, `normalizers[1]: type "Lowercase"`},
		{"normalizer", "NFC", "normalizer"},
		{"pre_tokenizer", nil, "pre_tokenizer: missing"},
		{"pre_tokenizer", object{"type": "Whitespace"}, `pre_tokenizer: type "Whitespace"`},
		{"pre_tokenizer", bytelevel(object{"add_prefix_space": true}), "add_prefix_space: true"},
		{"pre_tokenizer", object{"type": "ByteLevel"}, "add_prefix_space: missing"},
		{"pre_tokenizer", bytelevel(object{"more": 1}), `unknown field "more"`},
		{"pre_tokenizer", object{"type": "Sequence", "pretokenizers": []any{bytelevel(nil)}}, "1 parts"},
		{"pre_tokenizer", object{"type": "Sequence", "pretokenizers": []any{bytelevel(nil), bytelevel(nil)}}, "pretokenizers[0]"},
		{"pre_tokenizer.pretokenizers.0.pattern", object{"Regex": `\w+`}, `no scanner for "\\w+"`},
		{"pre_tokenizer.pretokenizers.0.pattern", object{"String": " "}, "pattern"},
		{"pre_tokenizer.pretokenizers.0.behavior", "Removed", `behavior: "Removed"`},
		{"pre_tokenizer.pretokenizers.0.invert", true, "invert"},
		{"pre_tokenizer.pretokenizers.1.use_regex", true, "use_regex"},
		{"post_processor", object{"type": "BertProcessing"}, `post_processor: type "BertProcessing"`},
		{"post_processor", template(token("<s>")), "no Sequence A"},
		{"post_processor", template(token("none"), sequence("A")), `"none" is not in special_tokens`},
		{"post_processor", template(token("bad"), sequence("A")), "id 999"},
		{"post_processor", template(sequence("A"), sequence("A")), "single[1]"},
		{"post_processor", template(sequence("B")), "single[0]"},
		{"post_processor", object{"type": "Sequence", "processors": []any{object{"type": "Sequence", "processors": []any{}}}}, "processors[0]"},
		{"decoder", nil, "decoder: missing"},
		{"decoder", object{"type": "WordPiece"}, `decoder: type "WordPiece"`},
		{"added_tokens", []any{object{"content": "x"}}, "added_tokens[0]: id: missing"},
		{"added_tokens", []any{object{"id": 300, "content": ""}}, "empty token"},
		{"added_tokens", []any{object{"id": 5, "content": "new"}}, "share id 5"},
		{"added_tokens", []any{object{"id": 300, "content": "ab"}}, `"ab" is 256`},
		{"added_tokens", []any{object{"id": -1, "content": "x y"}}, "id -1"},
		{"added_tokens", []any{object{"id": 300, "content": "x y"}, object{"id": 301, "content": "x y"}}, "added_tokens[1]: content"},
		{"added_tokens", []any{object{"id": 300, "content": "x y", "strip": true}}, `unknown field "strip"`},
		{"model", nil, "model: missing"},
		{"model.type", "Unigram", `model: type: "Unigram"`},
		{"model.extra", 1, `unknown field "extra"`},
		{"model.dropout", 0.1, "dropout"},
		{"model.byte_fallback", true, "byte_fallback"},
		{"model.continuing_subword_prefix", "##", "continuing_subword_prefix"},
		{"model.end_of_word_suffix", "</w>", "end_of_word_suffix"},
		{"model.vocab", nil, "vocab: missing"},
		{"model.vocab", object{"a": 0}, "vocab: no token"},
		{"model.vocab.new", 1.5, "vocab"},
		{"model.vocab.new", -1, "vocab"},
		{"model.vocab.new", "1", "vocab"},
		{"model.vocab.new", 3, "share id 3"},
		{"model.vocab.new", maxVocab, `"new": id 1048576`},
		{"model.vocab", object{strings.Repeat("x", maxTokenBytes+1): 1}, "longer than"},
		{"model.merges", nil, "merges: missing"},
		{"model.merges", []any{"a"}, "merge 0"},
		{"model.merges", []any{"a b", "a b c"}, "merge 1"},
		{"model.merges", []any{[]any{"a"}}, "merge 0"},
		{"model.merges", []any{[]any{"a", "b", "ab"}}, "merge 0"},
		{"model.merges", []any{[]any{"a", 1}}, "merge 0"},
		{"model.merges", []any{"b a"}, `merge 0: "ba" is not in vocab`},
		{"model.merges", object{}, "merges"},
	} {
		file := tiny()
		holder, key := at(file, c.path)
		if c.value == nil {
			delete(holder, key)
		} else {
			holder[key] = c.value
		}
		_, err := Load(encodeJSON(t, file), nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "tokenizer.json: ") {
			t.Errorf("%s = %v: error %v, want %q", c.path, c.value, err, c.want)
		}
	}
}

func TestLoadRefusesBrokenJSON(t *testing.T) {
	whole := string(encodeJSON(t, tiny()))
	for name, text := range map[string]string{
		"empty":        "",
		"null":         "null",
		"rest":         whole + "{}",
		"cut":          whole[:len(whole)/2],
		"twice":        `{"model":{},"model":{}}`,
		"token twice":  strings.Replace(whole, `"ab":256`, `"ab":256,"ab":300`, 1),
		"control":      strings.Replace(whole, `"ab":256`, "\"a\nb\":256", 1),
		"not UTF-8":    strings.Replace(whole, `"ab":256`, "\"a\xffb\":256", 1),
		"leading zero": strings.Replace(whole, `"ab":256`, `"ab":0256`, 1),
		"no comma":     strings.Replace(whole, `"ab":256,`, `"ab":256`, 1),
		"deep":         `{"model":` + strings.Repeat("[", 1<<20),
		"deep other":   `{"padding":` + strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20) + "}",
	} {
		start := time.Now()
		if _, err := Load([]byte(text), nil); err == nil {
			t.Errorf("%s: loaded", name)
		}
		if spent := time.Since(start); spent > 2*time.Second {
			t.Errorf("%s: took %v", name, spent)
		}
	}
}

func TestLoadAccepts(t *testing.T) {
	file := tiny()
	file["normalizer"] = object{"type": "Sequence", "normalizers": []any{object{"type": "NFC"}, object{"type": "NFC"}}}
	split := file["pre_tokenizer"].(object)["pretokenizers"].([]any)[0].(object)
	split["behavior"], split["invert"] = "Removed", true
	file["truncation"], file["padding"], file["post_processor"] = object{"max_length": 3}, nil, nil
	file["decoder"] = object{"type": "Sequence", "decoders": []any{object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}}}
	model := file["model"].(object)
	model["unk_token"], model["fuse_unk"], model["dropout"], model["end_of_word_suffix"] = "a", false, 0, ""
	model["merges"] = []any{"#version: 0.2", "a b", "ab c"}
	model["vocab"].(object)["after a hole"] = 400
	tok := mustLoad(t, encodeJSON(t, file))
	if got := fmt.Sprint(tok.Encode("abce\u0301", EncodeOptions{})); got != "[257 195 169]" {
		t.Errorf("ids %s", got)
	}
	if _, ok := tok.TokenID("\xff300"); ok || tok.VocabSize() != 401 || tok.TokenText(300) != "" {
		t.Errorf("a hole has a token; size %d", tok.VocabSize())
	}
}

func TestConfig(t *testing.T) {
	tok, err := Load(read(t, "demo-nemotron.json.zst"), []byte(`{"bos_token": null, "eos_token": {"content": "<|im_end|>", "lstrip": false},
		"pad_token": "<unk>", "chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}], "more": 1}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := tok.BOS(); ok {
		t.Error("null gives a BOS")
	}
	eos, _ := tok.EOS()
	pad, _ := tok.Pad()
	if tok.TokenText(eos) != "<|im_end|>" || tok.TokenText(pad) != "<unk>" || tok.ChatTemplate() != "y" {
		t.Errorf("eos %d, pad %d, template %q", eos, pad, tok.ChatTemplate())
	}
}

func TestConfigOfQwen3(t *testing.T) {
	tok, err := Load(read(t, "qwen3.json.zst"), read(t, "qwen3.config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if eos, ok := tok.EOS(); eos != 151645 || !ok {
		t.Errorf("eos %d %v", eos, ok)
	}
	if !strings.Contains(tok.ChatTemplate(), "<|im_start|>") || tok.VocabSize() != 151669 {
		t.Errorf("template %.40q, size %d", tok.ChatTemplate(), tok.VocabSize())
	}
	if think, _ := tok.TokenID("<think>"); think != 151667 || tok.IsSpecial(think) || !tok.IsAdded(think) {
		t.Errorf("<think> is %d", think)
	}
}

func TestConfigAddsTokens(t *testing.T) {
	config := []byte(`{"added_tokens_decoder": {"300": {"content": "<extra>", "special": true}, "258": {"content": "<s>", "special": true}}}`)
	tok, err := Load(encodeJSON(t, tiny()), config)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(tok.Encode("a<extra>", EncodeOptions{})); got != "[97 300]" || !tok.IsSpecial(300) {
		t.Errorf("ids %s", got)
	}
}

func TestConfigRefuses(t *testing.T) {
	for text, want := range map[string]string{
		`{"eos_token": "<none>"}`:                             `eos_token: "<none>" is not in the vocabulary`,
		`{"bos_token": 1}`:                                    "bos_token",
		`{"pad_token": {"text": "x"}}`:                        "pad_token",
		`{"chat_template": 1}`:                                "chat_template",
		`{"added_tokens_decoder": {"x": {"content": "y"}}}`:   `"x" is not an id`,
		`{"added_tokens_decoder": {"5": {"content": "new"}}}`: "share id 5",
		`[`: "tokenizer_config.json",
	} {
		if _, err := Load(encodeJSON(t, tiny()), []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}

func TestLoadFS(t *testing.T) {
	files := fstest.MapFS{"tokenizer.json": {Data: encodeJSON(t, tiny())}}
	if _, err := LoadFS(files); err != nil {
		t.Errorf("tokenizer.json alone: %v", err)
	}
	files["tokenizer_config.json"] = &fstest.MapFile{Data: []byte(`{"eos_token": "<s>", "chat_template": "old"}`)}
	files["chat_template.jinja"] = &fstest.MapFile{Data: []byte("new")}
	tok, err := LoadFS(files)
	if err != nil {
		t.Fatal(err)
	}
	if eos, _ := tok.EOS(); eos != 258 || tok.ChatTemplate() != "new" {
		t.Errorf("eos %d, template %q", eos, tok.ChatTemplate())
	}
	files["tokenizer_config.json"] = &fstest.MapFile{Data: make([]byte, maxConfigSize+1)}
	if _, err := LoadFS(files); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("huge config: %v", err)
	}
	if _, err := LoadFS(fstest.MapFS{}); err == nil || !strings.Contains(err.Error(), "tokenizer.json") {
		t.Errorf("no files: %v", err)
	}
}

func FuzzLoad(f *testing.F) {
	whole := encodeJSON(f, tiny())
	f.Add(whole, []byte(`{"eos_token": "<s>"}`))
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0},"merges":["a a"]}}`), []byte(nil))
	f.Add([]byte(`{"added_tokens":[{"id":1,"content":" ","lstrip":true,"normalized":true}]}`), []byte(`{"added_tokens_decoder":{"1":{"content":"x"}}}`))
	f.Fuzz(func(t *testing.T, file, config []byte) {
		for _, data := range [][]byte{file, graft(whole, file)} {
			tok, err := Load(data, config)
			if err != nil {
				continue
			}
			ids := tok.Encode("Hello é <s> 12  \n", EncodeOptions{AddSpecial: true})
			if got, want := streamed(tok, ids, true), tok.Decode(ids, true); got != want {
				t.Fatalf("streamed %q, decoded %q", got, want)
			}
		}
	})
}

// graft puts the fields of an object over those of a file that loads, so that the
// fuzzer gets past the vocabulary.
func graft(whole, over []byte) []byte {
	var file, fields map[string]json.RawMessage
	if json.Unmarshal(whole, &file) != nil || json.Unmarshal(over, &fields) != nil {
		return nil
	}
	maps.Copy(file, fields)
	data, err := json.Marshal(file)
	if err != nil {
		return nil
	}
	return data
}
