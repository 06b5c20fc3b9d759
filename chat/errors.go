package chat

import "fmt"

// FieldError is a fault in a request, at a field such as
// "messages[1].content[0]".
type FieldError struct {
	Field   string
	Message string
	// Unsupported marks well-formed input this engine does not take, such as
	// images.
	Unsupported bool
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Message }

func fieldError(field, format string, args ...any) error {
	return &FieldError{Field: field, Message: fmt.Sprintf(format, args...)}
}

// TemplateError is a conversation that the chat template could not render.
type TemplateError struct {
	// Message may be shown to the client.
	Message string
	// Raised is set when the template itself refused the conversation.
	Raised bool
	cause  error
}

func (e *TemplateError) Error() string { return "chat template: " + e.Message }
func (e *TemplateError) Unwrap() error { return e.cause }
