package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"reprise/server/api"
)

// maxDiscard bounds what is read and dropped of a body that is too large. Most clients look for an answer only when they
// have sent everything.
const maxDiscard = 256 << 20

// body reads the body of a request. The content type is not looked at: it must be JSON.
func (s *Server) body(c *gin.Context) ([]byte, *api.Error) {
	control := http.NewResponseController(c.Writer)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // not supported by test recorders
	defer control.SetReadDeadline(time.Time{})
	if encoding := c.GetHeader("Content-Encoding"); encoding != "" && encoding != "identity" {
		return nil, &api.Error{
			Status: http.StatusUnsupportedMediaType, Type: api.TypeInvalid, Code: "unsupported_encoding",
			Message: fmt.Sprintf("Content-Encoding %q is not supported", encoding[:min(len(encoding), 40)]),
		}
	}
	if c.Request.ContentLength > s.config.MaxBody {
		return nil, s.tooLarge(c)
	}
	body, err := io.ReadAll(io.LimitReader(c.Request.Body, s.config.MaxBody+1))
	switch {
	case err != nil:
		status := http.StatusBadRequest
		if c.Request.Context().Err() != nil || errors.Is(err, io.ErrUnexpectedEOF) {
			status = api.StatusClientGone
		}
		return nil, &api.Error{Status: status, Type: api.TypeInvalid, Code: "incomplete_body", Message: "the body could not be read: " + err.Error()}
	case int64(len(body)) > s.config.MaxBody:
		return nil, s.tooLarge(c)
	}
	return body, nil
}

func (s *Server) tooLarge(c *gin.Context) *api.Error {
	c.Header("Connection", "close")
	if c.GetHeader("Expect") == "" {
		_, _ = io.CopyN(io.Discard, c.Request.Body, maxDiscard)
	}
	return &api.Error{
		Status: http.StatusRequestEntityTooLarge, Type: api.TypeInvalid, Code: "body_too_large",
		Message: fmt.Sprintf("the body is larger than %d bytes", s.config.MaxBody),
	}
}

// understand parses a body. Large ones take turns: what they become may be many times their size, and take seconds.
func understand[T any](s *Server, c *gin.Context, a *api.API, body []byte, parse func(*api.API, []byte) (T, error)) (T, error) {
	if len(body) >= largeBody {
		if err := s.large.Acquire(c.Request.Context(), 1); err != nil {
			var none T
			return none, err
		}
		defer s.large.Release(1)
	}
	return parse(a, body)
}

// encode writes v as JSON and a newline. Answers hold nothing that JSON cannot say.
func encode(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func (s *Server) answer(c *gin.Context, v any) { s.respond(c, http.StatusOK, v) }

// respond writes a whole answer. A client that stops reading it holds up this goroutine alone, until the timeout.
func (s *Server) respond(c *gin.Context, status int, v any) {
	var b bytes.Buffer
	if err := encode(&b, v); err != nil {
		panic(fmt.Sprintf("server: an answer that JSON cannot say: %v", err))
	}
	deadline := time.Now().Add(s.config.WriteTimeout)
	_ = http.NewResponseController(c.Writer).SetWriteDeadline(deadline) // not supported by test recorders
	c.Data(status, "application/json", b.Bytes())
}

// refuse answers with an error object.
func (s *Server) refuse(c *gin.Context, e *api.Error) {
	c.Abort()
	if e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable {
		c.Header("Retry-After", "1")
	}
	s.respond(c, e.Status, e.Body())
}
