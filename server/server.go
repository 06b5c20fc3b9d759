package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/sync/semaphore"

	"reprise/engine"
	"reprise/server/api"
)

// Config is what a server is made of. Zero values have the defaults stated.
type Config struct {
	Model          string        // label of the metrics
	Keys           []string      // accepted API keys; none = open to everyone
	AllowedOrigins []string      // web pages of other origins that may call; "*" = all
	MetricsPrefix  string        // of every metric's name
	MaxBody        int64         // bytes of a request; 0 = 32 MiB
	Version        string        // as /version shows it
	Log            *slog.Logger  // nil = silent
	WriteTimeout   time.Duration // that a client may take to read a chunk, or a whole answer; 0 = 2 minutes
}

const (
	defaultMaxBody      = 32 << 20
	defaultWriteTimeout = 2 * time.Minute
	headerTimeout       = 10 * time.Second
	bodyTimeout         = time.Minute
	idleTimeout         = 2 * time.Minute
	farewell            = 2 * time.Second
	maxHeaderBytes      = 64 << 10
	largeBody           = 1 << 20
	largeAtOnce         = 4
)

// Backend is what answers requests once the model is loaded.
type Backend struct {
	API   *api.API
	Stats func() engine.Stats
	Err   func() error // the fault that ended the engine, or nil
	Abort func()       // ends the requests that run, which learn it; may be nil
}

// Server is an HTTP server. It can listen before its model is loaded: until Ready it answers 503.
type Server struct {
	config   Config
	metrics  *metrics
	handler  *gin.Engine
	http     *http.Server
	backend  atomic.Pointer[Backend]
	draining atomic.Bool
	large    *semaphore.Weighted // see understand
}

// New makes a server that is not ready yet.
func New(c Config) (*Server, error) {
	if c.MaxBody == 0 {
		c.MaxBody = defaultMaxBody
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = defaultWriteTimeout
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{config: c, large: semaphore.NewWeighted(largeAtOnce)}
	var err error
	if s.metrics, err = newMetrics(c.MetricsPrefix, c.Model, s.stats); err != nil {
		return nil, err
	}
	s.handler = s.routes()
	s.http = &http.Server{
		Handler: s.handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// Ready starts answering.
func (s *Server) Ready(b Backend) { s.backend.Store(&b) }

// Observe takes the end of a sequence into the metrics; it is for api.Config.
func (s *Server) Observe(o api.Outcome) { s.metrics.observe(o) }

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Serve answers on l until Shutdown.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Shutdown refuses new requests and lets the running ones finish until ctx ends; then they are aborted, which their clients
// get as an error, and what a client does not take within farewell is lost with its connection. The error says so.
func (s *Server) Shutdown(ctx context.Context) error {
	s.draining.Store(true)
	err := s.http.Shutdown(ctx)
	if err == nil {
		return nil
	}
	if b := s.backend.Load(); b != nil && b.Abort != nil {
		b.Abort()
	}
	last, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	if s.http.Shutdown(last) != nil {
		s.http.Close()
	}
	return fmt.Errorf("requests were still running: %w", err)
}

func (s *Server) stats() engine.Stats {
	if b := s.backend.Load(); b != nil {
		return b.Stats()
	}
	return engine.Stats{}
}

// available returns the backend, or why there is none.
func (s *Server) available() (*Backend, *api.Error) {
	b := s.backend.Load()
	switch {
	case s.draining.Load():
		return nil, unavailable("shutting_down", "the server is shutting down")
	case b == nil:
		return nil, unavailable("loading", "the model is still being loaded")
	}
	if err := b.Err(); err != nil {
		return nil, unavailable("engine_failed", err.Error())
	}
	return b, nil
}

func unavailable(code, message string) *api.Error {
	return &api.Error{Status: http.StatusServiceUnavailable, Type: api.TypeServer, Code: code, Message: message}
}
