package api

import (
	"encoding/json"
	"maps"
	"slices"
)

// neutral lists parameters of the OpenAI and vLLM APIs whose meaning is not honoured, with the JSON values that ask for
// nothing. Any other value is refused: an ignored parameter would be a wrong answer. null is always neutral.
var neutral = map[string][]string{
	"audio":                         nil,
	"best_of":                       nil, // handled with n
	"cache_salt":                    nil,
	"chat_template":                 nil,
	"documents":                     {"[]"},
	"early_stopping":                {"false"},
	"function_call":                 {`"none"`, `"auto"`},
	"functions":                     {"[]"},
	"guided_choice":                 nil,
	"guided_decoding_backend":       nil,
	"guided_grammar":                nil,
	"guided_json":                   nil,
	"guided_regex":                  nil,
	"guided_whitespace_pattern":     nil,
	"kv_transfer_params":            nil,
	"length_penalty":                {"1", "1.0"},
	"logits_processors":             {"[]"},
	"media_io_kwargs":               {"{}"},
	"mm_processor_kwargs":           {"{}"},
	"modalities":                    {`["text"]`},
	"moderation":                    nil,
	"prediction":                    nil,
	"priority":                      {"0"},
	"prompt_embeds":                 nil,
	"repetition_detection":          nil,
	"service_tier":                  {`"auto"`, `"default"`},
	"spaces_between_special_tokens": {"true"},
	"store":                         {"false"},
	"structural_tag":                nil,
	"structured_outputs":            nil,
	"suffix":                        {`""`},
	"thinking_token_budget":         nil,
	"use_beam_search":               {"false"},
	"verbosity":                     {`"medium"`},
	"vllm_xargs":                    {"{}"},
	"web_search_options":            nil,
}

// refuseUnhonoured fails where a known parameter asks for something that no answer would have.
func (f *fields) refuseUnhonoured() {
	for _, name := range slices.Sorted(maps.Keys(neutral)) { // of several faults the same one is reported each time
		raw := f.raw(name)
		if raw == nil || name == "best_of" || slices.Contains(neutral[name], compact(raw)) {
			continue
		}
		f.fail(unsupported(f.prefix+name, "not supported by this server"))
	}
	f.checkBestOf()
	f.checkResponseFormat()
}

func (f *fields) checkBestOf() {
	if !f.has("best_of") {
		return
	}
	if best, n := f.integer("best_of", 1), f.count("n", 1, 1, maxN); best != n {
		f.fail(unsupported(f.prefix+"best_of", "only supported equal to n (%d), not %d", n, best))
	}
}

func (f *fields) checkResponseFormat() {
	format := f.object("response_format")
	if kind := format.text("type", "text"); kind != "text" {
		format.fail(unsupported(format.prefix+"type", "%.60q is not supported by this server, only \"text\" is", kind))
	}
	f.join(format)
}

// compact is a JSON value without white space outside of strings, if it is short.
func compact(raw json.RawMessage) string {
	var v any
	if len(raw) > 64 || json.Unmarshal(raw, &v) != nil {
		return string(raw)
	}
	out, err := json.Marshal(v)
	if err != nil {
		return string(raw)
	}
	return string(out)
}
