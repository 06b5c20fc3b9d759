package chat

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"reprise/chat/jinja"
)

// Template is a compiled chat template, safe for concurrent use.
type Template struct {
	parsed *jinja.Template
	parts  bool // content parts may be passed as lists
}

// NewTemplate compiles the source of a chat template.
func NewTemplate(source string) (*Template, error) {
	parsed, err := jinja.Parse(source, jinja.Limits{})
	if err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	t := &Template{parsed: parsed}
	t.parts = t.takesParts()
	return t, nil
}

// takesParts tries whether content as a list of one text part renders as that
// text does, in every role.
func (t *Template) takesParts() bool {
	plain := NewMessages("system", "a", "user", "b", "assistant", "c", "tool", "d", "user", "e")
	listed := jinja.NewList()
	for _, item := range plain.list.Items {
		message := item.(*jinja.Dict).Copy()
		part := jinja.NewDict()
		part.Set("type", jinja.String("text"))
		part.Set("text", message.Get("content"))
		message.Set("content", jinja.NewList(part))
		listed.Items = append(listed.Items, message)
	}
	want, err := t.render(RenderArgs{}, plain.list)
	if err != nil {
		return false
	}
	got, err := t.render(RenderArgs{}, listed)
	return err == nil && got == want
}

// Kwargs are the chat_template_kwargs of a request.
type Kwargs struct{ dict *jinja.Dict }

// reservedKwargs are set by the request itself.
var reservedKwargs = []string{"messages", "tools", "add_generation_prompt", "chat_template_kwargs", "bos_token", "eos_token"}

// ParseKwargs validates the chat_template_kwargs field; empty text and null
// give none. Faults are *FieldError.
func ParseKwargs(raw []byte) (Kwargs, error) {
	const field = "chat_template_kwargs"
	if len(raw) == 0 {
		return Kwargs{}, nil
	}
	v, err := jinja.DecodeJSON(raw)
	if err != nil {
		return Kwargs{}, fieldError(field, "%v", err)
	}
	if v == (jinja.None{}) {
		return Kwargs{}, nil
	}
	dict, ok := v.(*jinja.Dict)
	if !ok {
		return Kwargs{}, fieldError(field, "must be an object")
	}
	for _, name := range reservedKwargs {
		if dict.Get(name) != nil {
			return Kwargs{}, fieldError(field+"."+name, "is set by other fields of the request")
		}
	}
	return Kwargs{dict}, nil
}

// With returns the kwargs with one more entry, which yields to one that is
// already there.
func (k Kwargs) With(name string, value jinja.Value) Kwargs {
	out := jinja.NewDict()
	if k.dict != nil {
		out = k.dict.Copy()
	}
	if out.Get(name) == nil && !slices.Contains(reservedKwargs, name) {
		out.Set(name, value)
	}
	return Kwargs{out}
}

// RenderArgs are the inputs of one prompt.
type RenderArgs struct {
	Messages            Messages
	Tools               Tools
	AddGenerationPrompt bool
	Kwargs              Kwargs           // passed as variables, and as chat_template_kwargs
	BOS, EOS            string           // texts of the special tokens; empty when there is none
	Now                 func() time.Time // clock of strftime_now; nil is the system's
}

// Render makes the prompt. Failures are *TemplateError.
func (t *Template) Render(args RenderArgs) (string, error) {
	if args.Messages.Len() == 0 {
		return "", &TemplateError{Message: "there are no messages"}
	}
	messages := args.Messages.list
	if !t.parts {
		messages = args.Messages.joined()
	}
	out, err := t.render(args, messages)
	if err == nil {
		return out, nil
	}
	var raised *jinja.RaisedError
	if errors.As(err, &raised) {
		return "", &TemplateError{Message: raised.Message, Raised: true, cause: err}
	}
	return "", &TemplateError{Message: err.Error(), cause: err}
}

func (t *Template) render(args RenderArgs, messages *jinja.List) (string, error) {
	vars := map[string]jinja.Value{"documents": jinja.None{}}
	if k := args.Kwargs.dict; k != nil {
		for i := range k.Len() {
			name, value := k.Entry(i)
			vars[string(name.(jinja.String))] = value
		}
		vars["chat_template_kwargs"] = k
	}
	vars["messages"] = messages
	vars["tools"] = args.Tools.value()
	vars["add_generation_prompt"] = jinja.Bool(args.AddGenerationPrompt)
	if args.BOS != "" {
		vars["bos_token"] = jinja.String(args.BOS)
	}
	if args.EOS != "" {
		vars["eos_token"] = jinja.String(args.EOS)
	}
	return t.parsed.Render(vars, args.Now)
}
