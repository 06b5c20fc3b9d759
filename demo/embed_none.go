//go:build nodemo

package demo

import "embed"

const leftOut = true

var embedded embed.FS
