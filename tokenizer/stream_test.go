package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestStreamHoldsIncompleteCharacters(t *testing.T) {
	tok := demoTokenizer(t)
	stream := tok.NewStream(false)
	var steps []string
	for _, b := range []byte("é中😀") {
		steps = append(steps, stream.Push(tok.model.byteIDs[b]))
	}
	if got := strings.Join(steps, "|"); got != "|é|||中||||😀" {
		t.Errorf("steps %q", got)
	}
	if rest := stream.Flush(); rest != "" {
		t.Errorf("flush %q", rest)
	}
}

func TestStreamBrokenCharacters(t *testing.T) {
	tok := demoTokenizer(t)
	for _, c := range []struct{ bytes, want string }{
		{"\xe4\xb8", "\ufffd"},
		{"\xe4\xb8a", "\ufffda"},
		{"\xe4a\xb8", "\ufffda\ufffd"},
		{"\xf0\x9f\x98", "\ufffd"},
		{"\xf0\x9f\xf0\x9f\x98\x80", "\ufffd😀"},
		{"\xed\xa0\x80", "\ufffd\ufffd\ufffd"}, // a surrogate
		{"\xe0\x80\x80", "\ufffd\ufffd\ufffd"}, // too long a form
		{"\x80\xbf", "\ufffd\ufffd"},
	} {
		var ids []int32
		for i := range len(c.bytes) {
			ids = append(ids, tok.model.byteIDs[c.bytes[i]])
		}
		if got := tok.Decode(ids, false); got != c.want {
			t.Errorf("decode % x: got %q, want %q", c.bytes, got, c.want)
		}
		if got := streamed(tok, ids, false); got != c.want {
			t.Errorf("stream % x: got %q, want %q", c.bytes, got, c.want)
		}
	}
}

func TestStreamEqualsDecode(t *testing.T) {
	tok := demoTokenizer(t)
	random := rand.New(rand.NewPCG(5, 6))
	for round := range 3000 {
		ids := make([]int32, 1+random.IntN(12))
		for i := range ids {
			ids[i] = int32(random.IntN(tok.VocabSize()+4) - 2) // some are not ids
			if random.IntN(3) == 0 {
				ids[i] = tok.model.byteIDs[0x80+random.IntN(0x75)]
			}
			ids[i] = max(ids[i], -1)
		}
		skip := round%2 == 0
		stream := tok.NewStream(skip)
		var text strings.Builder
		for _, id := range ids {
			part := stream.Push(id)
			if !utf8.ValidString(part) {
				t.Fatalf("%v: part %q", ids, part)
			}
			text.WriteString(part)
		}
		text.WriteString(stream.Flush())
		if want := tok.Decode(ids, skip); text.String() != want {
			t.Fatalf("%v: stream %q, decode %q", ids, text.String(), want)
		}
	}
}

func TestSkipSpecial(t *testing.T) {
	tok := demoTokenizer(t)
	ids := tok.Encode("<|im_start|>a<think>b<|im_end|>", EncodeOptions{})
	if got := tok.Decode(ids, true); got != "ab" {
		t.Errorf("skipped: %q", got)
	}
	if got := tok.Decode(ids, false); got != "<|im_start|>a<think>b<|im_end|>" {
		t.Errorf("kept: %q", got)
	}
}

// TestStreamAllocations: the text itself is all that a token may allocate.
func TestStreamAllocations(t *testing.T) {
	tok := demoTokenizer(t)
	ids := tok.Encode("Once upon a time, 我们 went to the café.", EncodeOptions{})
	stream := tok.NewStream(true)
	each := testing.AllocsPerRun(100, func() {
		for _, id := range ids {
			stream.Push(id)
		}
	})
	if each > float64(len(ids)) {
		t.Errorf("%v allocations for %d tokens", each, len(ids))
	}
}
