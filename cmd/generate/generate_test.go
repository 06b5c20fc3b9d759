package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"

	"reprise/cmd/internal/cli"
	"reprise/engine"
	"reprise/sampler"
	"reprise/server/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echoEngine answers with the first token of the prompt; block, when set, keeps answers back.
type echoEngine struct{ block chan struct{} }

func (echoEngine) Limits() engine.Limits {
	return engine.Limits{Vocab: 1000, MaxLen: 100, MaxLogProbs: 1}
}

func (e echoEngine) Submit(r engine.Request) (api.Sequence, error) {
	return &echoSequence{e, r.Prompt[0]}, nil
}

type echoSequence struct {
	engine echoEngine
	token  int32
}

func (s *echoSequence) Next(ctx context.Context) (*engine.Update, error) {
	if s.engine.block != nil && s.token > 5 {
		select {
		case <-s.engine.block:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return &engine.Update{Tokens: []engine.Token{{ID: s.token}}, Reason: engine.Length}, nil
}

func (*echoSequence) Cancel() {}

// lines are input lines of every kind; number i asks for token i.
func lines(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		switch i % 10 {
		case 3:
			b.WriteString("{garbage\n")
		case 6:
			fmt.Fprintf(&b, `{"custom_id":"c%d","method":"POST","url":"/v1/completions","body":{"prompt":[1],"model":"nope"}}`+"\n", i)
		case 9:
			b.WriteString(`{"custom_id":"c1","method":"POST","url":"/v1/completions","body":{"prompt":[1]}}` + "\n")
		default:
			fmt.Fprintf(&b, `{"custom_id":"c%d","method":"POST","url":"/v1/completions","body":{"prompt":[%d],"max_tokens":1}}`+"\n", i, i)
		}
	}
	return b.String()
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// once runs the command without a model.
func once(ctx context.Context, in, out string, e echoEngine) (*runner, error) {
	if err := checkFiles(in, out); err != nil {
		return nil, err
	}
	o, done, err := openOutput(out)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	total, err := survey(in, done)
	if err != nil {
		return nil, err
	}
	input, err := openInput(in)
	if err != nil {
		return nil, err
	}
	defer input.Close()
	r := &runner{
		api: api.New(api.Config{Engine: e, Models: []string{"m"}, Defaults: sampler.Default()}), fault: func() error { return nil },
		inFlight: 4, out: o, done: done, progress: cli.NewProgress("lines", total, len(done)),
	}
	return r, r.run(ctx, input)
}

// read returns the results of a file by input line.
func read(t *testing.T, path string) map[int]result {
	t.Helper()
	in, err := openInput(path)
	check(t, err)
	defer in.Close()
	out := map[int]result{}
	for {
		l, err := in.next()
		if err == io.EOF {
			return out
		}
		check(t, err)
		var r result
		check(t, json.Unmarshal(l.text, &r))
		n, ok := numberOf(r.ID)
		if _, twice := out[n]; !ok || twice {
			t.Fatalf("line %q is there twice or has no number", l.text)
		}
		out[n] = r
	}
}

func verify(t *testing.T, path string, n int) {
	t.Helper()
	results := read(t, path)
	if len(results) != n {
		t.Fatalf("%d results, want %d", len(results), n)
	}
	for i, r := range results {
		status, failed := 200, r.Error != nil
		switch i % 10 {
		case 3, 9:
			status = 400
		case 6:
			status = 404
		default:
			ids := r.Response.Body.(map[string]any)["choices"].([]any)[0].(map[string]any)["token_ids"].([]any)
			if len(ids) != 1 || ids[0] != float64(i) || r.CustomID == nil || *r.CustomID != fmt.Sprint("c", i) {
				t.Errorf("line %d: %v", i, r)
			}
		}
		if r.Response.StatusCode != status || failed != (status != 200) {
			t.Errorf("line %d: status %d, error %v", i, r.Response.StatusCode, r.Error)
		}
	}
}

func write(t testing.TB, path, text string) string {
	t.Helper()
	check(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// pack compresses as the ending of path asks for.
func pack(t *testing.T, path, text string) []byte {
	t.Helper()
	compress := compressorFor(path)
	if compress == nil {
		return []byte(text)
	}
	var b bytes.Buffer
	check(t, compress(&b, []byte(text)))
	return b.Bytes()
}

func TestEveryLineHasOneResult(t *testing.T) {
	for _, ending := range []string{"", ".gz", ".zst"} {
		dir := t.TempDir()
		in := filepath.Join(dir, "in.jsonl"+ending)
		check(t, os.WriteFile(in, pack(t, in, lines(50)+"\n  \n"), 0o644))
		out := filepath.Join(dir, "out.jsonl"+ending)
		r, err := once(context.Background(), in, out, echoEngine{})
		check(t, err)
		if r.answered != 50 || r.failed != 15 {
			t.Errorf("%d answered, %d failed", r.answered, r.failed)
		}
		verify(t, out, 50)
		r, err = once(context.Background(), in, out, echoEngine{})
		check(t, err)
		if r.answered != 0 {
			t.Errorf("a second run answered %d lines again", r.answered)
		}
	}
}

// TestResumeFromEveryPrefix cuts an output anywhere, as a killed run may leave it.
func TestResumeFromEveryPrefix(t *testing.T) {
	const n = 12
	for _, ending := range []string{"", ".gz", ".zst"} {
		dir := t.TempDir()
		in := write(t, filepath.Join(dir, "in.jsonl"), lines(n))
		first := filepath.Join(dir, "first.jsonl")
		_, err := once(context.Background(), in, first, echoEngine{})
		check(t, err)
		text, err := os.ReadFile(first)
		check(t, err)
		out := filepath.Join(dir, "out.jsonl"+ending)
		var whole []byte // three flushes
		parts := strings.SplitAfter(string(text), "\n")
		for i := 0; i < len(parts)-1; i += 4 {
			whole = append(whole, pack(t, out, strings.Join(parts[i:i+4], ""))...)
		}
		step := 11
		if testing.Short() {
			step = 97
		}
		for cut := len(whole); cut >= 0; cut -= step {
			check(t, os.WriteFile(out, whole[:cut], 0o644))
			r, err := once(context.Background(), in, out, echoEngine{})
			if err != nil {
				t.Fatalf("%s cut at %d of %d: %v", ending, cut, len(whole), err)
			}
			verify(t, out, n)
			if cut == len(whole) && r.answered != 0 || ending == "" && r.answered != n-bytes.Count(whole[:cut], []byte("\n")) {
				t.Errorf("%s cut at %d: %d lines answered again", ending, cut, r.answered)
			}
		}
	}
}

func TestInterruptAndResume(t *testing.T) {
	for _, ending := range []string{"", ".gz"} {
		dir := t.TempDir()
		in := write(t, filepath.Join(dir, "in.jsonl"), lines(50))
		out := filepath.Join(dir, "out.jsonl"+ending)
		ctx, cancel := context.WithCancel(context.Background())
		block := make(chan struct{})
		go func() {
			for i := 0; i < 10; i++ {
				block <- struct{}{}
			}
			cancel()
		}()
		if _, err := once(ctx, in, out, echoEngine{block}); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if n := len(read(t, out)); n == 0 || n == 50 {
			t.Errorf("%d results after the interruption", n)
		}
		_, err := once(context.Background(), in, out, echoEngine{})
		check(t, err)
		verify(t, out, 50)
	}
}

func TestForeignFilesAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	in := write(t, filepath.Join(dir, "in.jsonl"), lines(20))
	texts := []string{"hello", "hello\n", "{}\n", lines(3), `{"id":"batch_req_1x","custom_id":"a","response":{},"error":null}` + "\n", `{"id":"batch_req_1"}` + "\n"}
	for _, text := range texts {
		for _, ending := range []string{"", ".gz", ".zst"} {
			out := filepath.Join(dir, "foreign"+ending)
			data := pack(t, out, text)
			check(t, os.WriteFile(out, data, 0o644))
			if _, err := once(context.Background(), in, out, echoEngine{}); err == nil {
				t.Errorf("%q%s was taken for an own output", text, ending)
			}
			if got, _ := os.ReadFile(out); !bytes.Equal(got, data) {
				t.Errorf("%q%s was changed", text, ending)
			}
		}
	}
	for _, text := range []string{"this is no gzip file at all\n", "secret", "no"} {
		for _, ending := range []string{".gz", ".zst"} {
			raw := write(t, filepath.Join(dir, "raw"+ending), text)
			if _, err := once(context.Background(), in, raw, echoEngine{}); err == nil {
				t.Errorf("%q%s, which is not compressed, was taken for an own output", text, ending)
			}
			if got, _ := os.ReadFile(raw); string(got) != text {
				t.Errorf("%q%s was changed", text, ending)
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	in := write(t, filepath.Join(dir, "in.jsonl"), lines(20))
	out := filepath.Join(dir, "out.jsonl")
	_, err := once(context.Background(), in, out, echoEngine{})
	check(t, err)
	other := write(t, filepath.Join(dir, "other.jsonl"), strings.ReplaceAll(lines(20), `"c2"`, `"d2"`))
	if _, err := once(context.Background(), other, out, echoEngine{}); err == nil || !strings.Contains(err.Error(), "another input") {
		t.Errorf("results of another input: %v", err)
	}
	shorter := write(t, filepath.Join(dir, "shorter.jsonl"), lines(10))
	if _, err := once(context.Background(), shorter, out, echoEngine{}); err == nil || !strings.Contains(err.Error(), "another input") {
		t.Errorf("results of a longer input: %v", err)
	}
	for _, pair := range [][2]string{{in, in}, {filepath.Join(dir, "nope"), out}, {dir, out}, {in, dir}} {
		if _, err := once(context.Background(), pair[0], pair[1], echoEngine{}); err == nil {
			t.Errorf("%v was accepted", pair)
		}
	}
	held, _, err := openOutput(out)
	check(t, err)
	defer held.Close()
	if _, err := once(context.Background(), in, out, echoEngine{}); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a file that is being written: %v", err)
	}
}

func TestBadLines(t *testing.T) {
	for text, words := range map[string]string{
		`[]`:                               "object, not []",
		`"a"`:                              "object",
		` null `:                           "object, not null",
		"\ufeff" + `{"custom_id":"a"}`:     "byte order mark",
		`{"custom_id":5}`:                  "custom_id",
		`{"method":"POST"}`:                "custom_id",
		`{"custom_id":"a"}`:                "method",
		`{"custom_id":"a","method":"GET"}`: "method",
		`{"custom_id":"a","method":"POST","url":"/v1/embeddings"}`:                         "url",
		`{"custom_id":"a","method":"POST","url":"/v1/completions"}`:                        "body",
		`{"custom_id":"a","method":"POST","url":"/v1/completions","body":[]}`:              "body",
		`{"custom_id":"` + strings.Repeat("a", 513) + `","method":"POST"}`:                 "custom_id",
		strings.Repeat(`{"a":`, 20000):                                                     "JSON",
		`{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":1}} {}`: "JSON",
	} {
		if r := understand(line{number: 1, text: []byte(text)}); r.err == nil || !strings.Contains(r.err.Message, words) {
			t.Errorf("%.60s: %v, want a word about %q", text, r.err, words)
		}
	}
	if r := understand(line{number: 1, tooLong: true}); r.err == nil {
		t.Error("a line that is too long was accepted")
	}
}

func TestLongLines(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "in"), "a\n"+strings.Repeat("x", maxLine+10)+"\nb")
	in, err := openInput(path)
	check(t, err)
	defer in.Close()
	var got []string
	for {
		l, err := in.next()
		if err == io.EOF {
			break
		}
		check(t, err)
		got = append(got, fmt.Sprintf("%d %.1s %v", l.number, l.text, l.tooLong))
	}
	if fmt.Sprint(got) != "[1 a false 2 x true 3 b false]" {
		t.Errorf("%v", got)
	}
}

func FuzzUnderstand(f *testing.F) {
	for _, seed := range strings.SplitAfter(lines(10), "\n") {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if r := understand(line{number: 1, text: text}); r.err == nil && (r.id == nil || len(r.body) == 0 || !json.Valid(text)) {
			t.Errorf("%q was understood", text)
		}
	})
}

// FuzzRecover wants no panic, no end behind the file, and only whole results in front of it.
func FuzzRecover(f *testing.F) {
	dir := f.TempDir()
	good := `{"id":"batch_req_7","custom_id":"a","response":{"status_code":200},"error":null}` + "\n"
	var packed bytes.Buffer
	w, err := zstd.NewWriter(&packed)
	check(f, err)
	_, err = w.Write([]byte(good))
	check(f, err)
	check(f, w.Close())
	f.Add([]byte(good), uint8(0))
	f.Add(packed.Bytes(), uint8(2))
	f.Fuzz(func(t *testing.T, data []byte, ending uint8) {
		path := filepath.Join(dir, "out"+[]string{"", ".gz", ".zst"}[ending%3])
		check(t, os.WriteFile(path, data, 0o644))
		file, err := os.Open(path)
		check(t, err)
		defer file.Close()
		_, end, err := recoverResults(file, int64(len(data)), path)
		if err == nil && (end < 0 || end > int64(len(data))) {
			t.Errorf("%q ends at %d", data, end)
		}
	})
}
