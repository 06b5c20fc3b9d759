package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// read returns a file of testdata, unpacked where its name ends in .zst.
func read(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(name, ".zst") {
		return data
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(256<<20))
	if err != nil {
		t.Fatal(err)
	}
	defer decoder.Close()
	if data, err = decoder.DecodeAll(data, nil); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return data
}

func mustLoad(t testing.TB, tokenizerJSON []byte) *Tokenizer {
	t.Helper()
	tok, err := Load(tokenizerJSON, nil)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

var demo = sync.OnceValues(func() (*Tokenizer, error) {
	data, err := os.ReadFile("testdata/demo-qwen35.json.zst")
	if err != nil {
		return nil, err
	}
	decoder, err := zstd.NewReader(nil)
	if err != nil {
		return nil, err
	}
	defer decoder.Close()
	if data, err = decoder.DecodeAll(data, nil); err != nil {
		return nil, err
	}
	return Load(data, nil)
})

func demoTokenizer(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := demo()
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// variants are the tokenizer.json files of the Rust goldens, by name: files as they
// are, or with the split pattern or ignore_merges changed.
var variants = []struct {
	name, file string
	change     func(string) string
}{
	{"qwen2", "qwen3.json.zst", nil},
	{"llama3", "qwen3.json.zst", withPattern(patternQwen2, patternLlama3)},
	{"qwen35", "qwen3.json.zst", withPattern(patternQwen2, patternQwen35)},
	{"gpt2", "qwen3.json.zst", byteLevelAlone},
	{"tekken", "tekken.json.zst", nil},
	{"tekkenMerges", "tekken.json.zst", func(s string) string {
		return replaceOnce(withPattern(patternTekken, patternLlama3)(s), `"ignore_merges": true`, `"ignore_merges": false`)
	}},
	{"demoQwen35", "demo-qwen35.json.zst", nil},
	{"demoNemotron", "demo-nemotron.json.zst", nil},
	{"flags", "flags.json.zst", nil},
}

func replaceOnce(s, old, new string) string {
	if strings.Count(s, old) != 1 {
		panic(fmt.Sprintf("%d times in the file: %s", strings.Count(s, old), old))
	}
	return strings.Replace(s, old, new, 1)
}

func withPattern(old, new string) func(string) string {
	quote := func(s string) string { return `"` + strings.ReplaceAll(s, `\`, `\\`) + `"` }
	return func(s string) string { return replaceOnce(s, quote(old), quote(new)) }
}

func byteLevelAlone(s string) string {
	start := strings.Index(s, `"pre_tokenizer"`)
	end := strings.Index(s, `"post_processor"`)
	return s[:start] + `"pre_tokenizer": {"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}, ` + s[end:]
}

type rustGolden struct {
	Name, Set string
	IDs       [][]int32
	Dec       []struct {
		IDs  []int32
		Skip bool
		Text string
	}
	Sets map[string][]string
}

// TestRust compares with the Rust library (tokenizers 0.22.2), special tokens added.
func TestRust(t *testing.T) {
	goldens := map[string]rustGolden{}
	for line := range bytes.Lines(read(t, "rust.jsonl.zst")) {
		var golden rustGolden
		if err := json.Unmarshal(line, &golden); err != nil {
			t.Fatal(err)
		}
		goldens[golden.Name] = golden
	}
	files := map[string]string{}
	for _, variant := range variants {
		t.Run(variant.name, func(t *testing.T) {
			if testing.Short() && !strings.HasPrefix(variant.file, "demo") {
				t.Skip("loads a file of 12 MB")
			}
			if files[variant.file] == "" {
				files[variant.file] = string(read(t, variant.file))
			}
			file := files[variant.file]
			if variant.change != nil {
				file = variant.change(file)
			}
			golden := goldens[variant.name]
			texts := goldens[""].Sets[golden.Set]
			if len(texts) == 0 || len(texts) != len(golden.IDs) || len(golden.Dec) == 0 {
				t.Fatalf("%d texts, %d results, %d decodings", len(texts), len(golden.IDs), len(golden.Dec))
			}
			checkRust(t, mustLoad(t, []byte(file)), texts, golden)
		})
	}
}

func checkRust(t *testing.T, tok *Tokenizer, texts []string, golden rustGolden) {
	for i, text := range texts {
		ids := tok.Encode(text, EncodeOptions{AddSpecial: true})
		if !slices.Equal(ids, golden.IDs[i]) {
			t.Errorf("text %d %+.200q:\n got %v\nwant %v", i, text, ids, golden.IDs[i])
		}
	}
	for i, c := range golden.Dec {
		if got := tok.Decode(c.IDs, c.Skip); got != c.Text {
			t.Errorf("decode %d %v skip %v:\n got %q\nwant %q", i, c.IDs, c.Skip, got, c.Text)
		}
		if got := streamed(tok, c.IDs, c.Skip); got != c.Text {
			t.Errorf("stream %d %v skip %v:\n got %q\nwant %q", i, c.IDs, c.Skip, got, c.Text)
		}
	}
}

// TestGoldenJS compares with another implementation, in JavaScript.
func TestGoldenJS(t *testing.T) {
	for _, name := range []string{"qwen3", "tekken"} {
		tok := mustLoad(t, read(t, name+".json.zst"))
		count := 0
		for line := range bytes.Lines(read(t, name+".golden.jsonl")) {
			var golden struct {
				Text, Decoded string
				IDs           []int32
			}
			if err := json.Unmarshal(line, &golden); err != nil {
				t.Fatal(err)
			}
			count++
			if ids := tok.Encode(golden.Text, EncodeOptions{}); !slices.Equal(ids, golden.IDs) {
				t.Errorf("%s %q: got %v, want %v", name, golden.Text, ids, golden.IDs)
			}
			if text := tok.Decode(golden.IDs, false); text != golden.Decoded {
				t.Errorf("%s decode %v: got %q, want %q", name, golden.IDs, text, golden.Decoded)
			}
		}
		if count != 62 {
			t.Errorf("%s: %d cases, want 62", name, count)
		}
	}
}

// TestGoldenLlamaCpp compares with llama.cpp's goldens for Qwen2, whose base
// vocabulary and pattern Qwen3 has.
func TestGoldenLlamaCpp(t *testing.T) {
	tok := mustLoad(t, read(t, "qwen3.json.zst"))
	texts := strings.Split(string(read(t, "qwen2.inp")), "\n__ggml_vocab_test__\n")
	results := strings.Split(string(read(t, "qwen2.out")), "\n")
	for i, text := range texts[:47] {
		want := strings.Fields(results[i])
		var got []string
		for _, id := range tok.Encode(text, EncodeOptions{}) {
			got = append(got, fmt.Sprint(id))
		}
		if !slices.Equal(got, want) {
			t.Errorf("case %d %q: got %v, want %v", i, text, got, want)
		}
	}
}

// TestClasses compares the class of every code point with the Rust library's.
func TestClasses(t *testing.T) {
	want := make([]class, len(classes))
	for line := range strings.Lines(string(read(t, "classes.txt.zst"))) {
		var first, last rune
		var c class
		if _, err := fmt.Sscanf(line, "%X %X %d", &first, &last, &c); err != nil {
			t.Fatal(err)
		}
		for ; first <= last; first++ {
			want[first] = c
		}
	}
	for r := range classes {
		if classes[r] != want[r] {
			t.Errorf("%U: class %b, want %b", r, classes[r], want[r])
		}
	}
}

func streamed(tok *Tokenizer, ids []int32, skip bool) string {
	var text strings.Builder
	stream := tok.NewStream(skip)
	for _, id := range ids {
		text.WriteString(stream.Push(id))
	}
	text.WriteString(stream.Flush())
	return text.String()
}
