package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	checkpoints "reprise/internal/golden"
)

const repository = "../.."

// TestGPUScript: what scripts/gpu.sh would run is real, although nothing here can run it. Programs take their flags and model
// and end where they open the GPU, or the connection to a server that is not there; tests and their flags exist; every test
// that needs a GPU is among them; and so is what docs/benchmarks.md names.
func TestGPUScript(t *testing.T) {
	commands := dryRun(t, "all")
	tests := map[string]testSources{"cuda.test": readTests(t, "kernels/cuda"), "engine.test": readTests(t, "engine")}
	for _, name := range []string{"gpu.sh", "serving.sh", "sanitize.sh"} { // what is read here, go test knows to depend on
		text, err := os.ReadFile(filepath.Join(repository, "scripts", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(text), -1) {
			if name == "sanitize.sh" && !slices.Contains(slices.Concat(tests["cuda.test"].tests, tests["engine.test"].tests), word) {
				t.Errorf("%s names %s, which is no test", name, word)
			}
		}
	}
	run := map[string][]string{} // by program, what -test.run and -test.bench choose
	for _, words := range commands {
		switch program := filepath.Base(words[0]); program {
		case "bench", "serve":
			checkProgram(t, words)
		case "cuda.test", "engine.test":
			run[program] = append(run[program], tests[program].check(t, words)...)
		case "sanitize.sh":
			if _, err := os.Stat(filepath.Join(repository, words[0])); err != nil {
				t.Error(err)
			}
		default:
			t.Errorf("%v: a program that this test does not know", words)
		}
	}
	for program, s := range tests {
		for _, name := range s.gpu {
			if !slices.Contains(run[program], name) {
				t.Errorf("no part runs %s of %s", name, program)
			}
		}
	}
	text := joined(commands)
	for _, name := range checkpoints.Names() {
		if !strings.Contains(text, "TestCUDAFloat32$/^"+name+"$") {
			t.Errorf("check leaves the golden %s out", name)
		}
	}
	checkParts(t)
	checkDocs(t, text, slices.Concat(run["cuda.test"], run["engine.test"]))
}

// TestGPUScriptRefuses: no figures of programs whose tests have not passed, none of others than those that passed, and no part
// that there is not. The programs are stand-ins.
func TestGPUScriptRefuses(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process for each proof of check, several times; make test does")
	}
	programs, out := t.TempDir(), t.TempDir()
	script := func(want string, args ...string) {
		t.Helper()
		text, err := gpuScript(programs, args...)
		if fails := !strings.Contains(want, ": ok"); fails != (err != nil) || !strings.Contains(text, want) {
			t.Errorf("%v: %v, %q, want %q", args, err, text, want)
		}
	}
	stand := func(name, does string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(programs, name), []byte("#!/bin/sh\n"+does+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	script("usage: gpu.sh")
	script("nosuch is no part", "check,nosuch", out)
	script("first: make cuda cuda-test", "check", out)
	const passes, refused = "echo '--- PASS: TestIt (0.00s)\n    --- PASS: TestIt/too (0.00s)'", "no figures: the tests of these programs have not passed"
	stand("libcublasLt.so.13", "") // so that nobody searches for one
	stand("bench", "echo figures")
	stand("serve", "")
	stand("cuda.test", passes)
	stand("engine.test", passes)
	script(refused, "decode", out)
	script("check: ok, 0 of ", "check,decode", out)
	script("decode: ok, 0 of 6 failed", "decode", out)
	stand("engine.test", passes+"; true")
	script(refused, "decode", out) // the programs are others
	for _, does := range []string{
		"echo '--- FAIL: TestIt (0.00s)'; exit 1", "echo 'testing: warning: no tests to run\nPASS'",
		"echo '--- PASS: TestIt (0.00s)'", passes + "; echo 'it_test.go:1: no GPU: none'",
	} {
		stand("engine.test", does)
		script("check: FAILED", "check", out)
		script(refused, "decode", out)
	}
	stand("engine.test", passes)
	stand("bench", "exit 3")
	script("check: ok, 0 of ", "check", out)
	script("decode: FAILED, 6 of 6 failed", "decode", out)
}

// gpuScript runs scripts/gpu.sh on programs in a folder.
func gpuScript(programs string, args ...string) (string, error) {
	c := exec.Command("scripts/gpu.sh", args...)
	c.Dir, c.Env = repository, append(os.Environ(), "PROGRAMS="+programs, "PORT=1", "LD_LIBRARY_PATH="+programs)
	out, err := c.CombinedOutput()
	return string(out), err
}

// dryRun is the commands of parts, word by word.
func dryRun(t *testing.T, parts string) (commands [][]string) {
	t.Helper()
	out, err := gpuScript("bin", "-n", parts, t.TempDir())
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(out) {
		commands = append(commands, shellWords(line))
	}
	if len(commands) < 50 {
		t.Fatalf("%d commands: the test shows nothing", len(commands))
	}
	return commands
}

// shellWords undoes bash's printf %q of plain text.
func shellWords(line string) (words []string) {
	word, quoted := "", false
	for _, r := range strings.TrimSuffix(line, "\n") {
		switch {
		case !quoted && r == '\\':
			quoted = true
		case !quoted && r == ' ':
			words, word = append(words, word), ""
		default:
			word, quoted = word+string(r), false
		}
	}
	if word != "" {
		words = append(words, word)
	}
	return words
}

func joined(commands [][]string) (text string) {
	for _, words := range commands {
		text += strings.Join(words, " ") + "\n"
	}
	return text
}

// checkProgram runs a command up to where it needs a GPU or a server.
func checkProgram(t *testing.T, words []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, filepath.Join(bin, filepath.Base(words[0])), words[1:]...)
	c.Dir = repository
	out, err := c.CombinedOutput()
	want := "--device cuda: this binary was built without CUDA"
	if words[1] == "serve" {
		want = "connection refused"
	}
	if err == nil || !strings.Contains(string(out), want) {
		t.Errorf("%v: %v, %q, want an error with %q", words, err, out, want)
	}
}

// testSources is what a package's tests declare.
type testSources struct{ tests, benchmarks, gpu, flags []string }

func readTests(t *testing.T, dir string) (s testSources) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(repository, dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	function, flag := regexp.MustCompile(`(?m)^func (Test|Benchmark)(\w+)\(`), regexp.MustCompile(`\bflags?\.\w+\("([\w.]+)"`)
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range function.FindAllStringSubmatch(string(text), -1) {
			if m[1] == "Benchmark" {
				s.benchmarks = append(s.benchmarks, m[1]+m[2])
			} else {
				s.tests = append(s.tests, m[1]+m[2])
			}
			if strings.HasPrefix(string(text), "//go:build cuda") {
				s.gpu = append(s.gpu, m[1]+m[2])
			}
		}
		for _, m := range flag.FindAllStringSubmatch(string(text), -1) {
			s.flags = append(s.flags, m[1])
		}
	}
	return s
}

