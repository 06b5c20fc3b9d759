package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Bugs that users of other engines for hybrid models reported, each as a test of the whole program. Both families, with
// the checkpoints of the goldens.

// bugModels are checkpoints of both families with an MTP head.
var bugModels = []string{"qwen35-dense-tied-mtp", "nemotron-latent-mtp"}

const drafting = `{"method":"mtp","num_speculative_tokens":3,"adaptive":false}`

// forBugModels starts a server with each.
func forBugModels(t *testing.T, f func(t *testing.T, start func(flags ...string) *server)) {
	for _, name := range bugModels {
		t.Run(name, func(t *testing.T) {
			dir := golden(t, name).write(t)
			f(t, func(flags ...string) *server {
				t.Helper()
				return serve(t, append([]string{"--model", dir, "--skip-tokenizer-init", "--max-model-len", "1100"}, flags...)...)
			})
		})
	}
}

// prompt is n random token ids, the same for the same seed.
func prompt(n int, seed uint64) []int32 {
	random := rand.New(rand.NewPCG(seed, 1))
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = random.Int32N(192)
	}
	return ids
}

// greedy asks for n tokens behind a prompt of ids.
func greedy(ids []int32, n int) call {
	text, err := json.Marshal(ids)
	if err != nil {
		panic(err)
	}
	return call{completions, fmt.Sprintf(`{"prompt":%s,"max_tokens":%d,"temperature":0,"ignore_eos":true}`, text, n)}
}

func (s *server) mustChoices(c call) string {
	s.t.Helper()
	out, err := s.whole(c)
	if err != nil {
		s.t.Fatal(err)
	}
	return out.String()
}

// together sends all calls at once.
func (s *server) together(calls []call) []string {
	s.t.Helper()
	out, errs := make([]string, len(calls)), make([]error, len(calls))
	var group sync.WaitGroup
	for i, c := range calls {
		group.Go(func() {
			var got choices
			got, errs[i] = s.whole(c)
			out[i] = got.String()
		})
	}
	group.Wait()
	for i, err := range errs {
		if err != nil {
			s.t.Fatalf("call %d: %v", i, err)
		}
	}
	return out
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%s, call %d:\n got %s\nwant %s", what, i, got[i], want[i])
		}
	}
}

// TestPromptsOfOneAndAroundAChunk: prompts of 1 token and of 1023 to 1030, as a whole, in chunks that end just before,
// at and behind them, and next to each other.
func TestPromptsOfOneAndAroundAChunk(t *testing.T) {
	forBugModels(t, func(t *testing.T, start func(...string) *server) {
		calls := []call{greedy(prompt(1, 0), 4)}
		for n := 1023; n <= 1030; n++ {
			calls = append(calls, greedy(prompt(n, uint64(n)), 4))
		}
		whole := start("--max-num-batched-tokens", "2048")
		var want []string
		for _, c := range calls {
			want = append(want, whole.mustChoices(c))
		}
		same(t, "all at once", whole.together(calls), want)
		for _, chunk := range []string{"1024", "1025", "256", "17"} {
			if testing.Short() && chunk != "1024" {
				continue
			}
			s := start("--max-num-batched-tokens", chunk)
			same(t, "in chunks of "+chunk, s.together(calls), want)
			s.terminate(endWithin)
		}
	})
}

// TestSequentialRequestsDoNotDecay: the same request 21 times, 512 tokens in and 512 out, one after another; some engines
// got slower, or wrong, as states of finished requests stayed behind.
func TestSequentialRequestsDoNotDecay(t *testing.T) {
	rounds, length := 21, 512
	if testing.Short() || racing {
		rounds, length = 6, 128
	}
	forBugModels(t, func(t *testing.T, start func(...string) *server) {
		s := start("--max-num-seqs", "4", "--speculative-config", drafting)
		c := greedy(prompt(length, 5), length)
		want := start("--max-num-seqs", "1").mustChoices(c)
		for i := range rounds {
			if got := s.mustChoices(c); got != want {
				t.Fatalf("request %d:\n got %s\nwant %s", i, got, want)
			}
		}
		s.terminate(endWithin)
	})
}

// TestRowPaddedToItsNeighboursWidth: a row that verifies fewer tokens than its neighbours, since its sequence is almost
// full, is padded to their width; the padding must reach neither its state nor its answer.
func TestRowPaddedToItsNeighboursWidth(t *testing.T) {
	forBugModels(t, func(t *testing.T, start func(...string) *server) {
		var calls []call
		for i := range 10 {
			calls = append(calls, greedy(prompt(20+i, uint64(i)), 1+i), greedy(prompt(30, uint64(100+i)), 40))
		}
		plain := start()
		var want []string
		for _, c := range calls {
			want = append(want, plain.mustChoices(c))
		}
		s := start("--speculative-config", drafting)
		for range 4 {
			same(t, "with drafts", s.together(calls), want)
		}
		s.terminate(endWithin)
	})
}

// TestFirstStepAfterResume: sequences that made room for others, and came back, go on as if nothing had happened.
func TestFirstStepAfterResume(t *testing.T) {
	forBugModels(t, func(t *testing.T, start func(...string) *server) {
		var calls []call
		for i := range 8 {
			calls = append(calls, greedy(prompt(30+7*i, uint64(i)), 60))
		}
		var want []string
		roomy := start()
		for _, c := range calls {
			want = append(want, roomy.mustChoices(c))
		}
		for _, flags := range [][]string{nil, {"--speculative-config", drafting}} {
			s := start(append(flags, "--max-model-len", "200", "--num-kv-blocks", "30", "--max-num-seqs", "8")...)
			for range 3 {
				same(t, fmt.Sprint("resumed ", flags), s.together(calls), want)
			}
			if s.metric("reprise:num_preemptions_total") == 0 {
				t.Error("nothing was preempted")
			}
			s.terminate(endWithin)
		}
	})
}

// TestFreedSlotIsReusedAtOnce: with one slot, each request runs where the one before it ended a moment ago, by length, at
// a stop that the host sees a step late, or because its client hung up.
func TestFreedSlotIsReusedAtOnce(t *testing.T) {
	forBugModels(t, func(t *testing.T, start func(...string) *server) {
		for _, flags := range [][]string{nil, {"--speculative-config", drafting}} {
			s := start(append(flags, "--max-num-seqs", "1")...)
			long, short := greedy(prompt(40, 1), 50), greedy(prompt(3, 2), 9)
			want := []string{s.mustChoices(long), s.mustChoices(short)}
			var first struct {
				Choices []struct {
					TokenIDs []int32 `json:"token_ids"`
				}
			}
			decode(t, []byte(s.must(long.path, long.body)), &first)
			stop := first.Choices[0].TokenIDs[7]
			stopped := call{long.path, strings.TrimSuffix(long.body, "}") + fmt.Sprintf(`,"stop_token_ids":[%d]}`, stop)}
			want = append(want, s.mustChoices(stopped))
			if n := slices.Index(first.Choices[0].TokenIDs, stop) + 1; !strings.Contains(want[2], "stop") || n > 8 {
				t.Fatalf("no stop: %s", want[2])
			}
			calls := []call{stopped, short, long, short, stopped, long, short, stopped}
			order := []int{2, 1, 0, 1, 2, 0, 1, 2}
			for range 4 {
				for i, got := range s.together(calls) {
					if got != want[order[i]] {
						t.Errorf("%v, call %d:\n got %s\nwant %s", flags, i, got, want[order[i]])
					}
				}
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Millisecond)
				_, _ = s.post(ctx, long.path, long.body) // hangs up
				cancel()
			}
			s.terminate(endWithin)
		}
	})
}
