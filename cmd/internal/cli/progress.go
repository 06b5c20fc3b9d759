package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/schollz/progressbar/v3"
)

// IsTerminal tells whether f is a terminal.
func IsTerminal(f *os.File) bool { return isatty.IsTerminal(f.Fd()) }

// quiet is how long loading may take before a line says so where there is no terminal.
const quiet = 2 * time.Second

// LoadProgress shows the reading of weights on standard error: a bar on a terminal, elsewhere a line every few seconds.
func LoadProgress() func(done, total int64) {
	if IsTerminal(os.Stderr) {
		return loadBar()
	}
	return loadLines(os.Stderr, time.Now)
}

func loadBar() func(done, total int64) {
	var bar *progressbar.ProgressBar
	return func(done, total int64) {
		if bar == nil {
			bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(os.Stderr), progressbar.OptionSetDescription("loading"),
				progressbar.OptionShowBytes(true), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
		}
		_ = bar.Set64(done) // a bar that cannot be drawn is no reason to stop
	}
}

func loadLines(w io.Writer, now func() time.Time) func(done, total int64) {
	start := now()
	next := start.Add(quiet)
	return func(done, total int64) {
		if t := now(); t.After(next) {
			next = t.Add(2 * quiet)
			fmt.Fprintf(w, "loading: %.1f of %.1f GB after %.0f s\n", float64(done)/1e9, float64(total)/1e9, t.Sub(start).Seconds())
		}
	}
}

// Progress shows on a terminal how far a run is.
type Progress struct{ bar *progressbar.ProgressBar }

// NewProgress counts to total things, -1 = unknown; done of them are done already.
func NewProgress(things string, total, done int) *Progress {
	if !IsTerminal(os.Stderr) {
		return &Progress{}
	}
	bar := progressbar.NewOptions(total, progressbar.OptionSetWriter(os.Stderr), progressbar.OptionSetDescription(things),
		progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString(things),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetElapsedTime(true), progressbar.OptionSetPredictTime(true))
	if done > 0 {
		_ = bar.Set(done)
	}
	return &Progress{bar}
}

// A bar that cannot be drawn is no reason to stop.

// Add counts n more.
func (p *Progress) Add(n int) {
	if p.bar != nil {
		_ = p.bar.Add(n)
	}
}

// Finish leaves the bar as it is and ends its line.
func (p *Progress) Finish() {
	if p.bar != nil {
		_ = p.bar.Exit()
		_, _ = os.Stderr.WriteString("\n")
	}
}
