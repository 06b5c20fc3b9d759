package chat

import (
	"fmt"
	"strings"

	"reprise/chat/jinja"
)

// Messages is a validated conversation in the form templates expect.
type Messages struct{ list *jinja.List }

// Len is the number of messages.
func (m Messages) Len() int {
	if m.list == nil {
		return 0
	}
	return len(m.list.Items)
}

// NewMessages makes a conversation of plain text messages: role, content,
// role, content, ...
func NewMessages(rolesAndContents ...string) Messages {
	list := jinja.NewList()
	for i := 0; i+1 < len(rolesAndContents); i += 2 {
		message := jinja.NewDict()
		message.Set("role", jinja.String(rolesAndContents[i]))
		message.Set("content", jinja.String(rolesAndContents[i+1]))
		list.Items = append(list.Items, message)
	}
	return Messages{list}
}

// ParseMessages validates the messages field of a chat request and normalises
// it: developer becomes system, a reasoning field becomes reasoning_content,
// tool call arguments given as JSON text become objects. Faults are
// *FieldError.
func ParseMessages(raw []byte) (Messages, error) {
	v, err := jinja.DecodeJSON(raw)
	if err != nil {
		return Messages{}, fieldError("messages", "%v", err)
	}
	list, ok := v.(*jinja.List)
	if !ok || len(list.Items) == 0 {
		return Messages{}, fieldError("messages", "must be a non-empty array of messages")
	}
	for i, item := range list.Items {
		field := fmt.Sprintf("messages[%d]", i)
		message, ok := item.(*jinja.Dict)
		if !ok {
			return Messages{}, fieldError(field, "must be an object")
		}
		if err := normaliseMessage(message, field); err != nil {
			return Messages{}, err
		}
	}
	return Messages{list}, nil
}

// roles are the known roles and whether their content is required.
var roles = map[string]bool{"system": true, "user": true, "assistant": false, "tool": true}

func normaliseMessage(message *jinja.Dict, field string) error {
	role, err := messageRole(message, field)
	if err != nil {
		return err
	}
	if err := checkContent(message, field+".content", roles[role]); err != nil {
		return err
	}
	for _, name := range []string{"reasoning_content", "reasoning"} {
		if v := message.Get(name); v != nil && v != (jinja.None{}) && !isString(v) {
			return fieldError(field+"."+name, "must be a string")
		}
	}
	if reasoning := message.Get("reasoning"); isString(reasoning) && !isString(message.Get("reasoning_content")) {
		message.Set("reasoning_content", reasoning)
	}
	return normaliseToolCalls(message, role, field+".tool_calls")
}

func isString(v jinja.Value) bool {
	_, ok := v.(jinja.String)
	return ok
}

func messageRole(message *jinja.Dict, field string) (string, error) {
	role, ok := message.Get("role").(jinja.String)
	if !ok {
		return "", fieldError(field+".role", "must be a string")
	}
	if role == "developer" {
		role = "system"
		message.Set("role", role)
	}
	if _, known := roles[string(role)]; !known {
		return "", fieldError(field+".role", "unknown role %.60q: use system, developer, user, assistant or tool", string(role))
	}
	return string(role), nil
}

func checkContent(message *jinja.Dict, field string, required bool) error {
	switch content := message.Get("content").(type) {
	case jinja.String:
		return nil
	case *jinja.List:
		return checkParts(content, field)
	case nil, jinja.None:
		if !required {
			return nil
		}
		return fieldError(field, "must not be missing or null")
	}
	return fieldError(field, "must be a string or an array of content parts")
}

func checkParts(parts *jinja.List, field string) error {
	if len(parts.Items) == 0 {
		return fieldError(field, "must not be an empty array")
	}
	for i, item := range parts.Items {
		at := fmt.Sprintf("%s[%d]", field, i)
		part, ok := item.(*jinja.Dict)
		if !ok {
			return fieldError(at, "must be an object")
		}
		if err := checkPart(part, at); err != nil {
			return err
		}
	}
	return nil
}

func checkPart(part *jinja.Dict, field string) error {
	kind, ok := part.Get("type").(jinja.String)
	if !ok {
		return fieldError(field+".type", "must be a string")
	}
	switch {
	case kind == "text":
		if !isString(part.Get("text")) {
			return fieldError(field+".text", "must be a string")
		}
		return nil
	case isMedia(string(kind)):
		return &FieldError{Field: field, Message: fmt.Sprintf("content of type %.60q is not supported: this model takes text only", string(kind)), Unsupported: true}
	}
	return fieldError(field+".type", "unknown content type %.60q: only text is supported", string(kind))
}

func isMedia(kind string) bool {
	for _, word := range []string{"image", "audio", "video", "file"} {
		if strings.Contains(kind, word) {
			return true
		}
	}
	return false
}

func normaliseToolCalls(message *jinja.Dict, role, field string) error {
	switch calls := message.Get("tool_calls").(type) {
	case nil, jinja.None:
		return nil
	case *jinja.List:
		if role != "assistant" && len(calls.Items) > 0 {
			return fieldError(field, "only assistant messages carry tool calls")
		}
		for i, call := range calls.Items {
			if err := normaliseToolCall(call, fmt.Sprintf("%s[%d]", field, i)); err != nil {
				return err
			}
		}
		return nil
	}
	return fieldError(field, "must be an array")
}

func normaliseToolCall(v jinja.Value, field string) error {
	call, ok := v.(*jinja.Dict)
	if !ok {
		return fieldError(field, "must be an object")
	}
	function, ok := call.Get("function").(*jinja.Dict)
	if !ok {
		return fieldError(field+".function", "must be an object")
	}
	if name, ok := function.Get("name").(jinja.String); !ok || name == "" {
		return fieldError(field+".function.name", "must be a non-empty string")
	}
	switch arguments := function.Get("arguments").(type) {
	case nil, *jinja.Dict:
	case jinja.String:
		function.Set("arguments", parsedArguments(arguments))
	default:
		return fieldError(field+".function.arguments", "must be a string of JSON")
	}
	return nil
}

// parsedArguments is the object that the text holds, or the text itself when
// it holds none. Blank text is an empty object.
func parsedArguments(text jinja.String) jinja.Value {
	if strings.TrimSpace(string(text)) == "" {
		return jinja.NewDict()
	}
	v, err := jinja.DecodeJSON([]byte(text))
	if object, ok := v.(*jinja.Dict); ok && err == nil {
		return object
	}
	return text
}

// joined returns the conversation with content parts joined by newlines, for
// templates that take strings only.
func (m Messages) joined() *jinja.List {
	out := jinja.NewList()
	for _, item := range m.list.Items {
		message := item.(*jinja.Dict)
		if parts, ok := message.Get("content").(*jinja.List); ok {
			message = message.Copy()
			message.Set("content", joinParts(parts))
		}
		out.Items = append(out.Items, message)
	}
	return out
}

func joinParts(parts *jinja.List) jinja.String {
	texts := make([]string, len(parts.Items))
	for i, part := range parts.Items {
		text, _ := part.(*jinja.Dict).Get("text").(jinja.String)
		texts[i] = string(text)
	}
	return jinja.String(strings.Join(texts, "\n"))
}
