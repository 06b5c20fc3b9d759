package load

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const ms = time.Millisecond

func run1(t *testing.T, c *Client, p Plan) []*Outcome {
	t.Helper()
	all, err := Run(context.Background(), c, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// expect compares milliseconds that were computed from a clock that stands still while code runs.
func expect(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-6 {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

func TestTimesOfAScriptedServer(t *testing.T) {
	withServer(t, time.Minute, func(_ int, q asked, w http.ResponseWriter) { script(w, 200*ms, 30*ms, q.MaxTokens) }, func(c *Client) {
		all := run1(t, c, Plan{Source: fixedSource(5), Arrivals: Fixed(10, 0), Requests: 20})
		r := Summarise(all, SLO{}, true)
		if r.Requests != 20 || r.Completed != 20 || r.Failed+r.Cut+r.Short+r.LateSends != 0 {
			t.Errorf("%+v", r)
		}
		for _, s := range []Stats{r.TTFT, r.ITL, r.TPOT, r.E2E, r.Late} {
			if s.Max != s.P50 || s.Mean-s.P50 > 1e-9 {
				t.Errorf("every request takes the same time, but %+v", s)
			}
		}
		expect(t, "TTFT", r.TTFT.P99, 200)
		expect(t, "ITL", r.ITL.P99, 30)
		expect(t, "TPOT", r.TPOT.P99, 30)
		expect(t, "E2E", r.E2E.P99, 320)
		expect(t, "late", r.Late.Max, 0)
		expect(t, "seconds", r.Seconds, 1.9+0.32)
		expect(t, "output rate", r.OutputRate, 100/2.22)
		expect(t, "input rate", r.InputRate, 220/2.22)
		if r.PeakRunning != 4 { // 0, 100, 200 and 300 ms after one another, each 320 ms long
			t.Errorf("peak %d", r.PeakRunning)
		}
		if r.Judge(all); r.Saturated {
			t.Errorf("saturated: %+v", r)
		}
	})
}

// one is a server that serves one request at a time: 100 ms each.
func one() func(int, asked, http.ResponseWriter) {
	turn := sync.OnceValue(func() chan struct{} { return make(chan struct{}, 1) }) // must be made inside the bubble
	return func(_ int, q asked, w http.ResponseWriter) {
		turn() <- struct{}{}
		script(w, 90*ms, 10*ms, 2)
		<-turn()
	}
}

// TestWaitingIsMeasured: at 20 requests a second against a server that does 10, request i waits 50 i ms, and that counts,
// also where this program holds requests back (coordinated omission).
func TestWaitingIsMeasured(t *testing.T) {
	for _, limit := range []int{0, 1} {
		withServer(t, time.Minute, one(), func(c *Client) {
			all := run1(t, c, Plan{Source: fixedSource(2), Arrivals: Fixed(20, 0), Requests: 81, MaxInFlight: limit})
			r := Summarise(all, SLO{}, true)
			expect(t, "longest TTFT", r.TTFT.Max, 90+80*50)
			expect(t, "median E2E", r.E2E.P50, 100+40*50)
			if late := map[int]float64{0: 0, 1: 80 * 50}[limit]; math.Abs(r.Late.Max-late) > 1e-6 || (r.LateSends > 0) != (limit > 0) {
				t.Errorf("limit %d: sent %v late, %d sends", limit, r.Late.Max, r.LateSends)
			}
			if r.Judge(all); !r.Saturated || r.Backlog != 20 {
				t.Errorf("not saturated: %+v", r)
			}
		})
	}
}

func TestClosedLoop(t *testing.T) {
	withServer(t, time.Minute, func(_ int, q asked, w http.ResponseWriter) { script(w, 100*ms, 10*ms, q.MaxTokens) }, func(c *Client) {
		r := Summarise(run1(t, c, Plan{Source: fixedSource(11), Concurrency: 3, Requests: 12}), SLO{}, true)
		if r.Completed != 12 || r.PeakRunning != 3 {
			t.Errorf("%+v", r)
		}
		expect(t, "seconds", r.Seconds, 4*0.2)
		expect(t, "E2E", r.E2E.Max, 200)
		r = Summarise(run1(t, c, Plan{Source: fixedSource(11), Concurrency: 2, Duration: 500 * ms}), SLO{}, true)
		if r.Completed != 6 { // three begin within 500 ms on each
			t.Errorf("%d in half a second", r.Completed)
		}
	})
}

func TestRampAndWarmupAreNotMeasured(t *testing.T) {
	seen := 0
	withServer(t, time.Minute, func(n int, q asked, w http.ResponseWriter) { seen = n + 1; script(w, 10*ms, ms, 2) }, func(c *Client) {
		// 2 s of ramp to 10/s hold 10 arrivals, 1 s behind it holds 10
		all := run1(t, c, Plan{Source: fixedSource(2), Arrivals: Fixed(10, 2*time.Second), Ramp: 2 * time.Second, Duration: time.Second, Warmup: 3})
		r := Summarise(all, SLO{}, true)
		if r.Requests != 10 || r.Unmeasured != 10 || seen != 23 {
			t.Errorf("%d measured, %d not, %d seen", r.Requests, r.Unmeasured, seen)
		}
		expect(t, "seconds", r.Seconds, 0.9+0.011)
	})
}

// A warm-up with a source of its own leaves the run all of the other.
func TestWarmUpSource(t *testing.T) {
	var tokens []int
	withServer(t, time.Minute, func(_ int, q asked, w http.ResponseWriter) {
		tokens = append(tokens, q.MaxTokens)
		script(w, ms, ms, 1)
	}, func(c *Client) {
		run1(t, c, Plan{Source: fixedSource(2), WarmUp: fixedSource(3), Warmup: 2, Concurrency: 1, Requests: 2})
	})
	if !slices.Equal(tokens, []int{3, 3, 2, 2}) {
		t.Errorf("%v", tokens)
	}
}

func TestGoodput(t *testing.T) {
	withServer(t, time.Minute, func(n int, q asked, w http.ResponseWriter) {
		if n == 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		script(w, time.Duration(1+n)*100*ms, time.Duration(n)*10*ms, 3)
	}, func(c *Client) {
		all := run1(t, c, Plan{Source: fixedSource(3), Arrivals: Fixed(1, 0), Requests: 4})
		for text, good := range map[string]int{
			"": 3, "ttft=200ms": 2, "ttft=199ms": 1, "itl=10ms": 2, "tpot=9ms": 1, "e2e=340ms": 3, "e2e=339ms": 2, "ttft=250ms, itl=5ms": 1, "ttft=1ms": 0,
		} {
			var s SLO
			if text != "" {
				check(t, s.Set(text))
			}
			r := Summarise(all, s, true)
			expect(t, text, r.Goodput*r.Seconds, float64(good))
			expect(t, text, r.GoodShare, float64(good)/4)
		}
	})
	for _, text := range []string{"", "ttft", "ttft=x", "ttft=0s", "ttft=-1s", "foo=1s", "ttft=1s,,", "ttft=1s,ttft=2s"} {
		if err := new(SLO).Set(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

// event writes one event of a stream.
func event(w http.ResponseWriter, format string, a ...any) {
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "data: "+format+"\n\n", a...)
	_ = http.NewResponseController(w).Flush()
}

func TestFailures(t *testing.T) {
	const token = `{"choices":[{"text":"a","token_ids":[1]}]}`
	for kind, handle := range map[string]func(w http.ResponseWriter){
		"http 429: slow down": func(w http.ResponseWriter) {
			w.WriteHeader(429)
			fmt.Fprint(w, `{"error":{"message":"slow down"}}`)
		},
		"http 503: loading":                  func(w http.ResponseWriter) { w.WriteHeader(503); fmt.Fprint(w, `loading`) },
		"http 404":                           func(w http.ResponseWriter) { w.WriteHeader(404) },
		"malformed: the answer is no stream": func(w http.ResponseWriter) { fmt.Fprint(w, `{}`) },
		"malformed: an event that is not JSON": func(w http.ResponseWriter) {
			event(w, token)
			event(w, `{"choices":[`)
		},
		"malformed: an event of more than": func(w http.ResponseWriter) {
			event(w, token)
			for range 5 {
				fmt.Fprint(w, strings.Repeat("x", 1<<20))
			}
		},
		"in stream: out of memory": func(w http.ResponseWriter) {
			event(w, token)
			event(w, `{"error":{"message":"out of memory","code":500}}`)
		},
		"disconnect: the stream ended after 1": func(w http.ResponseWriter) { event(w, token) },
		"disconnect: unexpected EOF":           func(w http.ResponseWriter) { event(w, token); panic(http.ErrAbortHandler) },
		"connect: ":                            func(w http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"empty: ":                              func(w http.ResponseWriter) { event(w, "[DONE]") },
		"timeout: ":                            func(w http.ResponseWriter) { event(w, token); time.Sleep(20 * time.Second) },
	} {
		withServer(t, 10*time.Second, func(n int, q asked, w http.ResponseWriter) {
			if n%2 == 0 {
				handle(w)
			} else {
				script(w, 100*ms, 10*ms, 2)
			}
		}, func(c *Client) {
			all := run1(t, c, Plan{Source: fixedSource(2), Arrivals: Fixed(0.01, 0), Requests: 6})
			r := Summarise(all, SLO{}, true)
			name, _, _ := strings.Cut(kind, ":")
			if r.Failed != 3 || r.Completed != 3 || r.Errors[name] != 3 || !strings.HasPrefix(r.FirstError, kind) {
				t.Errorf("%s: %d failed, %d completed, %v, %s", kind, r.Failed, r.Completed, r.Errors, r.FirstError)
			}
			expect(t, kind, r.TTFT.Max, 100) // failures leave no trace in latencies
			overload := name == "http 429" || name == "http 503"
			if r.Judge(all); r.Saturated != overload || r.Faults != map[bool]int{true: 0, false: 3}[overload] {
				t.Errorf("%s: saturated %v, %d faults", kind, r.Saturated, r.Faults)
			}
		})
	}
}

// TestCounting: how tokens are counted where a server sends several in a chunk, and no ids.
func TestCounting(t *testing.T) {
	for name, c := range map[string]struct {
		events         []string
		tokens, chunks int
	}{
		"ids": {[]string{`{"choices":[{"token_ids":[1,2,3],"text":""}]}`, `{"choices":[{"token_ids":[4],"finish_reason":"stop"}]}`}, 4, 2},
		"running usage": {[]string{`{"choices":[{"delta":{"role":"assistant"}}],"usage":{"completion_tokens":0}}`, `{"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":3}}`,
			`{"choices":[{"delta":{"content":"b"},"finish_reason":"stop"}],"usage":{"completion_tokens":5}}`, `{"choices":[],"usage":{"completion_tokens":5}}`}, 5, 2},
		"usage at the end": {[]string{`{"choices":[{"text":"a"}]}`, `{"choices":[{"text":"b"}]}`, `{"choices":[{"text":"","finish_reason":"length"}]}`, `{"choices":[],"usage":{"completion_tokens":9}}`}, 9, 2},
		"chunks":           {[]string{`{"choices":[{"text":"a"}]}`, `{"choices":[{"text":"b","finish_reason":"length"}]}`}, 2, 2},
	} {
		for _, mark := range []string{"[DONE]", ""} {
			withServer(t, time.Minute, func(_ int, q asked, w http.ResponseWriter) {
				for _, e := range c.events {
					event(w, "%s", e)
				}
				if mark != "" {
					event(w, "%s", mark)
				}
			}, func(client *Client) {
				all := run1(t, client, Plan{Source: fixedSource(4), Concurrency: 1, Requests: 1})
				if o := all[0]; o.Failure != nil || o.Output != c.tokens || o.Chunks != c.chunks || len(o.Gaps) != c.chunks-1 {
					t.Errorf("%s: %+v %v", name, o, o.Failure)
				}
			})
		}
	}
}

func TestShortAnswersAreNoted(t *testing.T) {
	withServer(t, time.Minute, func(_ int, q asked, w http.ResponseWriter) { script(w, ms, ms, 2) }, func(c *Client) {
		if r := Summarise(run1(t, c, Plan{Source: fixedSource(3), Concurrency: 1, Requests: 2}), SLO{}, true); r.Short != 2 || r.Completed != 2 {
			t.Errorf("%+v", r)
		}
	})
}

func TestInterruption(t *testing.T) {
	withServer(t, time.Minute, func(_ int, q asked, w http.ResponseWriter) { script(w, 300*ms, 100*ms, 10) }, func(c *Client) {
		ctx, cancel := context.WithTimeout(context.Background(), 2550*ms)
		defer cancel()
		all, err := Run(ctx, c, Plan{Source: fixedSource(10), Arrivals: Fixed(2, 0)}, nil)
		check(t, err)
		// six arrivals until 2.5 s, each 1.2 s long: those of 0, 0.5 and 1 s are done
		if r := Summarise(all, SLO{}, true); r.Requests != 6 || r.Completed != 3 || r.Cut != 3 || r.Failed != 0 {
			t.Errorf("%+v", r)
		}
	})
}

func TestWrongPlansAndServers(t *testing.T) {
	withServer(t, time.Minute, func(n int, q asked, w http.ResponseWriter) { w.WriteHeader(503) }, func(c *Client) {
		for words, p := range map[string]Plan{
			"either": {Source: fixedSource(1)}, "number of requests": {Source: fixedSource(1), Concurrency: 1},
			"first request failed: http 503": {Source: fixedSource(1), Concurrency: 1, Requests: 1, Warmup: 1},
		} {
			if _, err := Run(context.Background(), c, p, nil); err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("%v, want %q", err, words)
			}
		}
		if _, err := c.Models(context.Background()); err == nil || !strings.Contains(err.Error(), "503") {
			t.Errorf("%v", err)
		}
	})
	for text, words := range map[string]string{`{"data":[{"id":"m","vocab_size":7}]}`: "", `{"data":[]}`: "does not list", `x`: "does not list"} {
		withServer(t, time.Minute, func(n int, q asked, w http.ResponseWriter) { fmt.Fprint(w, text) }, func(c *Client) {
			m, err := c.Models(context.Background())
			if words == "" && (err != nil || m[0].ID != "m" || m[0].Vocab != 7) || words != "" && (err == nil || !strings.Contains(err.Error(), words)) {
				t.Errorf("%s: %+v %v", text, m, err)
			}
		})
	}
}

func TestPercentiles(t *testing.T) {
	s := stats([]float64{4, 1, 3, 2, 5})
	if math.Abs(s.P90-4.6)+math.Abs(s.P95-4.8)+math.Abs(s.P99-4.96) > 1e-12 || s.Mean != 3 || s.P50 != 3 || s.Max != 5 {
		t.Errorf("%+v", s)
	}
	if s := stats([]float64{7}); s != (Stats{1, 7, 7, 7, 7, 7, 7}) {
		t.Errorf("%+v", s)
	}
	if s := stats(nil); s != (Stats{}) {
		t.Errorf("%+v", s)
	}
	r := Summarise(nil, SLO{}, true)
	if r.Requests != 0 || r.RequestRate != 0 {
		t.Errorf("%+v", r)
	}
	r.Rate = Rate(math.Inf(1))
	if text := string(must(json.Marshal(r))); strings.Contains(text, "_ms") || !strings.Contains(text, `"rate":"inf"`) {
		t.Errorf("%s", text)
	}
}

// TestTimeline: tokens fall into the bin in which they came, requests count for the part of a bin that they were under way.
func TestTimeline(t *testing.T) {
	o := []*Outcome{
		{Intended: 0, First: 50 * ms, Last: 250 * ms, End: 250 * ms, Chunks: 3, Output: 6, Gaps: []uint32{100000, 100000}},
		{Intended: 150 * ms, End: 200 * ms},
	}
	l := NewTimeline(o)
	for i, want := range []float64{20, 20, 20} { // two tokens in each tenth of a second
		expect(t, "output", l.Output[i], want)
	}
	for i, want := range []float64{1, 1.5, 0.5} {
		expect(t, "under way", l.Running[i], want)
	}
	if l = NewTimeline([]*Outcome{{End: 1000 * time.Second}}); len(l.Seconds) > maxBins+1 {
		t.Errorf("%d bins", len(l.Seconds))
	}
	if l = NewTimeline(nil); len(l.Seconds) != 1 {
		t.Errorf("%+v", l)
	}
}
