package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"reprise/engine"
)

func TestCompletion(t *testing.T) {
	f := newFixture(t)
	for _, chunk := range []int{1, 3, 100} {
		f.says("Once upon a time", chunk)
		out := run(t, f.Completion, `{"prompt":"The","max_tokens":50,"return_token_ids":true}`)
		n := float64(len(f.engine.tokens))
		equal(t, at(t, out, "choices", 0, "text"), "Once upon a time")
		equal(t, at(t, out, "choices", 0, "finish_reason"), "stop")
		equal(t, at(t, out, "choices", 0, "stop_reason"), nil)
		equal(t, at(t, out, "choices", 0, "token_ids"), f.engine.tokens)
		equal(t, at(t, out, "choices", 0, "prompt_token_ids"), f.encode("The"))
		equal(t, at(t, out, "usage", "completion_tokens"), n)
		equal(t, at(t, out, "object"), "text_completion")
		equal(t, at(t, out, "model"), "m")
	}
	if f.engine.live.Load() != 0 || len(f.outcomes) != 3 || f.outcomes[0].Reason != "stop" {
		t.Errorf("%d sequences live, outcomes %+v", f.engine.live.Load(), f.outcomes)
	}
}

func TestStreamEqualsAnswer(t *testing.T) {
	f := newFixture(t)
	for _, text := range []string{"Once upon a time", "né 漢字 🙂 end", "a STOP b"} {
		for chunk := 1; chunk < 5; chunk++ {
			f.says(text, chunk)
			body := `{"prompt":"The","max_tokens":50,"echo":true,"n":3,"stop":["STOP"],"logprobs":1`
			whole := run(t, f.Completion, body+`}`)
			texts, tokens, ends := make([]string, 3), make([]int, 3), 0
			for _, c := range stream(t, f.Completion, body+`,"stream":true}`) {
				i := int(at(t, c, "choices", 0, "index").(float64))
				texts[i] += at(t, c, "choices", 0, "text").(string)
				if l, ok := at(t, c, "choices", 0, "logprobs").(map[string]any); ok {
					tokens[i] += len(l["tokens"].([]any))
				}
				if at(t, c, "choices", 0, "finish_reason") != nil {
					ends++
				}
			}
			for i := range texts {
				equal(t, texts[i], at(t, whole, "choices", i, "text"))
				equal(t, tokens[i], len(at(t, whole, "choices", i, "logprobs", "tokens").([]any)))
			}
			if ends != 3 {
				t.Errorf("%d ends, want 3", ends)
			}
		}
	}
}

func TestStopStringCutsTextAndTokens(t *testing.T) {
	f := newFixture(t)
	f.says("one two three four", 100)
	want := len(f.encode("one two three"))
	out := run(t, f.Completion, `{"prompt":"The","max_tokens":50,"stop":" three"}`)
	equal(t, at(t, out, "choices", 0, "text"), "one two")
	equal(t, at(t, out, "choices", 0, "finish_reason"), "stop")
	equal(t, at(t, out, "choices", 0, "stop_reason"), " three")
	equal(t, at(t, out, "usage", "completion_tokens"), want)
	out = run(t, f.Completion, `{"prompt":"The","max_tokens":50,"stop":[" three"],"include_stop_str_in_output":true}`)
	equal(t, at(t, out, "choices", 0, "text"), "one two three")
	out = run(t, f.Completion, `{"prompt":"The","max_tokens":50,"stop":["two"],"min_tokens":40}`)
	equal(t, at(t, out, "choices", 0, "text"), "one two three four")
	if f.engine.live.Load() != 0 {
		t.Errorf("%d sequences were not cancelled", f.engine.live.Load())
	}
}

func TestStopTokenIsNoText(t *testing.T) {
	f := newFixture(t)
	ids := f.encode("one two")
	f.engine.tokens, f.engine.reason = ids, engine.Stop
	body := fmt.Sprintf(`{"prompt":"The","stop_token_ids":[%d]`, ids[len(ids)-1])
	out := run(t, f.Completion, body+`}`)
	equal(t, at(t, out, "choices", 0, "text"), "one")
	equal(t, at(t, out, "choices", 0, "stop_reason"), ids[len(ids)-1])
	out = run(t, f.Completion, body+`,"include_stop_str_in_output":true}`)
	equal(t, at(t, out, "choices", 0, "text"), "one two")
}

