package server

import (
	_ "embed"
	"net/http"

	"github.com/gin-gonic/gin"
)

// chatPage is one file without references to others, so that it works without a network.
//
//go:embed page.html
var chatPage []byte

func page(c *gin.Context) {
	c.Header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'")
	c.Data(http.StatusOK, "text/html; charset=utf-8", chatPage)
}
