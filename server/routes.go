package server

import (
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"reprise/server/api"
)

func (s *Server) routes() *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.HandleMethodNotAllowed = true
	r.Use(s.logged, s.recovered, s.crossOrigin)
	r.NoRoute(func(c *gin.Context) {
		s.refuse(c, &api.Error{Status: http.StatusNotFound, Type: api.TypeInvalid, Code: "unknown_url", Message: "there is no " + c.Request.Method + " " + shortPath(c)})
	})
	r.NoMethod(func(c *gin.Context) {
		s.refuse(c, &api.Error{Status: http.StatusMethodNotAllowed, Type: api.TypeInvalid, Code: "method_not_allowed", Message: c.Request.Method + " is not allowed for " + shortPath(c)})
	})
	r.GET("/", page)
	r.GET("/health", s.health)
	r.GET("/ping", s.health)
	r.POST("/ping", s.health)
	r.GET("/version", s.version)
	r.GET("/metrics", gin.WrapH(s.metrics.handler()))
	guarded := r.Group("/", s.authorised)
	guarded.GET("/v1/models", s.models)
	guarded.GET("/v1/models/*id", s.model)
	guarded.POST("/v1/completions", s.call((*api.API).Completion))
	guarded.POST("/v1/chat/completions", s.call((*api.API).Chat))
	guarded.POST("/tokenize", s.simple((*api.API).Tokenize))
	guarded.POST("/detokenize", s.simple((*api.API).Detokenize))
	return r
}

func shortPath(c *gin.Context) string {
	path := c.Request.URL.Path
	return path[:min(len(path), 100)]
}

func (s *Server) health(c *gin.Context) {
	if _, e := s.available(); e != nil {
		s.refuse(c, e)
		return
	}
	c.JSON(http.StatusOK, gin.H{"status": "ok"})
}

func (s *Server) version(c *gin.Context) { c.JSON(http.StatusOK, gin.H{"version": s.config.Version}) }

func (s *Server) models(c *gin.Context) {
	b, e := s.available()
	if e != nil {
		s.refuse(c, e)
		return
	}
	s.answer(c, gin.H{"object": "list", "data": b.API.Models()})
}

func (s *Server) model(c *gin.Context) {
	name := strings.TrimPrefix(c.Param("id"), "/")
	if name == "" {
		s.models(c)
		return
	}
	b, e := s.available()
	if e != nil {
		s.refuse(c, e)
		return
	}
	m, err := b.API.Model(name)
	if err != nil {
		s.refuse(c, api.AsError(err))
		return
	}
	s.answer(c, m)
}

// simple serves a route whose answer needs no engine.
func (s *Server) simple(f func(*api.API, []byte) (any, error)) gin.HandlerFunc {
	return func(c *gin.Context) {
		b, body, ok := s.request(c)
		if !ok {
			return
		}
		if out, err := understand(s, c, b.API, body, f); err != nil {
			s.failed(c, err)
		} else {
			s.answer(c, out)
		}
	}
}

// call serves a route whose answer is generated.
func (s *Server) call(parse func(*api.API, []byte) (api.Call, error)) gin.HandlerFunc {
	return func(c *gin.Context) {
		b, body, ok := s.request(c)
		if !ok {
			return
		}
		call, err := understand(s, c, b.API, body, parse)
		switch {
		case err != nil:
			s.failed(c, err)
		case call.Streams():
			s.stream(c, call)
		default:
			if out, err := call.Answer(c.Request.Context()); err != nil {
				s.failed(c, err)
			} else {
				s.answer(c, out)
			}
		}
	}
}

// failed answers with an error; what is no fault of the client is logged.
func (s *Server) failed(c *gin.Context, err error) {
	e := api.AsError(err)
	if e.Status == http.StatusInternalServerError {
		s.config.Log.Error("request failed", "path", shortPath(c), "error", err)
	}
	s.refuse(c, e)
}

// request finds the backend and reads the body; where it returns false it has answered.
func (s *Server) request(c *gin.Context) (*Backend, []byte, bool) {
	b, e := s.available()
	var body []byte
	if e == nil {
		body, e = s.body(c)
	}
	if e != nil {
		s.refuse(c, e)
		return nil, nil, false
	}
	return b, body, true
}
