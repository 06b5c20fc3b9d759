//go:build !nodemo

package demo

import "embed"

const leftOut = false

//go:embed qwen35 nemotron
var embedded embed.FS