func TestRequestReachesEngine(t *testing.T) {
	f := newFixture(t)
	f.says("x", 1)
	run(t, f.Completion, `{"prompt":[[1,2],[3]],"n":2,"seed":-1,"temperature":0.5,"top_p":0.9,"top_k":-1,"min_p":0.1,"max_tokens":7,
		"min_tokens":2,"repetition_penalty":1.1,"presence_penalty":1,"frequency_penalty":-1,"logit_bias":{"5":-100,"6":1.5},
		"allowed_token_ids":[1,2],"stop_token_ids":[9],"ignore_eos":true,"logprobs":3,"model":"alias","unknown_extra":1}`)
	if len(f.engine.asked) != 4 {
		t.Fatalf("%d requests", len(f.engine.asked))
	}
	r := f.engine.asked[1]
	equal(t, r.Prompt, []int32{1, 2})
	equal(t, []any{r.MaxTokens, r.MinTokens, r.IgnoreEOS, r.LogProbs, r.PromptLogProbs, r.StopIDs}, []any{7, 2, true, 3, -1, []int32{9}})
	s := r.Sampling
	equal(t, []any{s.Temperature, s.TopP, s.TopK, s.MinP, s.Repetition, s.Presence, s.Frequency}, []any{0.5, 0.9, 0, 0.1, 1.1, 1, -1})
	if s.Bias[5] != -100 || s.Bias[6] != 1.5 || s.Seed != 0 || f.engine.asked[0].Sampling.Seed != ^uint64(0) {
		t.Errorf("bias %v, seed %d", s.Bias, s.Seed)
	}
}

func TestSeedsDiffer(t *testing.T) {
	f := newFixture(t)
	f.says("x", 1)
	for range 2 {
		run(t, f.Completion, `{"prompt":["a","b"],"n":2}`)
	}
	seen := map[uint64]bool{}
	for _, r := range f.engine.asked {
		seen[r.Sampling.Seed] = true
	}
	if len(seen) != 8 {
		t.Errorf("%d different seeds of 8", len(seen))
	}
}

func TestTruncation(t *testing.T) {
	f := newFixture(t)
	f.says("x", 1)
	run(t, f.Completion, `{"prompt":[1,2,3,4],"truncate_prompt_tokens":2}`)
	equal(t, f.engine.asked[0].Prompt, []int32{3, 4})
	run(t, f.Completion, `{"prompt":[`+strings.Repeat("1,", 5000)+`2],"truncate_prompt_tokens":-1,"max_tokens":100}`)
	if n := len(f.engine.asked[1].Prompt); n != 900 {
		t.Errorf("%d tokens, want 900", n)
	}
}

const messages = `"messages":[{"role":"user","content":"hi"}]`

func TestChat(t *testing.T) {
	f := newFixture(t)
	f.says("A story.", 2)
	out := run(t, f.Chat, `{`+messages+`,"logprobs":true,"return_token_ids":true}`)
	equal(t, at(t, out, "choices", 0, "message", "content"), "A story.")
	equal(t, at(t, out, "choices", 0, "message", "role"), "assistant")
	equal(t, at(t, out, "choices", 0, "finish_reason"), "stop")
	equal(t, len(at(t, out, "choices", 0, "logprobs", "content").([]any)), len(f.engine.tokens))
	equal(t, at(t, out, "prompt_token_ids"), f.engine.asked[0].Prompt)
	if r := f.engine.asked[0]; r.MaxTokens != 1000-len(r.Prompt) {
		t.Errorf("max_tokens %d with a prompt of %d", r.MaxTokens, len(r.Prompt))
	}
}

func TestChatReasoningAndTools(t *testing.T) {
	f := newFixture(t)
	const call = "\n\n<tool_call>\n<function=get>\n<parameter=what>\nrain\n</parameter>\n</function>\n</tool_call>"
	f.says("I wonder.\n</think>\n\nLooking."+call+call, 3)
	body := `{` + messages + `,"chat_template_kwargs":{"enable_thinking":true},"tools":[{"type":"function","function":{"name":"get","parameters":{}}}]`
	out := run(t, f.Chat, body+`}`)
	m := at(t, out, "choices", 0, "message")
	equal(t, at(t, m, "reasoning_content"), "I wonder.")
	equal(t, at(t, m, "reasoning"), "I wonder.")
	equal(t, at(t, m, "content"), "Looking.")
	equal(t, len(at(t, m, "tool_calls").([]any)), 2)
	equal(t, at(t, m, "tool_calls", 0, "function", "name"), "get")
	equal(t, at(t, out, "choices", 0, "finish_reason"), "tool_calls")

	var reasoning, content string
	calls, chunks := 0, stream(t, f.Chat, body+`,"parallel_tool_calls":false,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`)
	equal(t, at(t, chunks[0], "choices", 0, "delta"), map[string]any{"role": "assistant", "content": ""})
	for _, c := range chunks[:len(chunks)-1] {
		d := at(t, c, "choices", 0, "delta").(map[string]any)
		if s, ok := d["reasoning_content"].(string); ok {
			reasoning += s
		}
		if s, ok := d["content"].(string); ok {
			content += s
		}
		if l, ok := d["tool_calls"].([]any); ok {
			calls += len(l)
		}
		if at(t, c, "usage") == nil {
			t.Error("a chunk without usage")
		}
	}
	equal(t, []any{reasoning, content, calls}, []any{"I wonder.", "Looking.", 1})
	equal(t, at(t, chunks[len(chunks)-1], "usage", "completion_tokens"), len(f.engine.tokens))
	equal(t, at(t, chunks[len(chunks)-2], "choices", 0, "finish_reason"), "tool_calls")

	f.says("x"+call, 1) // no tools are offered: text
	out = run(t, f.Chat, `{`+messages+`}`)
	equal(t, at(t, out, "choices", 0, "message", "content"), "x"+call)
}

