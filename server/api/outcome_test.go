package api

import (
	"context"
	"errors"
	"testing"

	"reprise/engine"
)

// TestOutcomes: a client that is gone and a server that is going are aborts, not errors, in what is observed.
func TestOutcomes(t *testing.T) {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	for want, c := range map[string]struct {
		ctx    context.Context
		reason engine.Reason
	}{"abort": {gone, engine.Stop}, "length": {context.Background(), engine.Length}} {
		f := newFixture(t)
		f.engine.tokens, f.engine.reason = []int32{5, 6}, c.reason
		call, err := f.Completion([]byte(`{"model":"m","prompt":"a","max_tokens":2}`))
		if err != nil {
			t.Fatal(err)
		}
		_, err = call.Answer(c.ctx)
		if want == "abort" && !errors.Is(err, context.Canceled) {
			t.Errorf("the answer of a client that is gone: %v", err)
		}
		if len(f.outcomes) != 1 || f.outcomes[0].Reason != want {
			t.Errorf("observed %+v, want one %q", f.outcomes, want)
		}
	}
	f := newFixture(t)
	f.engine.tokens, f.engine.reason = []int32{5, 6}, engine.Aborted
	call, err := f.Completion([]byte(`{"model":"m","prompt":"a","max_tokens":2}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := call.Answer(context.Background()); err == nil || len(f.outcomes) != 1 || f.outcomes[0].Reason != "abort" {
		t.Errorf("aborted by the server: %v, observed %+v", err, f.outcomes)
	}
}
