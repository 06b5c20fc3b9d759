package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// checkChars demands of pieces the ids that merging from bytes alone gives, and returns how many characters it took
// whole.
func checkChars(t *testing.T, m *bpe, pieces []string) (whole int) {
	t.Helper()
	bytewise := *m
	bytewise.chars = charTable{}
	for _, piece := range pieces {
		got, want := new(word).encode(m, nil, piece), new(word).encode(&bytewise, nil, piece)
		if !slices.Equal(got, want) {
			t.Fatalf("%q: %v from characters, %v from bytes", piece, got, want)
		}
		for at := range piece {
			if _, _, ok := m.chars.at(piece, at); ok {
				whole++
			}
		}
	}
	return whole
}

func TestCharactersChangeNoID(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for _, name := range []string{"qwen3", "tekken", "demo-qwen35"} {
		tok := mustLoad(t, read(t, name+".json.zst"))
		if name == "qwen3" {
			text := hanText(tok, 20_000)
			if whole, all := checkChars(t, &tok.model, []string{text}), utf8.RuneCountInString(text); whole < all/2 {
				t.Errorf("only %d of %d Chinese characters are taken whole", whole, all)
			}
		}
		var pieces []string
		for range 1000 {
			var text []byte
			for len(text) < 60 {
				if random.IntN(6) == 0 {
					text = append(text, string(rune(random.IntN(0x11000)))...)
				} else {
					text = append(text, tok.TokenBytes(int32(random.IntN(tok.VocabSize())))...)
				}
			}
			pieces = append(pieces, strings.ToValidUTF8(string(text), "·"))
		}
		checkChars(t, &tok.model, pieces)
	}
}

// Models whose merges come in any order, and tie the bytes of characters to their neighbours before they are whole.
func TestCharactersOfAnyModel(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	alphabet := []string{"的", "皂", "“", "é", "ã", "𐍈", "a", " ", "是"}
	rounds, whole := 400, 0
	if testing.Short() {
		rounds = 60
	}
	for range rounds {
		tok := mustLoad(t, encodeJSON(t, randomModel(random, alphabet)))
		var pieces []string
		for range 200 {
			piece := ""
			for range 1 + random.IntN(8) {
				piece += alphabet[random.IntN(len(alphabet))]
			}
			pieces = append(pieces, piece)
		}
		whole += checkChars(t, &tok.model, pieces)
	}
	if whole < 100*rounds {
		t.Errorf("only %d characters were taken whole: the test tests little", whole)
	}
}

// randomModel joins neighbours of random texts to tokens, the parts of single characters first by half, and puts some
// of the merges out of order.
func randomModel(random *rand.Rand, alphabet []string) object {
	section := tiny()
	vocab, merges := object{}, []any{}
	for b, r := range byteRunes {
		vocab[string(r)] = b
	}
	join := func(text string) {
		var parts []string
		for i := range len(text) {
			parts = append(parts, string(byteRunes[text[i]]))
		}
		for len(parts) > 1 {
			i := random.IntN(len(parts) - 1)
			joined := parts[i] + parts[i+1]
			if _, ok := vocab[joined]; !ok {
				vocab[joined] = len(vocab)
				merges = append(merges, []any{parts[i], parts[i+1]})
			}
			parts = slices.Replace(parts, i, i+2, joined)
		}
	}
	for _, char := range alphabet {
		if random.IntN(2) == 0 {
			join(char)
		}
	}
	for range 1 + random.IntN(6) {
		join(alphabet[random.IntN(len(alphabet))] + alphabet[random.IntN(len(alphabet))] + alphabet[random.IntN(len(alphabet))])
	}
	for range random.IntN(4) {
		i, j := random.IntN(len(merges)), random.IntN(len(merges))
		merges[i], merges[j] = merges[j], merges[i]
	}
	section["added_tokens"] = []any{}
	section["model"] = object{"type": "BPE", "vocab": vocab, "merges": merges}
	return section
}

func TestMergeTableGrows(t *testing.T) {
	table := newMergeTable(1)
	for i := range int32(1000) {
		table.set(i, 2*i, 3*i, i)
		table.set(i, 2*i, 4*i, i+1)
	}
	for i := range int32(1000) {
		if e := table.place(pairOf(i, 2*i)); e.rank != i+1 || e.joined != 4*i {
			t.Fatalf("pair %d: %+v", i, e)
		}
		if e := table.place(pairOf(2*i+1, i)); e.rank != noMerge {
			t.Fatalf("pair %d the other way round: %+v", i, e)
		}
	}
	if table.count != 1000 {
		t.Errorf("%d merges", table.count)
	}
}
