package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"reprise/cmd/internal/cli"
	"reprise/cmd/internal/kl"
	"reprise/engine"
	"reprise/kernels"
	"reprise/kernels/cpu"
	"reprise/tokenizer"
)

const novel = "testdata/jane-eyre.txt"

// output runs a command and returns what it prints.
func output(t *testing.T, args ...string) string {
	t.Helper()
	return printed(t, func() error { return run(args) })
}

func printed(t *testing.T, f func() error) string {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = write
	text := make(chan string)
	go func() {
		all, _ := io.ReadAll(read)
		text <- string(all)
	}()
	err = f()
	os.Stdout = stdout
	write.Close()
	if err != nil {
		t.Fatal(err)
	}
	return <-text
}

// TestKL measures both demo models: the reference against itself gives exactly 0 at every position, another window the
// noise of another order of sums, an fp8 cache more than a bfloat16 one, and a state in nvfp4 more where it also carries
// the recurrence than where float16 does. The same command gives the same bytes.
func TestKL(t *testing.T) {
	for _, name := range []string{"demo-qwen35", "demo-nemotron"} {
		csv := filepath.Join(t.TempDir(), "kl.csv")
		args := []string{
			"kl", name, "--device", "cpu", "--text", novel, "--texts", "2", "--length", "70", "--split", "40", "--csv", csv, "--plot", filepath.Join(t.TempDir(), "kl.png"),
			"--setting", "window=16,24", "--setting", "kv=bfloat16,fp8",
			"--setting", "state=nvfp4 rounding=stochastic", "--setting", "state=float16 read=nvfp4 rounding=stochastic", "--json",
		}
		text := output(t, args...)
		if name == "demo-nemotron" && output(t, args...) != text {
			t.Errorf("two runs differ; the first:\n%s", text)
		}
		rows := map[string]kl.Summary{}
		for line := range strings.Lines(text) {
			var r kl.Summary
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Fatal(err)
			}
			if r.Texts != 2 || r.From == 2 && r.Positions != 2*39 || r.From == 41 && r.Positions != 2*30 || r.From != 2 && r.From != 41 {
				t.Errorf("%s: %+v", name, r)
			}
			if r.From == 41 {
				rows[r.Setting] = r
			}
		}
		same, window, half, fp8 := rows["window=16"], rows["window=24"], rows["kv=bfloat16"], rows["kv=fp8"]
		if same.Worst != 0 || same.SameTop != 1 {
			t.Errorf("%s: the reference against itself: %+v", name, same)
		}
		// Sums in another order move float32 logits by about 1e-6 of their size; their divergence goes with the square.
		if !(window.Mean > 0 && window.Mean < 1e-10) {
			t.Errorf("%s: another window: %+v", name, window)
		}
		if !(half.Mean > window.Mean && fp8.Mean > 4*half.Mean && fp8.Mean < 1e-2 && fp8.Max >= fp8.Median) {
			t.Errorf("%s: bfloat16 %+v, fp8 %+v", name, half, fp8)
		}
		shared, two := rows["state=nvfp4 rounding=stochastic"], rows["state=float16 read=nvfp4 rounding=stochastic"]
		if !(two.Mean > fp8.Mean/1000 && shared.Mean > 1.5*two.Mean && shared.NotFinite == 0) {
			t.Errorf("%s: shared nvfp4 %+v, two precisions %+v", name, shared, two)
		}
		lines, err := os.ReadFile(csv)
		if n := strings.Count(string(lines), "\n"); err != nil || n != 1+6*69 {
			t.Errorf("%s: %d lines of CSV, %v", name, n, err)
		}
	}
}

// demoModel is demo-qwen35, open until the test ends.
func demoModel(t *testing.T) (cli.Model, *cli.Loaded) {
	t.Helper()
	m := cli.Model{}
	m.Register(cli.NewFlags("test", ""))
	m.Model = "demo-qwen35"
	loaded, err := m.Prepare(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { loaded.Close() })
	return m, loaded
}

// TestComparisonIsDirect repeats a comparison by keeping all logits and summing p ln(p/q) as it is written.
func TestComparisonIsDirect(t *testing.T) {
	_, loaded := demoModel(t)
	text, err := readText(novel)
	if err != nil {
		t.Fatal(err)
	}
	ids := loaded.Tokenizer.Encode(text, tokenizer.EncodeOptions{})
	x := engine.Texts{IDs: [][]int32{ids[:40], ids[1000:1033]}, Prompt: 4, Tokens: 3}
	series := kl.NewSeries("", 2, 40)
	options := []engine.Options{{}, {KVDType: kernels.F8E4M3}}
	c := &comparison{series: []*kl.Series{series}, progress: cli.NewProgress("", 1, 0)}
	var direct [2]map[[2]int][]float32
	forced := openForced(t, loaded, x)
	for i, o := range options {
		c.runs = append(c.runs, openRun(t, forced, o))
		direct[i] = readAll(t, openRun(t, forced, o))
	}
	c.reference = kl.NewReference(6, c.runs[0].Vocab())
	if err := c.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(direct[0]) != 36+29 {
		t.Errorf("%d rows", len(direct[0]))
	}
	want := kl.NewSeries("", 2, 40)
	for at, p := range direct[0] {
		want.Set(at[0], at[1], directKL(p, direct[1][at]), true)
	}
	for position := 5; position <= 40; position++ {
		got, _, most := series.At(position)
		mean, _, mostWant := want.At(position)
		// Both sum 4,096 terms in float64, whose cancellation leaves 1e-16 of the terms' sum: 1e-12 and less.
		if !(math.Abs(got-mean) < 1e-12 && math.Abs(most-mostWant) < 1e-12 && mean > 1e-9) {
			t.Errorf("behind %d tokens: mean %g and maximum %g, directly %g and %g", position, got, most, mean, mostWant)
		}
	}
}

