package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"

	"reprise/server/api"
)

// request is what a line asks for.
type request struct {
	number int
	id     *string // custom_id, nil where there is none
	chat   bool
	body   []byte
	err    *api.Error // the line cannot be run
}

// byteOrderMark is what some editors put in front of a text.
const byteOrderMark = "\ufeff"

// understand reads a line; whatever is wrong with it becomes the request's error.
func understand(l line) request {
	r := request{number: l.number}
	if l.tooLong {
		r.err = malformed("", "the line is longer than %d bytes", maxLine)
		return r
	}
	var fields struct {
		CustomID json.RawMessage `json:"custom_id"`
		Method   json.RawMessage `json:"method"`
		URL      json.RawMessage `json:"url"`
		Body     json.RawMessage `json:"body"`
	}
	if bytes.HasPrefix(l.text, []byte(byteOrderMark)) {
		r.err = malformed("", "the line starts with a UTF-8 byte order mark; save the file without one")
		return r
	}
	err := json.Unmarshal(l.text, &fields)
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind), string(bytes.TrimSpace(l.text)) == "null":
		r.err = malformed("", "the line must be a JSON object, not %.20s", bytes.TrimSpace(l.text))
		return r
	case err != nil:
		r.err = malformed("", "the line is not valid JSON: %v", err)
		return r
	}
	id, ok := text(fields.CustomID)
	if !ok || len(id) > 512 {
		r.err = malformed("custom_id", "must be a string of at most 512 bytes")
		return r
	}
	r.id = &id
	r.readCall(fields.Method, fields.URL, fields.Body)
	return r
}

func (r *request) readCall(rawMethod, rawURL, body json.RawMessage) {
	if method, ok := text(rawMethod); !ok || method != http.MethodPost {
		r.err = malformed("method", `must be "POST"`)
		return
	}
	switch url, _ := text(rawURL); url {
	case "/v1/completions":
	case "/v1/chat/completions":
		r.chat = true
	default:
		r.err = malformed("url", `must be "/v1/completions" or "/v1/chat/completions"`)
		return
	}
	if len(body) == 0 || body[0] != '{' {
		r.err = malformed("body", "must be an object")
		return
	}
	r.body = body
}

func text(raw json.RawMessage) (string, bool) {
	var s string
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	return s, json.Unmarshal(raw, &s) == nil
}

func malformed(field, format string, a ...any) *api.Error {
	message := fmt.Sprintf(format, a...)
	if field != "" {
		message = field + ": " + message
	}
	return &api.Error{Status: http.StatusBadRequest, Type: api.TypeInvalid, Param: field, Code: "invalid_line", Message: message}
}

// sum stands for the custom_id when results are matched with lines.
func (r request) sum() uint64 { return sumOf(r.id) }

func sumOf(id *string) uint64 {
	if id == nil {
		return 0
	}
	h := fnv.New64a()
	h.Write([]byte(*id))
	return h.Sum64() | 1
}
