package api

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"reprise/chat"
	"reprise/demo"
	"reprise/engine"
	"reprise/sampler"
	"reprise/tokenizer"
)

// fakeEngine answers every request with the same tokens, some at a time.
type fakeEngine struct {
	vocab  int
	tokens []int32
	chunk  int
	reason engine.Reason
	err    error
	asked  []engine.Request
	live   atomic.Int64 // sequences that were neither ended nor cancelled
}

func (f *fakeEngine) Limits() engine.Limits {
	return engine.Limits{Vocab: f.vocab, MaxLen: 1000, MaxLogProbs: 20, EOS: []int32{4089}}
}

func (f *fakeEngine) Submit(r engine.Request) (Sequence, error) {
	if f.err != nil {
		return nil, f.err
	}
	f.asked = append(f.asked, r)
	f.live.Add(1)
	return &fakeSequence{engine: f, rest: f.tokens[:min(len(f.tokens), r.MaxTokens)]}, nil
}

type fakeSequence struct {
	engine *fakeEngine
	rest   []int32
	ended  bool
}

func (s *fakeSequence) Next(ctx context.Context) (*engine.Update, error) {
	if ctx.Err() != nil {
		s.Cancel()
		return nil, ctx.Err()
	}
	u := &engine.Update{}
	n := min(max(s.engine.chunk, 1), len(s.rest))
	for _, id := range s.rest[:n] {
		u.Tokens = append(u.Tokens, engine.Token{ID: id, LogProb: -0.5, Rank: 1})
	}
	if s.rest = s.rest[n:]; len(s.rest) == 0 {
		u.Reason = s.engine.reason
		if u.Reason == engine.Stop && n > 0 {
			u.StopID = u.Tokens[n-1].ID
		}
		s.Cancel()
	}
	return u, nil
}

func (s *fakeSequence) Cancel() {
	if !s.ended {
		s.ended = true
		s.engine.live.Add(-1)
	}
}

// fixture is an API on the demo's tokenizer with a fake engine.
type fixture struct {
	*API
	engine   *fakeEngine
	mutex    sync.Mutex
	outcomes []Outcome
}

func (f *fixture) observe(o Outcome) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.outcomes = append(f.outcomes, o)
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	folder, err := demo.Open("demo-qwen35")
	if err != nil {
		t.Skip(err)
	}
	tok, err := tokenizer.Load(folder.Tokenizer, folder.TokenizerConfig)
	if err != nil {
		t.Fatal(err)
	}
	template, err := chat.NewTemplate(string(folder.ChatTemplate))
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{engine: &fakeEngine{vocab: tok.VocabSize(), reason: engine.Stop}}
	f.API = New(Config{
		Engine: f.engine, Tokenizer: tok, Template: template, Models: []string{"m", "alias"}, Defaults: sampler.Default(),
		Observe: f.observe,
	})
	return f
}

// says makes the engine answer with text and an end-of-sequence token.
func (f *fixture) says(text string, chunk int) {
	f.engine.tokens = append(f.encode(text), f.engine.Limits().EOS[0])
	f.engine.chunk, f.engine.reason = chunk, engine.Stop
}

func run(t testing.TB, understand func([]byte) (Call, error), body string) map[string]any {
	t.Helper()
	call, err := understand([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	out, err := call.Answer(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return plain(t, out)
}

// plain is an answer as a client sees it.
func plain(t testing.TB, v any) map[string]any {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func stream(t testing.TB, understand func([]byte) (Call, error), body string) []map[string]any {
	t.Helper()
	call, err := understand([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if !call.Streams() {
		t.Fatalf("%s does not stream", body)
	}
	var out []map[string]any
	err = call.Stream(context.Background(), func(chunk any) error {
		out = append(out, plain(t, chunk))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// at walks an answer: names of objects and indices of arrays.
func at(t testing.TB, v any, path ...any) any {
	t.Helper()
	for _, p := range path {
		switch p := p.(type) {
		case string:
			v = v.(map[string]any)[p]
		case int:
			list, _ := v.([]any)
			if p >= len(list) {
				t.Fatalf("no element %v of %v in %v", p, path, v)
			}
			v = list[p]
		}
	}
	return v
}

func equal(t testing.TB, got, want any) {
	t.Helper()
	g, _ := json.Marshal(got)
	w, _ := json.Marshal(want)
	if !slices.Equal(g, w) {
		t.Errorf("got  %s\nwant %s", g, w)
	}
}
