package kerneltest

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"testing"

	"reprise/kernels"
)

// Failures runs the short suite on dev outside of a test and says what went wrong: nothing, for a device that may be
// timed.
func Failures(dev kernels.Device) []string {
	r := &report{}
	for _, f := range families(true) {
		for _, c := range f.cases {
			r.name = f.name + "/" + c.name
			r.run(c, dev)
		}
	}
	return r.failures
}

// report is a testing.TB that collects failures. Methods that no case uses panic by the nil TB.
type report struct {
	testing.TB
	name     string
	failures []string
	cleanups []func()
}

// run runs a case on a goroutine of its own, which a fatal error ends.
func (r *report) run(c testcase, dev kernels.Device) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.on(r, dev)
	}()
	<-done
	r.cleanUp()
}

func (r *report) Helper()                  {}
func (r *report) Name() string             { return r.name }
func (r *report) Log(...any)               {}
func (r *report) Logf(string, ...any)      {}
func (r *report) Cleanup(f func())         { r.cleanups = append(r.cleanups, f) }
func (r *report) Context() context.Context { return context.Background() }
func (r *report) Output() io.Writer        { return io.Discard }
func (r *report) Failed() bool             { return len(r.failures) > 0 }
func (r *report) Error(a ...any)           { r.Errorf("%s", fmt.Sprint(a...)) }
func (r *report) Fatal(a ...any)           { r.Fatalf("%s", fmt.Sprint(a...)) }

func (r *report) Errorf(format string, a ...any) {
	r.failures = append(r.failures, r.name+": "+fmt.Sprintf(format, a...))
}

func (r *report) Fatalf(format string, a ...any) {
	r.Errorf(format, a...)
	runtime.Goexit()
}

func (r *report) cleanUp() {
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
	r.cleanups = nil
}
