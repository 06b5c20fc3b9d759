package server

import (
	"strings"
	"testing"

	"reprise/engine"
)

const (
	completions = "/v1/completions"
	chats       = "/v1/chat/completions"
	user        = `"messages":[{"role":"user","content":"hi"}]`
)

// long is what no refusal may repeat as a whole.
var long = strings.Repeat("é", 5000)

// badRequests each get their status and an error that names the field.
var badRequests = []struct {
	path, body string
	status     int
	param      string
	words      string // in the message
}{
	{completions, ``, 400, "", "JSON"},
	{completions, `{"prompt":`, 400, "", "JSON"},
	{completions, `[1]`, 400, "", "an array"},
	{completions, `null`, 400, "", "null"},
	{completions, `{}`, 400, "prompt", "required"},
	{completions, `{"prompt":null}`, 400, "prompt", "required"},
	{completions, `{"prompt":5}`, 400, "prompt", "a number"},
	{completions, `{"prompt":{}}`, 400, "prompt", "an object"},
	{completions, `{"prompt":""}`, 400, "prompt", "at least one token"},
	{completions, `{"prompt":[]}`, 400, "prompt", "empty"},
	{completions, `{"prompt":[[]]}`, 400, "prompt[0]", "at least one token"},
	{completions, `{"prompt":["a",1]}`, 400, "prompt[1]", "a number"},
	{completions, `{"prompt":[1,"a"]}`, 400, "prompt[1]", "a string"},
	{completions, `{"prompt":[1.5]}`, 400, "prompt[0]", "1.5"},
	{completions, `{"prompt":[-1]}`, 400, "prompt[0]", "-1"},
	{completions, `{"prompt":[4096]}`, 400, "prompt[0]", "4096"},
	{completions, `{"prompt":[2147483648]}`, 400, "prompt[0]", "2147483648"},
	{completions, `{"prompt":"x","model":"nope"}`, 404, "model", "nope"},
	{completions, `{"prompt":"x","model":5}`, 400, "model", "a string, not a number"},
	{completions, `{"prompt":"x","max_tokens":-1}`, 400, "max_tokens", "negative"},
	{completions, `{"prompt":"x","max_tokens":"5"}`, 400, "max_tokens", "an integer, not a string"},
	{completions, `{"prompt":"x","max_tokens":1.5}`, 400, "max_tokens", "1.5"},
	{completions, `{"prompt":"x","max_tokens":2147483648}`, 400, "max_tokens", "2147483648"},
	{completions, `{"prompt":"x","max_tokens":1e30}`, 400, "max_tokens", "1e30"},
	{completions, `{"prompt":"x","max_tokens":0}`, 400, "max_tokens", "echo"},
	{completions, `{"prompt":"x","min_tokens":20}`, 400, "min_tokens", "20"},
	{completions, `{"prompt":"x","min_tokens":-2}`, 400, "min_tokens", "-2"},
	{completions, `{"prompt":"x","temperature":-0.1}`, 400, "temperature", "-0.1"},
	{completions, `{"prompt":"x","temperature":2.1}`, 400, "temperature", "2.1"},
	{completions, `{"prompt":"x","temperature":1e400}`, 400, "temperature", "1e400"},
	{completions, `{"prompt":"x","temperature":NaN}`, 400, "", "JSON"},
	{completions, `{"prompt":"x","temperature":true}`, 400, "temperature", "a number, not a boolean"},
	{completions, `{"prompt":"x","top_p":0}`, 400, "top_p", "0"},
	{completions, `{"prompt":"x","top_p":1.01}`, 400, "top_p", "1.01"},
	{completions, `{"prompt":"x","top_k":-2}`, 400, "top_k", "-2"},
	{completions, `{"prompt":"x","min_p":1.5}`, 400, "min_p", "1.5"},
	{completions, `{"prompt":"x","repetition_penalty":0}`, 400, "repetition_penalty", "0"},
	{completions, `{"prompt":"x","presence_penalty":3}`, 400, "presence_penalty", "3"},
	{completions, `{"prompt":"x","frequency_penalty":-3}`, 400, "frequency_penalty", "-3"},
	{completions, `{"prompt":"x","logit_bias":[1]}`, 400, "logit_bias", "an object, not an array"},
	{completions, `{"prompt":"x","logit_bias":{"a":1}}`, 400, "logit_bias", "token id"},
	{completions, `{"prompt":"x","logit_bias":{"5":101}}`, 400, "logit_bias", "101"},
	{completions, `{"prompt":"x","logit_bias":{"99999":1}}`, 400, "logit_bias", "99999"},
	{completions, `{"prompt":"x","allowed_token_ids":[]}`, 400, "allowed_token_ids", "empty"},
	{completions, `{"prompt":"x","allowed_token_ids":[5000]}`, 400, "allowed_token_ids", "5000"},
	{completions, `{"prompt":"x","bad_words":["several words in one"]}`, 400, "bad_words[0]", "one token"},
	{completions, `{"prompt":"x","n":0}`, 400, "n", "0"},
	{completions, `{"prompt":"x","n":-1}`, 400, "n", "-1"},
	{completions, `{"prompt":"x","n":100000}`, 400, "n", "100000"},
	{completions, `{"prompt":"x","n":1099511627776}`, 400, "n", "n: 1099511627776 is outside of [1, 128]"},
	{completions, `{"prompt":"x","n":1099511627776,"best_of":2}`, 400, "n", "n: 1099511627776 is outside of [1, 128]"},
	{completions, `{"prompt":"x","best_of":3}`, 400, "best_of", "n"},
	{completions, `{"prompt":"x","suffix":"y"}`, 400, "suffix", "not supported"},
	{completions, `{"prompt":"x","stop":5}`, 400, "stop", "a number"},
	{completions, `{"prompt":"x","stop":[5]}`, 400, "stop[0]", "a number"},
	{completions, `{"prompt":"x","stop":""}`, 400, "stop[0]", "bytes"},
	{completions, `{"prompt":"x","stop":[` + strings.Repeat(`"a",`, 64) + `"a"]}`, 400, "stop", "65"},
	{completions, `{"prompt":"x","stop":["` + strings.Repeat("a", 1025) + `"]}`, 400, "stop[0]", "1025"},
	{completions, `{"prompt":"x","stop_token_ids":[-1]}`, 400, "stop_token_ids[0]", "-1"},
	{completions, `{"prompt":"x","stop_token_ids":[4096]}`, 400, "stop_token_ids", "4096"},
	{completions, `{"prompt":"x","logprobs":-1}`, 400, "logprobs", "-1"},
	{completions, `{"prompt":"x","logprobs":21}`, 400, "logprobs", "21"},
	{completions, `{"prompt":"x","logprobs":true}`, 400, "logprobs", "an integer, not a boolean"},
	{completions, `{"prompt":"x","prompt_logprobs":21}`, 400, "prompt_logprobs", "21"},
	{completions, `{"prompt":"x","prompt_logprobs":1,"stream":true}`, 400, "prompt_logprobs", "stream"},
	{completions, `{"prompt":"x","seed":"a"}`, 400, "seed", "a string"},
	{completions, `{"prompt":"x","seed":1e30}`, 400, "seed", "1e30"},
	{completions, `{"prompt":"x","stream":"yes"}`, 400, "stream", "a boolean, not a string"},
	{completions, `{"prompt":"x","stream_options":{"include_usage":true}}`, 400, "stream_options", "stream"},
	{completions, `{"prompt":"x","stream":true,"stream_options":{"include_usage":1}}`, 400, "stream_options.include_usage", "a boolean, not a number"},
	{completions, `{"prompt":"x","stream":true,"stream_options":5}`, 400, "stream_options", "an object, not a number"},
	{completions, `{"prompt":"x","echo":1}`, 400, "echo", "a boolean, not a number"},
	{completions, `{"prompt":"x","truncate_prompt_tokens":0}`, 400, "truncate_prompt_tokens", "0"},
	{completions, `{"prompt":"x","response_format":{"type":"json_object"}}`, 400, "response_format.type", "json_object"},
	{completions, `{"prompt":"x","guided_json":{}}`, 400, "guided_json", "not supported"},
	{completions, `{"prompt":"x","structured_outputs":{"regex":"a"}}`, 400, "structured_outputs", "not supported"},
	{completions, `{"prompt":"x","use_beam_search":true}`, 400, "use_beam_search", "not supported"},
	{completions, `{"prompt":"` + strings.Repeat("long text ", 5000) + `"}`, 400, "prompt", "2048"},
	{completions, `{"prompt":[` + strings.Repeat("5,", 2047) + `5]}`, 400, "prompt", "2048"},
	{completions, strings.Repeat("[", 100000), 400, "", "JSON"},
	{completions, `{"prompt":"x","extra":` + strings.Repeat(`{"a":`, 20000) + `1` + strings.Repeat(`}`, 20001), 400, "", "JSON"},
	{chats, `{}`, 400, "messages", "required"},
	{chats, `{"messages":[]}`, 400, "messages", "non-empty"},
	{chats, `{"messages":"hi"}`, 400, "messages", "array"},
	{chats, `{"messages":["hi"]}`, 400, "messages[0]", "object"},
	{chats, `{"messages":[{"role":"robot","content":"hi"}]}`, 400, "messages[0].role", "robot"},
	{chats, `{"messages":[{"content":"hi"}]}`, 400, "messages[0].role", "string"},
	{chats, `{"messages":[{"role":"user"}]}`, 400, "messages[0].content", "missing"},
	{chats, `{"messages":[{"role":"user","content":5}]}`, 400, "messages[0].content", "string"},
	{chats, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`, 400, "messages[0].content[0]", "not supported"},
	{chats, `{"messages":[{"role":"assistant","content":"hi"}]}`, 400, "messages", "chat template"},
	{chats, `{` + user + `,"max_tokens":0}`, 400, "max_tokens", "at least 1"},
	{chats, `{` + user + `,"max_completion_tokens":-5}`, 400, "max_completion_tokens", "negative"},
	{chats, `{` + user + `,"top_logprobs":5}`, 400, "top_logprobs", "logprobs"},
	{chats, `{` + user + `,"logprobs":true,"top_logprobs":21}`, 400, "top_logprobs", "21"},
	{chats, `{` + user + `,"logprobs":3}`, 400, "logprobs", "a boolean, not a number"},
	{chats, `{` + user + `,"tools":{}}`, 400, "tools", "array"},
	{chats, `{` + user + `,"tool_choice":"auto"}`, 400, "tool_choice", "tools"},
	{chats, `{` + user + `,"tool_choice":"required","tools":[{"type":"function","function":{"name":"f"}}]}`, 400, "tool_choice", "not supported"},
	{chats, `{` + user + `,"tool_choice":5}`, 400, "tool_choice", "5"},
	{chats, `{` + user + `,"chat_template_kwargs":5}`, 400, "chat_template_kwargs", "object"},
	{chats, `{` + user + `,"reasoning_effort":"high"}`, 400, "reasoning_effort", "none"},
	{chats, `{` + user + `,"response_format":{"type":"json_schema","json_schema":{}}}`, 400, "response_format.type", "json_schema"},
	{chats, `{` + user + `,"functions":[{"name":"f"}]}`, 400, "functions", "not supported"},
	{chats, `{` + user + `,"modalities":["audio"]}`, 400, "modalities", "not supported"},
	{chats, `{` + user + `,"continue_final_message":true,"add_generation_prompt":true}`, 400, "continue_final_message", "add_generation_prompt"},
	{"/tokenize", `{}`, 400, "prompt", "required"},
	{"/tokenize", `{` + user + `,"prompt":"x"}`, 400, "prompt", "without messages"},
	{"/tokenize", `{` + user + `,"continue_final_message":true,"add_generation_prompt":true}`, 400, "continue_final_message", "add_generation_prompt"},
	{"/detokenize", `{"tokens":["a"]}`, 400, "tokens[0]", "a string"},
	{"/detokenize", `{"tokens":[1,4096]}`, 400, "tokens[1]", "vocabulary of 4096"},
	{completions, `{"prompt":"x","bad_words":["` + strings.Repeat("a", 1025) + `"]}`, 400, "bad_words[0]", "1025"},
	{completions, `{"prompt":"x","logit_bias":{"` + long + `":1}}`, 400, "logit_bias", "token id"},
	{completions, `{"prompt":"x","logit_bias":{"5":"x"},"` + long + `":1}`, 400, "logit_bias.5", "a string"},
	{completions, `{"prompt":"x","response_format":{"type":"` + long + `"}}`, 400, "response_format.type", "not supp"},
	{chats, `{"messages":[{"role":"` + long + `","content":"hi"}]}`, 400, "messages[0].role", "unknown"},
	{chats, `{"messages":[{"role":"user","content":[{"type":"` + long + `"}]}]}`, 400, "messages[0].content[0].type", "unknown"},
	{chats, `{` + user + `,"tool_choice":{"type":"` + long + `"}}`, 400, "tool_choice", "type"},
	{chats, `{` + user + `,"tools":[` + strings.Repeat("0,", 1<<18) + `0]}`, 400, "tools", "262144 values"},
}

func TestBadRequests(t *testing.T) {
	r := start(t, Config{}, engine.Options{})
	for _, c := range badRequests {
		status, _, text := r.call(t, "POST", c.path, c.body)
		message, param := errorOf(t, text)
		if status != c.status || param != c.param || !strings.Contains(message, c.words) || !strings.HasPrefix(message, param) {
			t.Errorf("%s %.80s: %d, %q, %q; want %d, %q, %q", c.path, c.body, status, param, message, c.status, c.param, c.words)
		}
		if len(message) > 810 { // a field of 200 bytes, what is wrong with it in 600
			t.Errorf("%.80s: a message of %d bytes", c.body, len(message))
		}
	}
	status, _, text := r.call(t, "POST", chats, `{`+user+`,"max_tokens":3}`)
	if status != 200 {
		t.Errorf("the next good request gets %d: %s", status, text)
	}
	for _, good := range []string{
		`{"prompt":"x","max_tokens":1,"response_format":{"type":"text"},"best_of":1,"suffix":null,"guided_json":null,"user":"u","priority":0,"store":false}`,
		"{\"prompt\":\"a\\ud800b\xff\",\"max_tokens\":1}", `{"prompt":"x","prompt":"y","max_tokens":1.0}`, `{"prompt":"x","max_tokens":null,"temperature":null,"seed":null}`,
	} {
		if status, _, text := r.call(t, "POST", completions, good); status != 200 {
			t.Errorf("%s: %d %s", good, status, text)
		}
	}
}