// check requires that a test program would take a command's flags and find something to run; it returns what.
func (s testSources) check(t *testing.T, words []string) (chosen []string) {
	t.Helper()
	given := map[string]string{"test.run": ".", "test.bench": "^$", "test.skip": "^$"}
	for i, word := range words[1:] {
		name, dashed := strings.CutPrefix(word, "-")
		if !dashed {
			continue
		}
		switch name {
		case "test.run", "test.bench", "test.skip":
			given[name] = strings.Split(words[i+2], "/")[0]
		case "test.v", "test.benchtime":
		default:
			if !slices.Contains(s.flags, name) {
				t.Errorf("%v: its tests have no flag -%s", words, name)
			}
		}
	}
	chosen = slices.Concat(matching(s.tests, given["test.run"]), matching(s.benchmarks, given["test.bench"]))
	skipped := matching(chosen, given["test.skip"])
	chosen = slices.DeleteFunc(chosen, func(name string) bool { return slices.Contains(skipped, name) })
	if len(chosen) == 0 {
		t.Errorf("%v: nothing to run", words)
	}
	return chosen
}

func matching(names []string, pattern string) []string {
	p := regexp.MustCompile(pattern)
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !p.MatchString(name) })
}

// checkParts requires that docs/operations.md names every part.
func checkParts(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "docs/operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := gpuScript("bin", "--list")
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	for line := range strings.Lines(list) {
		if part := strings.Fields(line)[0]; !strings.Contains(string(text), "`"+part+"`") {
			t.Errorf("docs/operations.md does not name the part %s", part)
		}
	}
}

// checkDocs requires that tests and flags which docs/benchmarks.md names for an H200 are run.
func checkDocs(t *testing.T, commands string, run []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "docs/benchmarks.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## NVIDIA H200\n")
	section, _, _ = strings.Cut(section, "\n## ")
	flags, tests := regexp.MustCompile(`[ (\x60]--?([a-z][a-z.-]+)`).FindAllStringSubmatch(section, -1), regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(section, -1)
	if !found || len(flags) < 20 || len(tests) < 10 {
		t.Fatalf("%d flags and %d tests: the test shows nothing", len(flags), len(tests))
	}
	for _, name := range tests {
		if !slices.Contains(run, name) {
			t.Errorf("docs/benchmarks.md names %s, which no part runs", name)
		}
	}
	mentioned := []string{"max-step-ratio", "gpu-memory-utilization", "replayssm-buffer-len", "run"} // defaults, and a test that needs no GPU
	for _, m := range flags {
		if !slices.Contains(mentioned, m[1]) && !regexp.MustCompile(`-`+regexp.QuoteMeta(m[1])+`\b`).MatchString(commands) {
			t.Errorf("docs/benchmarks.md names the flag %s, which no command has", m[0])
		}
	}
	for _, m := range regexp.MustCompile(`-test\.bench '?([\w/.*]+)`).FindAllStringSubmatch(section, -1) {
		if !strings.Contains(commands, "-test.bench "+m[1]+" ") {
			t.Errorf("docs/benchmarks.md names the benchmark %s, which no command runs", m[1])
		}
	}
}
