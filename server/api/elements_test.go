package api

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// FuzzElements compares with a decoder that makes a list: wherever it reads an array, the elements are the same.
func FuzzElements(f *testing.F) {
	for _, text := range []string{
		`[]`, `[ ]`, `[1]`, `[ 1 , 2.5e3,-0 ]`, `["a,]","\\\"",""]`, `[[],[[1,"]"]],{"a":[1],"]":"}"}]`, "[true,\n\tnull,false\r]",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		text = bytes.TrimSpace(text)
		var want []json.RawMessage
		if len(text) == 0 || text[0] != '[' || json.Unmarshal(text, &want) != nil {
			return
		}
		var got []json.RawMessage
		for e := range elements(text) {
			got = append(got, e)
		}
		if !slices.EqualFunc(got, want, func(a, b json.RawMessage) bool { return string(a) == string(b) }) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	})
}

// TestLongPromptsTakeLittleMemory holds what reading token ids allocates to a few times the ids: a list of their texts
// would be ten times as much.
func TestLongPromptsTakeLittleMemory(t *testing.T) {
	const n = 200_000
	want := make([]int32, n)
	var b strings.Builder
	b.WriteByte('[')
	for i := range want {
		want[i] = rand.Int32N(4096)
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(must(json.Marshal(want[i]))))
	}
	b.WriteByte(']')
	raw := json.RawMessage(b.String())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f := &fields{}
	got := f.asTokens("prompt", raw, n)
	runtime.ReadMemStats(&after)
	if f.err != nil || !slices.Equal(got, want) {
		t.Fatalf("%v, or other ids", f.err)
	}
	if bytes, most := after.TotalAlloc-before.TotalAlloc, uint64(7*4*n); bytes > most { // growing adds up to 5 times
		t.Errorf("%d bytes were allocated for %d ids, at most %d are fine", bytes, n, most)
	}
	if f.asTokens("prompt", raw, n-1); f.err == nil || !strings.Contains(f.err.Message, "200000 elements, at most 199999") {
		t.Errorf("one too many: %v", f.err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
