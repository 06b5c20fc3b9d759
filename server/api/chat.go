package api

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"reprise/chat"
	"reprise/chat/jinja"
)

// chatJob is a request to /v1/chat/completions.
type chatJob struct {
	job
	rendered   string // the prompt
	tools      chat.Tools
	parseCalls bool
	oneCall    bool // parallel_tool_calls false: only the first call counts
	reasoning  bool // include_reasoning
}

// Chat understands the body of a request to /v1/chat/completions. Errors are *Error.
func (a *API) Chat(body []byte) (Call, error) {
	f := parseFields(body)
	j := &chatJob{job: job{api: a, arrived: time.Now(), field: "messages", markers: true}}
	j.common = a.readCommon(f)
	j.maxTokens = f.maxTokens(-1, "max_completion_tokens", "max_tokens")
	j.addSpecial = f.boolean("add_special_tokens", false)
	j.reasoning = f.boolean("include_reasoning", true)
	j.scores = j.promptProbs
	j.readLogProbs(f)
	j.readTools(f)
	j.readMessages(f)
	if f.err != nil {
		return nil, f.err
	}
	return j, nil
}

func (j *chatJob) readLogProbs(f *fields) {
	top := f.integer("top_logprobs", 0)
	j.logProbs = -1
	switch wanted := f.boolean("logprobs", false); {
	case top < 0:
		f.refuse("top_logprobs", "must not be negative, not %d", top)
	case wanted:
		j.logProbs = top
	case top > 0:
		f.refuse("top_logprobs", "only allowed with logprobs")
	}
	if limit := j.api.config.Engine.Limits().MaxLogProbs; top > limit {
		f.refuse("top_logprobs", "%d is outside of [0, %d] (--max-logprobs)", top, limit)
	}
	if j.maxTokens == 0 {
		f.refuse("max_tokens", "must be at least 1 for a chat")
	}
	if f.has("prompt_logprobs") && j.promptProbs < 0 {
		f.refuse("prompt_logprobs", "must not be negative, not %d", j.promptProbs)
	}
	if echo := f.boolean("echo", false); echo {
		f.fail(unsupported("echo", "not supported for chats"))
	}
	if j.api.config.Tokenizer == nil {
		f.fail(j.api.noTokenizer("messages"))
	}
}

func (j *chatJob) readTools(f *fields) {
	tools, err := chat.ParseTools(f.raw("tools"))
	if err != nil {
		f.fail(AsError(err))
	}
	j.tools = tools
	j.oneCall = !f.boolean("parallel_tool_calls", true)
	raw := f.raw("tool_choice")
	choice, isText := asText(raw)
	switch {
	case raw == nil:
		j.parseCalls = tools.Len() > 0
	case isText && choice == "none":
	case isText && choice == "auto":
		j.parseCalls = tools.Len() > 0
		if tools.Len() == 0 {
			f.refuse("tool_choice", `"auto" needs tools`)
		}
	case isText && choice == "required", raw[0] == '{':
		f.fail(unsupported("tool_choice", `%.60s is not supported by this server, only "none" and "auto" are`, compact(raw)))
	default:
		f.refuse("tool_choice", `must be "none" or "auto", not %s`, short(raw))
	}
}

// readMessages validates the conversation and turns it into the prompt.
func (j *chatJob) readMessages(f *fields) {
	if f.err == nil && !f.has("messages") {
		f.refuse("messages", "is required")
	}
	j.render(f)
	if f.err == nil {
		j.prompts = []prompt{j.api.encodePrompt(f, &j.common, "messages", j.rendered)}
	}
}

// render makes the prompt's text of messages, and of what else of a request has a part in it.
func (j *chatJob) render(f *fields) {
	if f.err != nil {
		return
	}
	messages, err := chat.ParseMessages(f.raw("messages"))
	if err != nil {
		f.fail(AsError(err))
		return
	}
	kwargs := j.kwargs(f)
	carryOn := f.boolean("continue_final_message", false)
	generate := f.boolean("add_generation_prompt", !carryOn)
	if carryOn && generate {
		f.refuse("continue_final_message", "needs add_generation_prompt to be false")
	}
	if j.api.config.Template == nil {
		f.fail(j.api.noTemplate())
	}
	if f.err != nil {
		return
	}
	j.rendered, err = j.api.config.Template.Render(chat.RenderArgs{
		Messages: messages, Tools: j.tools, AddGenerationPrompt: generate, Kwargs: kwargs, BOS: j.api.bos, EOS: j.api.eos,
	})
	if err != nil {
		f.fail(AsError(err))
		return
	}
	if carryOn {
		j.cutFinal(f)
	}
}

func (j *chatJob) kwargs(f *fields) chat.Kwargs {
	kwargs, err := chat.ParseKwargs(f.raw("chat_template_kwargs"))
	if err != nil {
		f.fail(AsError(err))
	}
	switch effort := f.text("reasoning_effort", ""); effort {
	case "":
	case "none":
		kwargs = kwargs.With("enable_thinking", jinja.Bool(false))
	default:
		f.fail(unsupported("reasoning_effort", `only "none" is supported; chat_template_kwargs reach the chat template of the model`))
	}
	for i := range j.api.kwargs.Len() {
		if name, value := j.api.kwargs.Entry(i); f.err == nil {
			kwargs = kwargs.With(string(name.(jinja.String)), value)
		}
	}
	return kwargs
}

// cutFinal ends the prompt behind the text of the final message, for the model to go on with.
func (j *chatJob) cutFinal(f *fields) {
	text := finalText(f.raw("messages"))
	at := strings.LastIndex(j.rendered, text)
	if text == "" || at < 0 {
		f.refuse("continue_final_message", "the text of the final message is not found in the prompt that the chat template makes")
		return
	}
	j.rendered = j.rendered[:at+len(text)]
}

// finalText is the text of the last message without white space around it, as templates render it.
func finalText(messages json.RawMessage) string {
	var list []struct{ Content json.RawMessage }
	if json.Unmarshal(messages, &list) != nil || len(list) == 0 {
		return ""
	}
	content := list[len(list)-1].Content
	var parts []struct{ Text string }
	if bytes.HasPrefix(content, []byte("[")) && json.Unmarshal(content, &parts) == nil && len(parts) > 0 {
		return strings.TrimSpace(parts[len(parts)-1].Text)
	}
	text, _ := asText(content)
	return strings.TrimSpace(text)
}
