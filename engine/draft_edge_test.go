package engine

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"reprise/demo"
	"reprise/internal/golden"
	"reprise/spec"
	"reprise/tokenizer"
	"reprise/weights"
)

// all is a prompter whose drafts are right.
func all(g *golden.Golden) *prompter { return &prompter{texts: texts(g)} }

// TestStopInsideTheAcceptedRun stops at each token in turn, so that the stop is the first, a middle and the last accepted
// token, and one that is sampled behind the drafts.
func TestStopInsideTheAcceptedRun(t *testing.T) {
	forDrafting(t, false, func(t *testing.T, g *golden.Golden) {
		e := openPrompted(t, device(t), g, Options{Drafts: 3, FixedDepth: true}, all(g))
		for i := range 12 {
			c := g.Cases[i%len(g.Cases)]
			r := greedy(c.Prompt, len(c.Greedy))
			r.StopIDs = []int32{c.Greedy[i]}
			want := c.Greedy[:slices.Index(c.Greedy, c.Greedy[i])+1]
			out := read(t, submit(t, e, r))
			if !slices.Equal(out.ids(), want) || out.reason != Stop || out.stop != c.Greedy[i] {
				t.Errorf("stop at %d: got %v (%s), want %v", i, out.ids(), out.reason, want)
			}
			r.MinTokens = len(want) + 2 // the stop id cannot be sampled so early
			if out := read(t, submit(t, e, r)); len(out.tokens) < r.MinTokens || slices.Contains(out.ids()[:r.MinTokens-1], c.Greedy[i]) {
				t.Errorf("min_tokens %d: got %v", r.MinTokens, out.ids())
			}
		}
	})
}

// TestLimitInsideTheDraftWindow ends sequences by max_tokens and by the context at every place of a run.
func TestLimitInsideTheDraftWindow(t *testing.T) {
	forDrafting(t, false, func(t *testing.T, g *golden.Golden) {
		c := g.Cases[2]
		e := openPrompted(t, device(t), g, Options{Drafts: 3, FixedDepth: true}, all(g))
		for n := 1; n <= 10; n++ {
			if out := read(t, submit(t, e, greedy(c.Prompt, n))); !slices.Equal(out.ids(), c.Greedy[:n]) || out.reason != Length {
				t.Errorf("max_tokens %d: got %v (%s)", n, out.ids(), out.reason)
			}
		}
		for n := 1; n <= 6; n++ {
			small := openPrompted(t, device(t), g, Options{Drafts: 3, FixedDepth: true, MaxLen: len(c.Prompt) + n, PageTokens: 4}, all(g))
			if out := read(t, submit(t, small, greedy(c.Prompt, 32))); !slices.Equal(out.ids(), c.Greedy[:n]) || out.reason != Length {
				t.Errorf("context with room for %d: got %v (%s)", n, out.ids(), out.reason)
			}
		}
	})
}

// TestDraftsComeAndGo drafts nothing behind a step that accepted all, and less than a step has room for.
func TestDraftsComeAndGo(t *testing.T) {
	forDrafting(t, false, func(t *testing.T, g *golden.Golden) {
		for _, count := range []func(index, n int) int{
			func(index, n int) int { return n * (index % 2) },
			func(index, n int) int { return index % (n + 1) },
			func(int, int) int { return 0 },
		} {
			p := all(g)
			p.count = count
			checkGreedy(t, openPrompted(t, device(t), g, Options{Drafts: 4, FixedDepth: true, Window: 8}, p), g)
		}
	})
}

// TestDepthChanges between any two steps, to none and back: alone and together, in the middle of windows of any length, and
// with preemptions in between, swapped or computed again.
func TestDepthChanges(t *testing.T) {
	forDrafting(t, false, func(t *testing.T, g *golden.Golden) {
		longest, all := pagesFor(g, 4)
		few := min(longest+2, all-1)
		for i, o := range []Options{
			{MaxSeqs: 1}, {}, {Window: 8}, {Window: 16}, {Window: 32},
			{PageTokens: 4, KVBlocks: few}, {PageTokens: 4, KVBlocks: few, SwapBytes: 1, Window: 16},
		} {
			o.Drafts, o.FixedDepth, o.MaxTokens = 5, true, 64
			testDepthChanges(t, g, o, i)
		}
	})
}

func testDepthChanges(t *testing.T, g *golden.Golden, o Options, turn int) {
	t.Helper()
	e := openStill(t, device(t), g, o)
	var running []*Sequence
	for _, c := range g.Cases {
		running = append(running, submit(t, e, greedy(c.Prompt, len(c.Greedy))))
	}
	for ; len(e.incoming) > 0 || len(e.seqs) > 0; turn++ {
		e.control = spec.NewDepth([...]int{5, 0, 3, 0, 0, 1, 2}[turn%7], true)
		e.turn()
	}
	for i, s := range running {
		if got, want := read(t, s).ids(), g.Cases[i].Greedy; !slices.Equal(got, want) {
			t.Errorf("%+v, case %d: got %v, want %v", o, i, got, want)
		}
	}
	if s := e.Stats(); s.Drafts.Drafted == 0 || o.KVBlocks > 0 && s.Preemptions == 0 {
		t.Errorf("%+v: %d preemptions, drafts %+v: the test shows nothing", o, s.Preemptions, s.Drafts)
	}
	go e.loop()
}

