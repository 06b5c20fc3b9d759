package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"reprise/server/api"
)

// logged writes a line for each request.
func (s *Server) logged(c *gin.Context) {
	start := time.Now()
	c.Next()
	s.config.Log.Info("request", "method", c.Request.Method, "path", shortPath(c), "status", c.Writer.Status(),
		"milliseconds", time.Since(start).Milliseconds(), "bytes", max(c.Writer.Size(), 0), "client", c.Request.RemoteAddr)
}

// recovered turns a panic into an error of this request alone.
func (s *Server) recovered(c *gin.Context) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if p == http.ErrAbortHandler {
			panic(p)
		}
		s.config.Log.Error("panic while answering", "path", c.Request.URL.Path, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		if c.Writer.Written() {
			panic(http.ErrAbortHandler) // the client must not take what it has for the whole answer
		}
		s.refuse(c, &api.Error{Status: http.StatusInternalServerError, Type: api.TypeServer, Code: "internal_error", Message: "internal error"})
	}()
	c.Next()
}

// authorised lets pass who has a key.
func (s *Server) authorised(c *gin.Context) {
	if len(s.config.Keys) == 0 {
		return
	}
	scheme, key, _ := strings.Cut(c.GetHeader("Authorization"), " ")
	got := sha256.Sum256([]byte(strings.TrimSpace(key)))
	match := 0
	for _, k := range s.config.Keys {
		want := sha256.Sum256([]byte(k))
		match |= subtle.ConstantTimeCompare(got[:], want[:])
	}
	if match == 0 || !strings.EqualFold(scheme, "Bearer") {
		c.Header("WWW-Authenticate", "Bearer")
		s.refuse(c, &api.Error{Status: http.StatusUnauthorized, Type: api.TypeInvalid, Code: "invalid_api_key", Message: "a valid API key is needed: Authorization: Bearer KEY"})
	}
}

// crossOrigin refuses calls from web pages of other origins, so that no page that somebody visits can use a server on
// their machine; AllowedOrigins makes exceptions. Programs other than browsers are not concerned.
func (s *Server) crossOrigin(c *gin.Context) {
	origin := c.GetHeader("Origin")
	if origin != "" && (slices.Contains(s.config.AllowedOrigins, "*") || slices.Contains(s.config.AllowedOrigins, origin)) {
		h := c.Writer.Header()
		h.Set("Access-Control-Allow-Origin", origin)
		h.Add("Vary", "Origin")
		if c.Request.Method == http.MethodOptions {
			h.Set("Access-Control-Allow-Methods", "GET, POST")
			h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type")
			c.AbortWithStatus(http.StatusNoContent)
		}
		return
	}
	var guard http.CrossOriginProtection
	if err := guard.Check(c.Request); err != nil {
		s.refuse(c, &api.Error{Status: http.StatusForbidden, Type: api.TypeInvalid, Code: "cross_origin", Message: "calls from web pages of other origins are not allowed (--allowed-origins)"})
	}
}
