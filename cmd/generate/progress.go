package main

import (
	"os"
	"time"

	"github.com/schollz/progressbar/v3"

	"reprise/cmd/internal/cli"
)

// progress shows on a terminal how far the run is.
type progress struct{ bar *progressbar.ProgressBar }

// newProgress counts to total lines, -1 = unknown; done of them have results already.
func newProgress(total, done int) *progress {
	if !cli.IsTerminal(os.Stderr) {
		return &progress{}
	}
	bar := progressbar.NewOptions(total, progressbar.OptionSetWriter(os.Stderr), progressbar.OptionSetDescription("lines"),
		progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("lines"),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetElapsedTime(true), progressbar.OptionSetPredictTime(true))
	if done > 0 {
		_ = bar.Set(done)
	}
	return &progress{bar}
}

// A bar that cannot be drawn is no reason to stop.

func (p *progress) step() {
	if p.bar != nil {
		_ = p.bar.Add(1)
	}
}

func (p *progress) finish() {
	if p.bar != nil {
		_ = p.bar.Exit()
		_, _ = os.Stderr.WriteString("\n")
	}
}