// TestOneTokenPrompts starts with drafts behind a prompt of one token.
func TestOneTokenPrompts(t *testing.T) {
	forDrafting(t, false, func(t *testing.T, g *golden.Golden) {
		plain := open(t, g, Options{})
		e := open(t, g, Options{Drafts: 3, FixedDepth: true})
		var requests []Request
		for id := range int32(12) {
			requests = append(requests, greedy([]int32{7 * id}, 12))
		}
		want := runAll(t, plain, requests)
		for i, got := range runAll(t, e, requests) {
			if err := alike(got, want[i]); err != nil {
				t.Errorf("prompt %d: %v", i, err)
			}
		}
	})
}

// TestDraftsAroundMarkers: special tokens in the prompt and in the answer are tokens like others.
func TestDraftsAroundMarkers(t *testing.T) {
	for _, name := range []string{"demo-nemotron", "demo-qwen35"} {
		t.Run(name, func(t *testing.T) {
			g, tok := golden.Open(t, name), demoTokenizer(t, name)
			var requests []Request
			for _, marker := range []string{"<think>\n", "</think>\n", "</think>\n<tool_call>\n", "</tool_call>", "<tool_call>\n<function="} {
				prompt := tok.Encode("<|im_start|>user\nWhere is it?<|im_end|>\n<|im_start|>assistant\n<think>\nA short thought.\n"+marker, tokenizer.EncodeOptions{})
				requests = append(requests, greedy(prompt, 24))
				forced := greedy(prompt, 24) // answers that are full of markers
				forced.Sampling.Bias = map[int32]float32{}
				for _, id := range tok.Encode("<think></think><tool_call></tool_call>", tokenizer.EncodeOptions{}) {
					forced.Sampling.Bias[id] = 12
				}
				forced.Sampling.Presence = 2
				requests = append(requests, forced)
			}
			want, known := runAll(t, open(t, g, Options{}), requests), [][]int32{}
			for i, r := range requests {
				known = append(known, slices.Concat(r.Prompt, want[i].ids()))
			}
			o := Options{Drafts: 3, FixedDepth: true}
			for i, got := range runAll(t, openPrompted(t, device(t), g, o, &prompter{texts: known, wrong: some}), requests) {
				if err := alike(got, want[i]); err != nil {
					t.Errorf("%q by all drafts: %v", tok.Decode(requests[i].Prompt, false), err)
				}
			}
			for i, got := range runAll(t, open(t, g, o), requests) {
				if err := alike(got, want[i]); err != nil {
					t.Errorf("%q by the head: %v", tok.Decode(requests[i].Prompt, false), err)
				}
			}
		})
	}
}

func demoTokenizer(t *testing.T, name string) *tokenizer.Tokenizer {
	t.Helper()
	f, err := demo.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(f.Tokenizer, f.TokenizerConfig)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestExtractionByQuotation: JSON that quotes the prompt is drafted by look-up.
func TestExtractionByQuotation(t *testing.T) {
	g, tok := golden.Open(t, "demo-qwen35"), demoTokenizer(t, "demo-qwen35")
	record := `{"name": "Ada Lovelace", "city": "London", "year": 1843}` + "\n"
	prompt := tok.Encode(strings.Repeat(record, 3), tokenizer.EncodeOptions{})
	r := greedy(prompt, 48)
	want := read(t, submit(t, open(t, g, Options{}), r))
	e := open(t, g, Options{Drafts: 5, FixedDepth: true, DraftMethod: spec.NGram})
	got := read(t, submit(t, e, r))
	if err := alike(got, want); err != nil {
		t.Error(err)
	}
	a := e.Stats().Drafts
	t.Logf("%q: %.2f tokens a step", tok.Decode(got.ids(), false), a.TokensAStep())
	if a.TokensAStep() < 3 {
		t.Errorf("%+v: little was quoted", a)
	}
}

// TestDraftRefusals: what cannot be drafted is refused while loading, in one line.
func TestDraftRefusals(t *testing.T) {
	mtp, plain := golden.Open(t, "qwen35-moe-mtp"), golden.Open(t, "qwen35-dense")
	lacking := *plain.Folder
	lacking.Config = bytes.Replace(lacking.Config, []byte(`"mtp_num_hidden_layers": 0`), []byte(`"mtp_num_hidden_layers": 1`), 1)
	for _, c := range []struct {
		folder *weights.Folder
		o      Options
		want   string
	}{
		{plain.Folder, Options{Drafts: 3}, "no MTP head"},
		{&lacking, Options{Drafts: 3}, "no weights"},
		{mtp.Folder, Options{Drafts: 8}, "num_speculative_tokens 8"},
		{mtp.Folder, Options{Drafts: -1}, "num_speculative_tokens -1"},
		{mtp.Folder, Options{Drafts: 4, Window: 4}, "num_speculative_tokens 4 + 1"},
		{mtp.Folder, Options{Drafts: 3, DraftMethod: "eagle"}, `"eagle"`},
		{mtp.Folder, Options{Drafts: 3, DraftVocab: 193}, "draft_vocab_size 193"},
		{mtp.Folder, Options{Drafts: 3, DraftVocab: -1}, "draft_vocab_size -1"},
		{plain.Folder, Options{Drafts: 3, DraftMethod: spec.NGram, MinMatch: 4, MaxMatch: 3}, "prompt_lookup_max 3"},
		{plain.Folder, Options{Drafts: 3, DraftMethod: spec.NGram, MinMatch: -1}, "prompt_lookup_min -1"},
	} {
		dev := device(t)
		e, err := Open(dev, Source{Folder: c.folder}, c.o)
		if err == nil {
			e.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: got %v, want one line about %q", c.o, err, c.want)
		} else {
			t.Log(err)
		}
		dev.Close()
	}
}
