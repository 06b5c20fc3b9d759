package api

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// cutByHand is the oracle: it tries every end of the text in turn.
func cutByHand(text string, stops []string, include bool) (string, string) {
	for end := 1; end <= len(text); end++ {
		found := ""
		for _, stop := range stops {
			if strings.HasSuffix(text[:end], stop) && len(stop) > len(found) {
				found = stop
			}
		}
		if found != "" && include {
			return text[:end], found
		}
		if found != "" {
			return text[:end-len(found)], found
		}
	}
	return text, ""
}

// feed pushes text in pieces and checks that nothing but a possible beginning of a stop string is held back.
func feed(t *testing.T, pieces []piece, stops []string, include bool) (string, string) {
	t.Helper()
	s := newStopper(stops, include)
	var out, in strings.Builder
	join := func(released []piece) {
		for _, p := range released {
			out.WriteString(p.text)
		}
	}
	for _, p := range pieces {
		in.WriteString(p.text)
		released, stop := s.push(p)
		join(released)
		if stop != "" {
			return out.String(), stop
		}
		held := in.String()[out.Len():]
		if !strings.HasPrefix(in.String(), out.String()) {
			t.Fatalf("released %q of %q", out.String(), in.String())
		}
		if held != "" && !p.whole && !begins(held, stops) {
			t.Fatalf("%q is held back, and no stop string of %q begins so", held, stops)
		}
	}
	join(s.flush())
	return out.String(), ""
}

func begins(held string, stops []string) bool {
	for _, stop := range stops {
		if strings.HasPrefix(stop, held) {
			return true
		}
	}
	return false
}

func randomText(r *rand.Rand, n int) string {
	var b strings.Builder
	for range r.IntN(n) + 1 {
		b.WriteString([]string{"a", "b", "é", "è"}[r.IntN(4)])
	}
	return b.String()
}

func TestStopStringsDoNotDependOnTheSplit(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	matched := 0
	for range 20000 {
		var stops []string
		for range r.IntN(3) + 1 {
			stops = append(stops, randomText(r, 4))
		}
		text, include := randomText(r, 12), r.IntN(2) == 0
		var pieces []piece
		for rest := []rune(text); len(rest) > 0; {
			n := min(r.IntN(4), len(rest))
			pieces = append(pieces, piece{id: int32(len(pieces)), text: string(rest[:n])})
			rest = rest[n:]
		}
		got, stop := feed(t, pieces, stops, include)
		want, wantStop := cutByHand(text, stops, include)
		if got != want || stop != wantStop {
			t.Fatalf("%q in %v cut at %q, stops %q: got %q, %q, want %q, %q", text, pieces, stop, stops, got, stop, want, wantStop)
		}
		if stop != "" {
			matched++
		}
	}
	if matched < 1000 {
		t.Errorf("only %d texts had a stop string", matched)
	}
}

func TestMarkersAreReleasedWhole(t *testing.T) {
	s := newStopper([]string{"> done"}, false)
	released, _ := s.push(piece{7, "<think>", true})
	if len(released) != 0 {
		t.Errorf("%v was released while its end may begin a stop string", released)
	}
	released, _ = s.push(piece{8, " or", false})
	if len(released) != 2 || released[0] != (piece{7, "<think>", true}) {
		t.Errorf("released %v, want the marker and the text", released)
	}
	_, _ = s.push(piece{7, "<think>", true})
	released, stop := s.push(piece{9, " done", false})
	if stop == "" || len(released) != 1 || released[0].id != noToken || released[0].text != "<think" {
		t.Errorf("released %v at stop %q, want half a marker as text", released, stop)
	}
}

func TestPassedTextIsNotMatched(t *testing.T) {
	s := newStopper([]string{"ab"}, false)
	if out := s.pass(piece{1, "xab", false}); len(out) != 1 {
		t.Errorf("passed %v", out)
	}
	if _, stop := s.push(piece{2, "b", false}); stop != "" {
		t.Error("a stop string began in text that was passed")
	}
}
