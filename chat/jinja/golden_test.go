package jinja

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

// readCompressed returns the content of a zstd file in testdata.
func readCompressed(t testing.TB, name string) []byte {
	t.Helper()
	packed, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	dec, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dec.Close()
	data, err := dec.DecodeAll(packed, nil)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

type goldenCase struct {
	Template string          `json:"template"`
	Case     string          `json:"case"`
	Source   string          `json:"source"`
	Args     json.RawMessage `json:"args"`
	Rendered string          `json:"rendered"`
	Error    bool            `json:"error"`
}

func readCases(t testing.TB, name string) []goldenCase {
	t.Helper()
	var cases []goldenCase
	lines := bufio.NewScanner(bytes.NewReader(readCompressed(t, name)))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c goldenCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	return cases
}

func decodeVars(t testing.TB, raw []byte) map[string]Value {
	t.Helper()
	v, err := DecodeJSON(raw)
	if err != nil {
		t.Fatal(err)
	}
	vars := map[string]Value{}
	for i := range v.(*Dict).Len() {
		key, value := v.(*Dict).Entry(i)
		vars[string(key.(String))] = value
	}
	return vars
}

// oracleTime is the clock of testdata/oracle.py.
func oracleTime() time.Time { return time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC) }

func renderCase(source string, vars map[string]Value) (string, error) {
	tmpl, err := Parse(source, Limits{})
	if err != nil {
		return "", err
	}
	return tmpl.Render(vars, oracleTime)
}

func checkCase(t *testing.T, c goldenCase, got string, err error) {
	t.Helper()
	switch {
	case c.Error && err == nil:
		t.Errorf("rendered %q, want an error", got)
	case !c.Error && err != nil:
		t.Errorf("error %v, want %q", err, c.Rendered)
	case !c.Error && got != c.Rendered:
		t.Errorf("rendered\n%q, want\n%q", got, c.Rendered)
	}
}

// TestTemplates renders ten published chat templates as jinja2 does.
func TestTemplates(t *testing.T) {
	var sources map[string]string
	if err := json.Unmarshal(readCompressed(t, "templates.json.zst"), &sources); err != nil {
		t.Fatal(err)
	}
	cases := readCases(t, "renders.jsonl.zst")
	if len(cases) != 108+150 {
		t.Fatalf("%d cases, want 258", len(cases))
	}
	for _, c := range cases {
		t.Run(c.Template+"/"+c.Case, func(t *testing.T) {
			got, err := renderCase(sources[c.Template], decodeVars(t, c.Args))
			checkCase(t, c, got, err)
		})
	}
}

// TestSnippets compares small templates with jinja2: same text, or both fail.
func TestSnippets(t *testing.T) { testSources(t, "snippets.jsonl.zst", 300) }

// TestExpressions does so for random expressions.
func TestExpressions(t *testing.T) { testSources(t, "expressions.jsonl.zst", 2000) }

func testSources(t *testing.T, file string, atLeast int) {
	cases := readCases(t, file)
	if len(cases)-1 < atLeast {
		t.Fatalf("only %d cases", len(cases))
	}
	args := cases[0].Args
	for _, c := range cases[1:] {
		t.Run("", func(t *testing.T) {
			got, err := renderCase(c.Source, decodeVars(t, args))
			checkCase(t, c, got, err)
			if t.Failed() {
				t.Logf("source %q", c.Source)
			}
		})
	}
}
