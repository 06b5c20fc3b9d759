// Package script runs text scripts against a state machine and compares what it answers with what the script expects.
//
// A script is a sequence of cases separated by blank lines: command lines, a line "----", and the expected output up
// to the next blank line. Lines that start with # are comments. Rewriting a script keeps everything but the outputs, so
// that a change of behaviour is reviewed as a diff.
//
// Not here: any command; each package's tests bring their own.
package script

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Command is one line of a script: a name, plain arguments and key=value arguments.
type Command struct {
	Name   string
	Args   []string
	Values map[string]string
}

// Int is the value of a key=value argument, or def when absent.
func (c Command) Int(key string, def int) int {
	v, ok := c.Values[key]
	if !ok {
		return def
	}
	return atoi(v)
}

// Arg is plain argument i as a number.
func (c Command) Arg(i int) int {
	if i >= len(c.Args) {
		panic(fmt.Sprintf("command %s wants argument %d", c.Name, i+1))
	}
	return atoi(c.Args[i])
}

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(fmt.Sprintf("not a number: %q", s))
	}
	return n
}

// Run executes the scripts that match pattern. start makes a fresh machine for a file and returns its command handler;
// outputs end in a newline or are empty. With update the files are rewritten instead of compared.
func Run(t *testing.T, pattern string, update bool, start func(t *testing.T) func(Command) string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts match %s: %v", pattern, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			runFile(t, file, update, start(t))
		})
	}
}

func runFile(t *testing.T, file string, update bool, exec func(Command) string) {
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := Replay(want, exec)
	if update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (go test -update rewrites it):\n%s", file, firstDifference(want, got))
	}
}

// Replay executes a script and returns it with the actual outputs. A case that has none written down but answers
// something gets one, so that it cannot go unnoticed.
func Replay(script []byte, exec func(Command) string) []byte {
	var out, answer strings.Builder
	skipping := false // over an expected output
	flush := func(always bool) {
		if always || answer.Len() > 0 {
			out.WriteString("----\n" + answer.String())
		}
		answer.Reset()
	}
	sc := bufio.NewScanner(bytes.NewReader(script))
	for sc.Scan() {
		line := sc.Text()
		switch {
		case strings.TrimSpace(line) == "":
			skipping = false
			flush(false)
		case skipping:
			continue
		case line == "----":
			skipping = true
			flush(true)
			continue
		case !strings.HasPrefix(line, "#"):
			answer.WriteString(exec(parse(line)))
		}
		out.WriteString(line + "\n")
	}
	flush(false)
	return []byte(out.String())
}

func parse(line string) Command {
	fields := strings.Fields(line)
	c := Command{Name: fields[0], Values: map[string]string{}}
	for _, f := range fields[1:] {
		if key, value, ok := strings.Cut(f, "="); ok {
			c.Values[key] = value
		} else {
			c.Args = append(c.Args, f)
		}
	}
	return c
}

func firstDifference(want, got []byte) string {
	w, g := strings.Split(string(want), "\n"), strings.Split(string(got), "\n")
	for i := 0; i < max(len(w), len(g)); i++ {
		a, b := at(w, i), at(g, i)
		if a != b {
			return fmt.Sprintf("line %d\n want %q\n got  %q", i+1, a, b)
		}
	}
	return ""
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(end)"
}