func directKL(p, q []float32) float64 {
	softmax := func(logits []float32) []float64 {
		out, sum := make([]float64, len(logits)), 0.0
		for i, v := range logits {
			out[i] = math.Exp(float64(v))
			sum += out[i]
		}
		for i := range out {
			out[i] /= sum
		}
		return out
	}
	a, b, sum := softmax(p), softmax(q), 0.0
	for i := range a {
		sum += a[i] * math.Log(a[i]/b[i])
	}
	return sum
}

func openForced(t *testing.T, l *cli.Loaded, x engine.Texts) *engine.Forced {
	t.Helper()
	dev, err := cpu.Open(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := engine.OpenForced(dev, l.Source, x, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		dev.Close()
		f.Close()
	})
	return f
}

func openRun(t *testing.T, f *engine.Forced, o engine.Options) *engine.ForcedRun {
	t.Helper()
	r, err := f.Run(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func readAll(t *testing.T, r *engine.ForcedRun) map[[2]int][]float32 {
	t.Helper()
	out := map[[2]int][]float32{}
	for r.Launch() {
		rows, err := r.Collect()
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			out[[2]int{row.Text, row.Read}] = append([]float32(nil), row.Logits...)
		}
	}
	return out
}

func TestKLRefuses(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.txt")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"no text":              {},
		"missing file":         {"--text", "testdata/none.txt"},
		"empty file":           {"--text", empty},
		"too long":             {"--text", novel, "--length", "100000"},
		"unknown word":         {"--text", novel, "--setting", "cache=fp8"},
		"unknown value":        {"--text", novel, "--setting", "kv=fp4"},
		"window of no size":    {"--text", novel, "--setting", "window=0"},
		"list as reference":    {"--text", novel, "--setting", "kv=fp8", "--reference", "window=8,16"},
		"prompt as long":       {"--text", novel, "--length", "8", "--prompt-len", "8"},
		"window below T":       {"--text", novel, "--setting", "window=2", "--tokens-per-step", "3", "--texts", "1", "--length", "20"},
		"no tokens per step":   {"--text", novel, "--tokens-per-step", "0"},
		"nine tokens per step": {"--text", novel, "--tokens-per-step", "9"},
		"split of nothing":     {"--text", novel, "--split", "0"},
		"negative window":      {"--text", novel, "--setting", "window=-1"},
		"copy of no size":      {"--text", novel, "--setting", "state=fp8 read=fp8"},
		"twice by meaning":     {"--text", novel, "--setting", "window=16", "--setting", "window=auto", "--texts", "1", "--length", "20"},
		"twice by a flag":      {"--text", novel, "--setting", "state=fp8,auto", "--mamba-ssm-cache-dtype", "fp8", "--setting", "rounding=nearest", "--texts", "1", "--length", "20"},
		"no such folder":       {"--text", novel, "--csv", filepath.Join(empty, "none", "a.csv")},
		"folder as picture":    {"--text", novel, "--plot", filepath.Dir(empty)},
		"neither":              {"--text", novel, "--csv", filepath.Dir(empty), "--plot", filepath.Join(empty, "a.png")},
		"one file for both":    {"--text", novel, "--csv", "a", "--plot", "./a"},
		"drafts":               {"--text", novel, "--speculative-config", `{"method":"ngram","num_speculative_tokens":2}`},
		"pages":                {"--text", novel, "--num-kv-blocks", "9"},
		"states":               {"--text", novel, "--num-state-blocks", "9"},
		"sequences":            {"--text", novel, "--max-num-seqs", "9"},
		"longer than allowed":  {"--text", novel, "--max-model-len", "19", "--length", "20"},
	} {
		if err := klCommand(append([]string{"demo-nemotron", "--device", "cpu"}, args...)); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWritable: a check leaves nothing behind, and what was there as it was.
func TestWritable(t *testing.T) {
	dir := t.TempDir()
	fresh, old, link := filepath.Join(dir, "fresh"), filepath.Join(dir, "old"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(old, []byte("text"), 0o600), os.Symlink(old, link)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(writable("csv", fresh), writable("csv", old), writable("csv", "")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(fresh); err == nil {
		t.Error("the check leaves a file behind")
	}
	if text, err := os.ReadFile(old); string(text) != "text" {
		t.Errorf("the check changed a file: %q, %v", text, err)
	}
	if !sameFile(old, link) || !sameFile(fresh, dir+"/./fresh") || sameFile(old, fresh) || sameFile("", "") {
		t.Error("files are confused")
	}
}

// TestKLInterrupted: the run ends at the next step with one line, and does not wait for loading.
func TestKLInterrupted(t *testing.T) {
	m, loaded := demoModel(t)
	run := openRun(t, openForced(t, loaded, engine.Texts{IDs: [][]int32{{1, 2, 3, 4}}, Prompt: 1, Tokens: 1}), engine.Options{})
	c := &comparison{runs: []*engine.ForcedRun{run}, reference: kl.NewReference(1, run.Vocab()), progress: cli.NewProgress("", 1, 0)}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.run(ctx); err == nil || !strings.Contains(err.Error(), "interrupted") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	f := klFlags{model: m, files: []string{novel}, settings: []string{"window=16"}, reference: "window=8", texts: 1, length: 8, prompt: 1, tokens: 1}
	if err := f.run(ctx); !errors.Is(err, errInterrupted) {
		t.Errorf("while loading: %v", err)
	}
}
