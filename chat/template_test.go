package chat

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"reprise/chat/jinja"
)

// published returns the chat templates of chat/jinja's testdata.
func published(t testing.TB) map[string]*Template {
	t.Helper()
	packed, err := os.ReadFile("jinja/testdata/templates.json.zst")
	if err != nil {
		t.Fatal(err)
	}
	dec, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dec.Close()
	data, err := dec.DecodeAll(packed, nil)
	if err != nil {
		t.Fatal(err)
	}
	var sources map[string]string
	if err := json.Unmarshal(data, &sources); err != nil {
		t.Fatal(err)
	}
	out := map[string]*Template{}
	for name, source := range sources {
		if out[name], err = NewTemplate(source); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

const (
	qwen35   = "qwen3.5.vllm-fixture.jinja"
	nemotron = "nemotron-3-nano.nvidia-data-prep.jinja"
	qwen3    = "qwen3.vllm-fixture.jinja"
)

func messages(t testing.TB, raw string) Messages {
	t.Helper()
	m, err := ParseMessages([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestRender(t *testing.T) {
	templates := published(t)
	const call = `[{"role":"user","content":"q"},{"role":"assistant","content":null,"reasoning":"why","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"b\": 1, \"a\": [true]}"}}]},{"role":"tool","content":"r"}]`
	for _, c := range []struct{ name, template, messages, kwargs, want string }{
		{"user", qwen35, `[{"role":"user","content":"Hi"}]`, "", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"},
		{"spread kwargs", qwen35, `[{"role":"user","content":"Hi"}]`, `{"enable_thinking":true}`, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"},
		{"kwargs variable", nemotron, `[{"role":"user","content":"Hi"}]`, `{"enable_thinking":false}`, "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think></think>"},
		{"thinking by default", nemotron, `[{"role":"user","content":"Hi"}]`, `null`, "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"},
		{"developer is system", qwen35, `[{"role":"developer","content":"S"},{"role":"user","content":"Hi"}]`, "", "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"},
		{"parts as a list", qwen35, `[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`, "", "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"},
		{"parts joined", nemotron, `[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`, "", "<|im_start|>system\n<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n<think>\n"},
		{"parts joined for strings only", qwen3, `[{"role":"user","content":[{"type":"text","text":"a"}]}]`, "", "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"},
		{"arguments parsed, reasoning kept", qwen35, call, "", "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\nwhy\n</think>\n\n<tool_call>\n<function=f>\n<parameter=b>\n1\n</parameter>\n<parameter=a>\n[true]\n</parameter>\n</function>\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nr\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"},
		{"arguments in hermes form", qwen3, call, "", "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\nwhy\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": [true]}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nr\n</tool_response><|im_end|>\n<|im_start|>assistant\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			kwargs, err := ParseKwargs([]byte(c.kwargs))
			if err != nil {
				t.Fatal(err)
			}
			got, err := templates[c.template].Render(RenderArgs{Messages: messages(t, c.messages), AddGenerationPrompt: true, Kwargs: kwargs, EOS: "<|im_end|>"})
			if err != nil || got != c.want {
				t.Errorf("got  %q (%v)\nwant %q", got, err, c.want)
			}
		})
	}
}

// TestRenderTools wants a call that the template shows to come back from the
// parser as it was.
func TestRenderTools(t *testing.T) {
	const args = `{"s": "two\nlines", "i": 5, "o": {"z": 1, "a": [null]}}`
	raw, err := json.Marshal([]any{
		map[string]any{"role": "user", "content": "q"},
		map[string]any{"role": "assistant", "content": "c", "tool_calls": []any{map[string]any{"function": map[string]any{"name": "get", "arguments": args}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, template := range published(t) {
		if name == "qwen3.5-4b.modelopt-train.jinja" { // drops tool calls
			continue
		}
		prompt, err := template.Render(RenderArgs{Messages: messages(t, string(raw)), Tools: testTools(t)})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_, turn, _ := strings.Cut(prompt, "<|im_start|>assistant\n")
		turn, _, _ = strings.Cut(turn, "<|im_end|>")
		p := parserFor(t, plain, true, textMarkers)
		got := flat(append(p.Push(NoToken, turn), p.Finish()...))
		got = got[strings.Index(got, "C{"):]
		if want := "C{c}T{0 id1 get " + args + "}"; strings.TrimPrefix(got, "C{<think></think>") != strings.TrimPrefix(want, "C{") && got != want {
			t.Errorf("%s: %q became %q", name, turn, got)
		}
	}
}

// TestRenderLarge wants long conversations and long messages within the
// template limits: four megabytes are about a million tokens.
func TestRenderLarge(t *testing.T) {
	if testing.Short() {
		t.Skip("renders 120 MB")
	}
	const total = 4 << 20
	for _, turns := range []int{1, 400, 8000} {
		text := strings.Repeat("Some words. ", total/turns/12)
		var parts []string
		for i := range turns {
			role := "user"
			if i%2 == 1 {
				role = "assistant"
			}
			parts = append(parts, role, text)
		}
		for name, template := range published(t) {
			out, err := template.Render(RenderArgs{Messages: NewMessages(parts...), AddGenerationPrompt: true})
			if err != nil || len(out) < total*9/10 {
				t.Errorf("%s, %d turns: %d bytes, %v", name, turns, len(out), err)
			}
		}
	}
}

func TestRenderErrors(t *testing.T) {
	template := published(t)[qwen35]
	var failed *TemplateError
	_, err := template.Render(RenderArgs{Messages: messages(t, `[{"role":"user","content":"a"},{"role":"system","content":"b"}]`)})
	if !errors.As(err, &failed) || !failed.Raised || failed.Message != "System message must be at the beginning." {
		t.Errorf("a raise gave %v", err)
	}
	_, err = template.Render(RenderArgs{Messages: messages(t, `[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"not json"}}]}]`)})
	if !errors.As(err, &failed) || failed.Raised || failed.Message == "" {
		t.Errorf("a failure gave %v", err)
	}
	if _, err = template.Render(RenderArgs{}); !errors.As(err, &failed) {
		t.Errorf("no messages gave %v", err)
	}
	if _, err := NewTemplate("{% if %}"); err == nil {
		t.Error("a broken template compiled")
	}
}

func TestTakesParts(t *testing.T) {
	for name, template := range published(t) {
		if want := strings.HasPrefix(name, "qwen3.5.") || strings.HasPrefix(name, "qwen3.5-35b") || strings.HasPrefix(name, "qwen3.8"); template.parts != want {
			t.Errorf("%s takes parts: %v", name, template.parts)
		}
	}
}

func TestParseMessagesErrors(t *testing.T) {
	for raw, field := range map[string]string{
		``: "messages", `null`: "messages", `{}`: "messages", `[]`: "messages", `[1]`: "messages[0]", `[`: "messages",
		`[{"content":"x"}]`:          "messages[0].role",
		`[{"role":1,"content":"x"}]`: "messages[0].role",
		`[{"role":"user","content":"x"},{"role":"bot","content":"x"}]`: "messages[1].role",
		`[{"role":"user"}]`:                                                                       "messages[0].content",
		`[{"role":"user","content":null}]`:                                                        "messages[0].content",
		`[{"role":"tool","content":null}]`:                                                        "messages[0].content",
		`[{"role":"user","content":5}]`:                                                           "messages[0].content",
		`[{"role":"user","content":[]}]`:                                                          "messages[0].content",
		`[{"role":"user","content":["x"]}]`:                                                       "messages[0].content[0]",
		`[{"role":"user","content":[{"text":"x"}]}]`:                                              "messages[0].content[0].type",
		`[{"role":"user","content":[{"type":"text"}]}]`:                                           "messages[0].content[0].text",
		`[{"role":"user","content":[{"type":"blob"}]}]`:                                           "messages[0].content[0].type",
		`[{"role":"assistant","content":"x","reasoning":5}]`:                                      "messages[0].reasoning",
		`[{"role":"assistant","tool_calls":{}}]`:                                                  "messages[0].tool_calls",
		`[{"role":"user","content":"x","tool_calls":[{}]}]`:                                       "messages[0].tool_calls",
		`[{"role":"assistant","tool_calls":[5]}]`:                                                 "messages[0].tool_calls[0]",
		`[{"role":"assistant","tool_calls":[{}]}]`:                                                "messages[0].tool_calls[0].function",
		`[{"role":"assistant","tool_calls":[{"function":{"name":""}}]}]`:                          "messages[0].tool_calls[0].function.name",
		`[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":5}}]}]`:           "messages[0].tool_calls[0].function.arguments",
		`[{"role":"user","content":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}]`: "messages",
	} {
		_, err := ParseMessages([]byte(raw))
		var fault *FieldError
		if !errors.As(err, &fault) || fault.Field != field || fault.Unsupported {
			t.Errorf("%.80s: %v, want a fault at %s", raw, err, field)
		}
	}
	for _, kind := range []string{"image_url", "input_image", "input_audio", "video_url", "file"} {
		_, err := ParseMessages([]byte(`[{"role":"user","content":"x"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"` + kind + `"}]}]`))
		var fault *FieldError
		if !errors.As(err, &fault) || fault.Field != "messages[1].content[1]" || !fault.Unsupported || !strings.Contains(fault.Message, kind) {
			t.Errorf("%s gave %v", kind, err)
		}
	}
}

func TestParseTools(t *testing.T) {
	for raw, field := range map[string]string{
		`{}`: "tools", `[`: "tools", `[1]`: "tools[0]", `[{}]`: "tools[0].type", `[{"type":"function"}]`: "tools[0].function",
		`[{"type":"function","function":{}}]`:                                                       "tools[0].function.name",
		`[{"type":"function","function":{"name":"f","parameters":5}}]`:                              "tools[0].function.parameters",
		`[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}]`: "tools[1].function.name",
	} {
		_, err := ParseTools([]byte(raw))
		var fault *FieldError
		if !errors.As(err, &fault) || fault.Field != field {
			t.Errorf("%s: %v, want a fault at %s", raw, err, field)
		}
	}
	for _, raw := range []string{``, `null`, `[]`} {
		if tools, err := ParseTools([]byte(raw)); err != nil || tools.Len() != 0 || tools.value() != (jinja.None{}) {
			t.Errorf("%q: %v %v", raw, tools, err)
		}
	}
	if tools := testTools(t); tools.Len() != 2 || !tools.Has("get") || tools.Has("put") {
		t.Errorf("%v", tools)
	}
}

func TestParseKwargs(t *testing.T) {
	for raw, field := range map[string]string{`5`: "chat_template_kwargs", `{"messages":[]}`: "chat_template_kwargs.messages", `{`: "chat_template_kwargs"} {
		_, err := ParseKwargs([]byte(raw))
		var fault *FieldError
		if !errors.As(err, &fault) || fault.Field != field {
			t.Errorf("%s: %v, want a fault at %s", raw, err, field)
		}
	}
	k, err := ParseKwargs([]byte(`{"a":1}`))
	if err != nil {
		t.Fatal(err)
	}
	both := k.With("a", jinja.Int(2)).With("b", jinja.Int(3))
	if s, err := jinja.EncodeJSON(both.dict); err != nil || s != `{"a": 1, "b": 3}` || k.dict.Len() != 1 {
		t.Errorf("%s %v", s, err)
	}
}

// FuzzParseMessages wants no panic, and what is accepted to render or fail
// with a TemplateError.
func FuzzParseMessages(f *testing.F) {
	f.Add([]byte(`[{"role":"user","content":[{"type":"text","text":"x"}]},{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}]`))
	templates := published(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := ParseMessages(raw)
		var fault *FieldError
		if err != nil {
			if !errors.As(err, &fault) {
				t.Errorf("%v is no FieldError", err)
			}
			return
		}
		for name, template := range templates {
			_, err := template.Render(RenderArgs{Messages: m, Tools: testTools(t), AddGenerationPrompt: true})
			var failed *TemplateError
			if err != nil && !errors.As(err, &failed) {
				t.Errorf("%s: %v is no TemplateError", name, err)
			}
		}
	})
}

func BenchmarkParser(b *testing.B) {
	output := strings.Repeat("Some reasoning about the matter, a < b.\n", 50) + "</think>\n\n" + strings.Repeat("An answer. ", 200) + getCall
	for b.Loop() {
		p := parserFor(b, thinking, true, textMarkers)
		for i := 0; i < len(output); i += 4 {
			p.Push(NoToken, output[i:min(i+4, len(output))])
		}
		p.Finish()
	}
	b.SetBytes(int64(len(output)))
}
