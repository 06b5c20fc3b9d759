package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestKilledBatch: a batch of 1,000 lines whose process is killed twice has exactly one result for each line in the end,
// the same as of a run that nobody disturbed.
func TestKilledBatch(t *testing.T) {
	for _, ending := range []string{".jsonl", ".jsonl.gz", ".jsonl.zst"} {
		t.Run(ending, func(t *testing.T) {
			if testing.Short() && ending == ".jsonl.gz" {
				t.Skip("one compressed format is enough")
			}
			killedBatch(t, ending)
		})
	}
}

func killedBatch(t *testing.T, ending string) {
	lines := 1000
	if testing.Short() || racing {
		lines = 200
	}
	dir := t.TempDir()
	in := filepath.Join(dir, "in.jsonl")
	if err := os.WriteFile(in, batch(lines), 0o644); err != nil {
		t.Fatal(err)
	}
	model := soakModel(t)
	args := func(out string) []string { return append([]string{"-i", in, "-o", filepath.Join(dir, out)}, model...) }
	quiet := start(t, "generate", args("quiet.jsonl")...)
	if code := quiet.end(5 * time.Minute); code != 0 {
		t.Fatalf("exit code %d: %s", code, quiet.stderr.String())
	}
	out := "out" + ending
	for _, share := range []int{4, 2} { // killed with so much of the output
		whole, err := os.Stat(filepath.Join(dir, "quiet.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		killAt(t, args(out), filepath.Join(dir, out), whole.Size()/int64(share), ending != ".jsonl")
	}
	last := start(t, "generate", args(out)...)
	if code := last.end(5 * time.Minute); code != 0 {
		t.Fatalf("exit code %d: %s", code, last.stderr.String())
	}
	finished := read(t, filepath.Join(dir, out))
	again := start(t, "generate", args(out)...)
	if code := again.end(time.Minute); code != 0 || !bytes.Equal(read(t, filepath.Join(dir, out)), finished) {
		t.Errorf("a finished batch run again: exit code %d, %s", code, again.stderr.String())
	}
	want := results(t, read(t, filepath.Join(dir, "quiet.jsonl")))
	got := results(t, unpack(t, filepath.Join(dir, out)))
	if len(want) != lines || len(got) != lines {
		t.Fatalf("%d and %d results for %d lines", len(want), len(got), lines)
	}
	for id, text := range want {
		if got[id] != text {
			t.Errorf("line %s: %s, quietly %s", id, got[id], text)
		}
	}
}

// killAt runs a batch and kills it when its output has some bytes; a compressed one counts five times, and at least once
// something was written. Where the machine let it end first, it begins again from the output that there was.
func killAt(t *testing.T, args []string, path string, size int64, compressed bool) {
	t.Helper()
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for range 10 {
		p := start(t, "generate", args...)
		if killed(t, p, path, size, compressed) {
			return
		}
		if err := os.WriteFile(path, before, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("it always ended before it could be killed")
}

// killed is false where the process ended by itself.
func killed(t *testing.T, p *program, path string, size int64, compressed bool) bool {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(2 * time.Millisecond) {
		select {
		case <-p.done:
			return false
		default:
		}
		info, err := os.Stat(path)
		if err == nil && (info.Size() >= size || compressed && 5*info.Size() >= size) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no output: %s", p.stderr.String())
		}
	}
	_ = p.command.Process.Kill() // it may just have ended
	<-p.done
	return p.command.ProcessState.ExitCode() < 0
}

// batch is an input of so many lines, a few of them with faults.
func batch(lines int) []byte {
	var b bytes.Buffer
	for i := range lines {
		switch {
		case i%97 == 5:
			fmt.Fprintf(&b, "{\"custom_id\":\"line-%d\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"x\",\"temperature\":-1}}\n", i)
		case i%2 == 0:
			fmt.Fprintf(&b, "{\"custom_id\":\"line-%d\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"once upon %d times\",\"max_tokens\":12,\"temperature\":0,\"ignore_eos\":true}}\n", i, i)
		default:
			fmt.Fprintf(&b, "{\"custom_id\":\"line-%d\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{\"messages\":[{\"role\":\"user\",\"content\":\"tell me %d\"}],\"max_tokens\":6,\"seed\":%d}}\n", i, i, i)
		}
	}
	return b.Bytes()
}

// results are the answers by custom_id; none may be there twice.
func results(t *testing.T, text []byte) map[string]string {
	t.Helper()
	out := map[string]string{}
	for line := range strings.Lines(string(text)) {
		var r struct {
			CustomID string `json:"custom_id"`
			Response struct {
				StatusCode int             `json:"status_code"`
				Body       json.RawMessage `json:"body"`
			} `json:"response"`
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		said := choices{}
		err := said.add(string(r.Response.Body))
		if _, twice := out[r.CustomID]; twice || (err != nil) != (r.Response.StatusCode != 200) {
			t.Errorf("line %q twice, or %d with %v", r.CustomID, r.Response.StatusCode, err)
		}
		out[r.CustomID] = fmt.Sprint(r.Response.StatusCode, said, err)
	}
	return out
}