func TestContinueFinalMessage(t *testing.T) {
	f := newFixture(t)
	f.says("x", 1)
	run(t, f.Chat, `{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"Once upon "}],"continue_final_message":true,"add_generation_prompt":false}`)
	if text := f.Tokenizer().Decode(f.engine.asked[0].Prompt, false); !strings.HasSuffix(text, "Once upon") {
		t.Errorf("the prompt is %q", text)
	}
}

func TestFailuresReleaseEverything(t *testing.T) {
	f := newFixture(t)
	f.says("one two three four five", 1)
	gone := errors.New("client gone")
	call, err := f.Completion([]byte(`{"prompt":"x","n":4,"stream":true,"max_tokens":100}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := call.Stream(context.Background(), func(any) error { return gone }); err == nil {
		t.Error("an error of send was lost")
	}
	if f.engine.live.Load() != 0 || len(f.outcomes) != 4 {
		t.Errorf("%d sequences live, %d outcomes", f.engine.live.Load(), len(f.outcomes))
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	call, _ = f.Completion([]byte(`{"prompt":"x"}`))
	if _, err := call.Answer(ctx); AsError(err).Status != StatusClientGone {
		t.Errorf("got %v", err)
	}
	f.engine.err = engine.ErrQueueFull
	call, _ = f.Completion([]byte(`{"prompt":"x"}`))
	if _, err := call.Answer(context.Background()); AsError(err).Status != 429 {
		t.Errorf("got %v", err)
	}
}

func TestPanicInAChoiceIsAnError(t *testing.T) {
	f := newFixture(t)
	f.says("one two", 1)
	call, err := f.Completion([]byte(`{"prompt":"x","n":2,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := call.Stream(context.Background(), func(any) error { panic("broken") }); AsError(err).Status != 500 || strings.Contains(AsError(err).Message, "broken") {
		t.Errorf("got %v", err)
	}
}

func TestWithoutTokenizer(t *testing.T) {
	e := &fakeEngine{vocab: 100, tokens: []int32{5, 6}, reason: engine.Length}
	a := New(Config{Engine: e, Models: []string{"m"}, Defaults: newFixture(t).config.Defaults})
	out := run(t, a.Completion, `{"prompt":[1,2],"max_tokens":2,"logprobs":0}`)
	equal(t, at(t, out, "choices", 0, "token_ids"), []int{5, 6})
	equal(t, at(t, out, "choices", 0, "logprobs", "tokens"), []string{"token_id:5", "token_id:6"})
	for _, body := range []string{`{"prompt":"x"}`, `{"prompt":[1],"stop":"x"}`, `{"prompt":[1],"bad_words":["x"]}`} {
		if _, err := a.Completion([]byte(body)); err == nil || AsError(err).Code != "no_tokenizer" {
			t.Errorf("%s: %v", body, err)
		}
	}
	if _, err := a.Chat([]byte(`{` + messages + `}`)); err == nil || AsError(err).Code != "no_tokenizer" {
		t.Errorf("chat: %v", err)
	}
}

func FuzzRequests(f *testing.F) {
	for _, seed := range []string{
		`{"prompt":"x","n":2,"stop":["a"],"logit_bias":{"1":2}}`, `{"prompt":[[1],[2]],"echo":true,"logprobs":2,"max_tokens":0}`,
		`{` + messages + `,"tools":[],"stream":true}`, `{"prompt":1e999}`, `{"prompt":["a",1]}`, "{\"prompt\":\"\\ud800\xff\"}", `[`,
	} {
		f.Add([]byte(seed))
	}
	fix := newFixture(f)
	fix.says("one <think> two </think>", 2)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, understand := range []func([]byte) (Call, error){fix.Completion, fix.Chat} {
			call, err := understand(body)
			if err == nil {
				_, err = call.Answer(context.Background())
			}
			if err != nil && AsError(err).Status != 400 && AsError(err).Status != 404 {
				t.Errorf("%q: %v", body, err)
			}
		}
		fix.engine.asked = nil
		if _, err := fix.Tokenize(body); err != nil && AsError(err).Status >= 500 {
			t.Errorf("%q: %v", body, err)
		}
		if fix.engine.live.Load() != 0 {
			t.Fatalf("%q left %d sequences behind", body, fix.engine.live.Load())
		}
	})
}
