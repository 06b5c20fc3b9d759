package api

import (
	"strings"
	"testing"
)

// A bug of other servers: prose that talks about tags loses text at the first "<", or all that follows it. Tags that are
// special tokens and tags that are spelt stay where they are, however the tokens arrive.
func TestLiteralTagsInProseStreamUncut(t *testing.T) {
	const tools = `"tools":[{"type":"function","function":{"name":"get","parameters":{"type":"object","properties":{}}}}]`
	for _, c := range []struct{ name, says, fields string }{
		{"no tools offered", "Write <tool_call> to call, then </tool_call>. Done.", ""},
		{"tools offered", "One writes <tool_call> in front, like so. Then more prose.", "," + tools},
		{"end of thinking", "The tag </think> ends it, <think> begins it. That is all.", ""},
		{"spelt apart", "x < tool_call> and <tool_cal and < /think> and a<b, <, </, <t", ""},
		{"at the end", "It ends with <tool_", "," + tools},
	} {
		for _, chunk := range []int{1, 2, 3, 1000} {
			f := newFixture(t)
			f.says(c.says, chunk)
			body := `{"messages":[{"role":"user","content":"Hi"}],"max_tokens":200` + c.fields
			if got := at(t, run(t, f.Chat, body+"}"), "choices", 0, "message", "content"); got != c.says {
				t.Errorf("%s, %d tokens at a time: %q, want %q", c.name, chunk, got, c.says)
			}
			var streamed strings.Builder
			for _, event := range stream(t, f.Chat, body+`,"stream":true}`) {
				if choices, _ := event["choices"].([]any); len(choices) > 0 {
					text, _ := at(t, choices[0], "delta", "content").(string)
					streamed.WriteString(text)
				}
			}
			if streamed.String() != c.says {
				t.Errorf("%s, %d tokens at a time, streamed: %q, want %q", c.name, chunk, streamed.String(), c.says)
			}
		}
	}
}
