package server

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"reprise/server/api"
)

// events writes server-sent events. Headers go out with the first one, so that an error before it is an ordinary answer.
type events struct {
	context *gin.Context
	control *http.ResponseController
	timeout time.Duration
	buffer  bytes.Buffer
	begun   bool
}

// stream answers a call in chunks. A client that stops reading holds up this goroutine alone, until the timeout.
func (s *Server) stream(c *gin.Context, call api.Call) {
	w := &events{context: c, control: http.NewResponseController(c.Writer), timeout: s.config.WriteTimeout}
	err := call.Stream(c.Request.Context(), w.send)
	switch {
	case err != nil && !w.begun:
		s.failed(c, err)
		return
	case err != nil:
		s.endedEarly(c, err)
		if w.send(api.AsError(err).Body()) != nil {
			return
		}
	}
	_ = w.write("data: [DONE]\n\n") // nobody is left to tell
}

// endedEarly logs why; that a client left is its own affair.
func (s *Server) endedEarly(c *gin.Context, err error) {
	level := slog.LevelWarn
	var network *net.OpError
	if c.Request.Context().Err() != nil || errors.As(err, &network) && !network.Timeout() {
		level = slog.LevelInfo
	}
	s.config.Log.Log(c.Request.Context(), level, "stream ended early", "path", shortPath(c), "error", err)
}

func (w *events) send(chunk any) error {
	w.buffer.Reset()
	w.buffer.WriteString("data: ")
	if err := encode(&w.buffer, chunk); err != nil {
		return err
	}
	w.buffer.WriteByte('\n')
	return w.write(w.buffer.String())
}

func (w *events) write(text string) error {
	if !w.begun {
		w.begun = true
		h := w.context.Writer.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no")
		w.context.Status(http.StatusOK)
	}
	_ = w.control.SetWriteDeadline(time.Now().Add(w.timeout)) // not supported by test recorders
	if _, err := w.context.Writer.WriteString(text); err != nil {
		return err
	}
	return w.control.Flush()
}
