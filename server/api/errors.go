package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"unicode/utf8"

	"reprise/chat"
	"reprise/engine"
)

// Error is an answer that refuses a request, as the OpenAI API words it.
type Error struct {
	Status  int    // HTTP status
	Message string // one sentence that names the field, if there is one
	Type    string
	Param   string // field of the request, or ""
	Code    string // for programs, or ""
}

func (e *Error) Error() string { return e.Message }

// PanicError is a broken invariant that ended a request. Its text is for logs; clients get a plain 500.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// Types of errors, as the OpenAI API names them.
const (
	TypeInvalid = "invalid_request_error"
	TypeLimit   = "rate_limit_error"
	TypeServer  = "server_error"
)

// StatusClientGone is what logs show for an answer that nobody waited for.
const StatusClientGone = 499

type errorBody struct {
	Error errorObject `json:"error"`
}

type errorObject struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// Body is the JSON object that goes to the client.
func (e *Error) Body() any {
	optional := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	return errorBody{errorObject{e.Message, e.Type, optional(e.Param), optional(e.Code)}}
}

// Most bytes of what a refusal repeats from a request.
const (
	maxParam   = 200
	maxMessage = 600
)

// invalid refuses a field's value.
func invalid(field, format string, a ...any) *Error {
	field = cut(field, maxParam)
	return &Error{
		Status: http.StatusBadRequest, Type: TypeInvalid, Param: field, Code: "invalid_value",
		Message: field + ": " + cut(fmt.Sprintf(format, a...), maxMessage),
	}
}

// cut shortens text to n bytes and three points, between two characters.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "..."
}

// unsupported refuses a known field whose meaning is not honoured.
func unsupported(field, format string, a ...any) *Error {
	e := invalid(field, format, a...)
	e.Code = "unsupported_parameter"
	return e
}

func tooLong(field string, tokens string, limit int) *Error {
	e := invalid(field, "the prompt has %s tokens; the context of this model is %d tokens, with room for an answer", tokens, limit)
	e.Code = "context_length_exceeded"
	return e
}

// AsError finds the answer for any error of this package or of what it calls.
func AsError(err error) *Error {
	var own *Error
	var field *engine.FieldError
	var message *chat.FieldError
	var template *chat.TemplateError
	var panicked *PanicError
	switch {
	case errors.As(err, &panicked):
		return &Error{Status: http.StatusInternalServerError, Type: TypeServer, Code: "internal_error", Message: "internal error"}
	case errors.As(err, &own):
		return own
	case errors.As(err, &field):
		return invalid(field.Field, "%s", field.Problem)
	case errors.As(err, &message):
		return chatError(message)
	case errors.As(err, &template):
		return invalid("messages", "the chat template refuses them: %s", template.Message)
	case errors.Is(err, engine.ErrQueueFull):
		return &Error{Status: http.StatusTooManyRequests, Type: TypeLimit, Code: "queue_full", Message: err.Error() + "; try again later"}
	case errors.Is(err, engine.ErrClosed):
		return &Error{Status: http.StatusServiceUnavailable, Type: TypeServer, Code: "shutting_down", Message: "the server is shutting down"}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &Error{Status: StatusClientGone, Type: TypeServer, Code: "cancelled", Message: "the request was cancelled"}
	}
	return &Error{Status: http.StatusInternalServerError, Type: TypeServer, Code: "internal_error", Message: err.Error()}
}

func chatError(e *chat.FieldError) *Error {
	if e.Unsupported {
		return unsupported(e.Field, "%s", e.Message)
	}
	return invalid(e.Field, "%s", e.Message)
}
