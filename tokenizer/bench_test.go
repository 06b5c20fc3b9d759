package tokenizer

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
)

// benchTexts are source code, a mixture of scripts, Chinese without spaces, and one
// piece of a megabyte.
func benchTexts(b *testing.B, tok *Tokenizer) map[string]string {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		b.Fatal("no source files", err)
	}
	var code strings.Builder
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		code.Write(data)
	}
	return map[string]string{
		"code":  strings.Repeat(code.String(), 4),
		"mixed": strings.Repeat(string(read(b, "qwen2.inp")), 100),
		"han":   hanText(tok, 300_000),
		"run":   strings.Repeat("ab", 500_000),
	}
}

// hanText joins random Chinese tokens to sentences, low ids (the frequent ones) more
// often, as real text has them.
func hanText(tok *Tokenizer, size int) string {
	var words []string
	for id := range int32(tok.VocabSize()) {
		word := string(tok.TokenBytes(id))
		if strings.IndexFunc(word, func(r rune) bool { return !unicode.Is(unicode.Han, r) }) < 0 {
			words = append(words, word)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	var text strings.Builder
	for text.Len() < size {
		text.WriteString(words[int(math.Pow(random.Float64(), 3)*float64(len(words)))])
		if random.IntN(8) == 0 {
			text.WriteString("，")
		}
	}
	return text.String()
}

func BenchmarkEncode(b *testing.B) {
	data := read(b, "qwen3.json.zst")
	tok := mustLoad(b, data)
	for name, text := range benchTexts(b, tok) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				clear(tok.cache[:])
				tok.Encode(text, EncodeOptions{})
			}
		})
		b.Run(name+"/warm", func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				tok.Encode(text, EncodeOptions{})
			}
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	for _, name := range []string{"qwen3", "tekken", "demo-qwen35"} {
		data := read(b, name+".json.zst")
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				mustLoad(b, data)
			}
		})
	}
}

func BenchmarkStream(b *testing.B) {
	tok := demoTokenizer(b)
	ids := tok.Encode(strings.Repeat("Once upon a time, 我们 went to the café. ", 100), EncodeOptions{})
	b.ReportAllocs()
	for b.Loop() {
		stream := tok.NewStream(true)
		for _, id := range ids {
			stream.Push(id)
		}
		stream.Flush()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(ids)), "ns/token")
}

func BenchmarkSplit(b *testing.B) {
	text := strings.Repeat(string(read(b, "qwen2.inp")), 100)
	for name, scan := range map[string]scanner{"qwen2": scanQwen2, "qwen35": scanQwen35, "llama3": scanLlama3, "tekken": scanTekken, "gpt2": scanGPT2} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				for at := 0; at < len(text); {
					at = scan(text, at)
				}
			}
		})
	}
}
