package tokenizer

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

func TestEncodeBrokenUTF8(t *testing.T) {
	tok := demoTokenizer(t)
	got := tok.Decode(tok.Encode("a\xffb\xe4\xb8", EncodeOptions{}), false)
	if got != "a\ufffdb\ufffd\ufffd" {
		t.Errorf("got %q", got)
	}
}

func TestMaxTokens(t *testing.T) {
	tok := demoTokenizer(t)
	for _, text := range []string{strings.Repeat("some words ", 1000), strings.Repeat("a", 100_000), strings.Repeat("<think>", 500)} {
		all := tok.Encode(text, EncodeOptions{})
		for _, limit := range []int{1, 7, 100} {
			part := tok.Encode(text, EncodeOptions{MaxTokens: limit})
			if len(part) <= limit || len(part) > 50*limit+50 {
				t.Errorf("limit %d of %d: %d ids", limit, len(all), len(part))
			}
		}
		for _, limit := range []int{len(all), len(all) + 1} {
			if got := tok.Encode(text, EncodeOptions{MaxTokens: limit}); !slices.Equal(got, all) {
				t.Errorf("limit %d of %d: %d ids", limit, len(all), len(got))
			}
		}
	}
}

// TestEncodeMemory holds Encode to the memory it promises, on ordinary text and on one
// piece.
func TestEncodeMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("encodes megabytes")
	}
	tok := demoTokenizer(t)
	for _, c := range []struct {
		unit string
		most uint64 // bytes allocated in all for a byte of text, growing included
	}{{"The quick brown fox, it's said, jumped. ", 16}, {"ab", 250}} {
		text := strings.Repeat(c.unit, 4<<20/len(c.unit))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		tok.Encode(text, EncodeOptions{})
		runtime.ReadMemStats(&after)
		if each := (after.TotalAlloc - before.TotalAlloc) / uint64(len(text)); each > c.most {
			t.Errorf("%q: %d bytes allocated a byte, want at most %d", c.unit, each, c.most)
		}
	}
}

func FuzzEncodeDecode(f *testing.F) {
	f.Add("Hello <|im_start|>user\nI've 12 e\u0301 中文 \xff")
	f.Add("a" + strings.Repeat("\u0316\u0301", 40))
	tok := demoTokenizer(f)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<16 {
			return
		}
		ids := tok.Encode(text, EncodeOptions{})
		for _, id := range ids {
			if id < 0 || int(id) >= tok.VocabSize() {
				t.Fatalf("id %d", id)
			}
		}
		decoded := tok.Decode(ids, false)
		if want := reference(tok, text); decoded != want {
			t.Fatalf("%+q comes back as %+q, want %+q", text, decoded, want)
		}
		if got := streamed(tok, ids, false); got != decoded {
			t.Fatalf("%+q is streamed as %+q", text, got)
		}
		if again := tok.Encode(text, EncodeOptions{MaxTokens: len(ids) + 1}); !slices.Equal(again, ids) {
			t.Fatalf("%+q: %v, then %v", text, ids, again)
		}
	})
}

// reference is what a text should come back as: NFC between the added tokens.
func reference(tok *Tokenizer, text string) string {
	var want strings.Builder
	tok.raw.segments(string([]rune(text)), func(plain string) bool {
		want.WriteString(string(composeRunes(decomposeRunes(plain))))
		return true
	}, func(id int32) bool {
		want.WriteString(tok.TokenText(id))
		return true
	})
	return want.String()
}

// FuzzCompose compares the fallback for long runs of marks with x/text, where that is
// right, and checks properties of NFC where it is not.
func FuzzCompose(f *testing.F) {
	f.Add("e\u0301\u0323 \uac00\u11a8\u1100\u1161 \u0344 \u212b o\u0302\u0301\u0315\u0300")
	f.Fuzz(func(t *testing.T, text string) {
		if !utf8.ValidString(text) || len(text) > 4096 {
			return
		}
		got := string(composeRunes(decomposeRunes(text)))
		if composesAsNewer(text) && got != norm.NFC.String(text) {
			t.Fatalf("%+q: got %+q, want %+q", text, got, norm.NFC.String(text))
		}
		if again := string(composeRunes(decomposeRunes(got))); again != got {
			t.Fatalf("%+q: composed twice %+q, once %+q", text, again, got)
		}
	})
}
