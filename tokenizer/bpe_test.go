package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nlpodyssey/gotokenizers/models/bpemodel"
)

// libraryIDs are the library's own ids for a piece.
func libraryIDs(t *testing.T, tok *Tokenizer, model *bpemodel.BPEModel, piece string) []int32 {
	tokens, err := model.Tokenize(new(word).spell(piece))
	if err != nil {
		t.Fatal(err)
	}
	var ids []int32
	for _, token := range tokens {
		ids = append(ids, int32(token.ID))
	}
	return ids
}

func TestMergingEqualsLibrary(t *testing.T) {
	tok := demoTokenizer(t)
	merges := bpemodel.MergeMap{}
	for _, e := range tok.model.merges.entries {
		if e.rank != noMerge {
			merges.Set(int(e.pair>>32), int(uint32(e.pair)), bpemodel.MergeValue{Rank: int(e.rank), ID: int(e.joined)})
		}
	}
	model := bpemodel.New(tok.model.vocabulary, &merges, 0, 0, "", "", "", false)
	random := rand.New(rand.NewPCG(3, 4))
	for round := range 3000 {
		var piece strings.Builder
		for piece.Len() < 1+round%200 {
			if random.IntN(4) == 0 {
				piece.WriteRune(rune(random.IntN(0xD000)))
			} else {
				piece.Write(tok.TokenBytes(int32(random.IntN(4000))))
			}
		}
		text := strings.ToValidUTF8(piece.String(), "?")
		got := new(word).encode(&tok.model, nil, text)
		if want := libraryIDs(t, tok, model, text); !slices.Equal(got, want) {
			t.Fatalf("%q: got %v, library %v", text, got, want)
		}
	}
}

func TestLongPieceIsNearLinear(t *testing.T) {
	tok := demoTokenizer(t)
	size := 1_000_000
	if testing.Short() {
		size = 100_000
	}
	for _, unit := range []string{"a", "ab", "the", "中文字", "=", " ", "\u0301"} {
		text := strings.Repeat(unit, size/len(unit))
		start := time.Now()
		ids := tok.Encode(text, EncodeOptions{})
		if spent := time.Since(start); spent > 20*time.Second {
			t.Errorf("%d bytes of %q took %v", size, unit, spent)
		}
		if tok.Decode(ids, false) != text {
			t.Errorf("%d bytes of %q do not come back", size, unit)
		}
	}
}

func TestConcurrentEncode(t *testing.T) {
	texts := strings.SplitAfter(string(read(t, "qwen2.inp")), "\n__ggml_vocab_test__\n")
	want := make([][]int32, len(texts))
	for i, text := range texts {
		want[i] = demoTokenizer(t).Encode(text, EncodeOptions{})
	}
	tok := mustLoad(t, read(t, "demo-qwen35.json.zst")) // with an empty cache
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for i, text := range texts {
				if !slices.Equal(tok.Encode(text, EncodeOptions{}), want[i]) {
					t.Errorf("text %d differs under concurrency", i)
				}
			}
		})
	}
	group.Wait()
}
