package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"reprise/cmd/bench/internal/load"
	"reprise/cmd/internal/cli"
)

// serveBar shows on a terminal how far a row is. Safe for concurrent use.
type serveBar struct {
	bar   *progressbar.ProgressBar
	name  string
	begin time.Time

	mutex          sync.Mutex
	tokens, failed int
}

func newServeBar(name string, total int) *serveBar {
	b := &serveBar{name: name, begin: time.Now()}
	if cli.IsTerminal(os.Stderr) {
		b.bar = progressbar.NewOptions(total, progressbar.OptionSetWriter(os.Stderr), progressbar.OptionSetDescription(name), progressbar.OptionShowCount(),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetElapsedTime(true), progressbar.OptionClearOnFinish())
		_ = b.bar.RenderBlank()
	}
	return b
}

// ended counts an answer. A bar that cannot be drawn is no reason to stop.
func (b *serveBar) ended(o *load.Outcome) {
	if b.bar == nil {
		return
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.tokens += o.Output
	if o.Failure != nil && !o.Cut {
		b.failed++
	}
	b.bar.Describe(fmt.Sprintf("%s: %.0f tokens/s, %d failed", b.name, float64(b.tokens)/time.Since(b.begin).Seconds(), b.failed))
	_ = b.bar.Add(1)
}

func (b *serveBar) finish() {
	if b.bar != nil {
		_ = b.bar.Finish()
		_ = b.bar.Clear()
	}
}
