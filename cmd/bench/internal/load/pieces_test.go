package load

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func take(a Arrivals, n int) (out []float64) {
	for range n {
		at, ok := a()
		if !ok {
			break
		}
		out = append(out, at.Seconds())
	}
	return out
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*max(1, math.Abs(b)) }

func TestFixedArrivals(t *testing.T) {
	if got := take(Fixed(4, 0), 4); !slices.Equal(got, []float64{0, 0.25, 0.5, 0.75}) {
		t.Errorf("%v", got)
	}
	if got := take(Fixed(math.Inf(1), 0), 3); !slices.Equal(got, []float64{0, 0, 0}) {
		t.Errorf("%v", got)
	}
	// ramp of 2 s to 4/s: 4 arrivals inside, at sqrt(i) s; then every 0.25 s
	for i, at := range take(Fixed(4, 2*time.Second), 8) {
		want := math.Sqrt(float64(i))
		if i >= 4 {
			want = 2 + float64(i-4)/4
		}
		if !near(at, want) {
			t.Errorf("arrival %d at %v, want %v", i, at, want)
		}
	}
}

func TestPoissonArrivals(t *testing.T) {
	const n, rate = 20000, 5.0
	a, b, c := take(Poisson(rate, 0, 1), n), take(Poisson(rate, 0, 1), n), take(Poisson(rate, 0, 2), n)
	if !slices.Equal(a, b) || slices.Equal(a, c) || !slices.IsSorted(a) {
		t.Error("the seed does not decide")
	}
	// The sum of n gaps of mean 1/rate deviates by sqrt(n)/rate: six of these for a seed that is fixed anyway. Gaps longer
	// than the mean are 1/e of all.
	if got := a[n-1] * rate; math.Abs(got-n) > 6*math.Sqrt(n) {
		t.Errorf("%d arrivals in %v mean gaps", n, got)
	}
	long := 0
	for i := 1; i < n; i++ {
		if (a[i]-a[i-1])*rate > 1 {
			long++
		}
	}
	if share := float64(long) / n; math.Abs(share-1/math.E) > 0.02 {
		t.Errorf("%v of the gaps are longer than the mean", share)
	}
}

func TestLengths(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for text, mean := range map[string]float64{"7": 7, "10-20": 15, "normal:1000:50": 1000, "lognormal:100:0.5": 100 * math.Exp(0.125), "exp:500": 500} {
		l, err := ParseLengths(text)
		check(t, err)
		sum := 0.0
		for range 20000 {
			n := l.Draw(r)
			if n < 1 || n > MaxLength || text == "10-20" && (n < 10 || n > 20) {
				t.Fatalf("%s drew %d", text, n)
			}
			sum += float64(n)
		}
		if got := sum / 20000; math.Abs(got-mean) > 0.03*mean {
			t.Errorf("%s: mean %v, want %v", text, got, mean)
		}
	}
	for _, text := range []string{"", "0", "-1", "x", "5-", "5-x", "9-3", "1.5", "normal:5", "uniform:5:NaN", "lognormal:5", "exp:1:2", "gamma:1:2", "1e99", "nan", "lognormal:5:-1"} {
		if _, err := ParseLengths(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

func mustLengths(t *testing.T, text string) Lengths {
	t.Helper()
	l, err := ParseLengths(text)
	check(t, err)
	return l
}

func TestSyntheticPrompts(t *testing.T) {
	s := Synthetic{Input: mustLengths(t, "5-30"), Output: mustLengths(t, "3-9"), Vocab: 50, Prefix: 20, Groups: 3, Seed: 7}
	a, b := s.Source(), s.Source()
	prefixes, whole := map[string]bool{}, map[string]bool{}
	for range 60 {
		j, _ := a()
		same, _ := b()
		if !slices.Equal(j.Prompt.IDs, same.Prompt.IDs) || j.Output != same.Output {
			t.Fatal("the same seed gives something else")
		}
		if n := len(j.Prompt.IDs); n < 25 || n > 50 || j.Output < 3 || j.Output > 9 || slices.Min(j.Prompt.IDs) < 0 || slices.Max(j.Prompt.IDs) >= 50 {
			t.Fatalf("%d ids %v, %d out", n, j.Prompt.IDs, j.Output)
		}
		text, err := json.Marshal(j.Prompt.IDs[:20])
		check(t, err)
		prefixes[string(text)] = true
		text, err = json.Marshal(j.Prompt.IDs)
		check(t, err)
		whole[string(text)] = true
	}
	if len(prefixes) != 3 || len(whole) != 60 {
		t.Errorf("%d prefixes, want 3; %d different prompts, want 60", len(prefixes), len(whole))
	}
	s.Seed = 8
	if j, _ := s.Source()(); prefixes[string(must(json.Marshal(j.Prompt.IDs[:20])))] {
		t.Error("another seed has the same prefix")
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func readTrace(t *testing.T, name string) []TraceRow {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	check(t, err)
	defer f.Close()
	rows, err := ReadTrace(f)
	check(t, err)
	return rows
}

func TestAzureTrace(t *testing.T) {
	rows := readTrace(t, "azure.csv")
	if len(rows) != 5 || rows[0].At != 0 || rows[1].At != 52*time.Millisecond || rows[1].Input != 3180 || rows[1].Output != 8 {
		t.Errorf("%+v", rows)
	}
	if at := take(Timed(rows, 2), 9); len(at) != 5 || !near(at[1], 0.026) {
		t.Errorf("twice as fast: %v", at)
	}
}

func TestMooncakeTraceSharesBlocks(t *testing.T) {
	rows := readTrace(t, "mooncake.jsonl")
	if len(rows) != 5 || rows[0].Input != 6758 || rows[0].Output != 500 || len(rows[0].Blocks) != 14 {
		t.Fatalf("%+v", rows[0])
	}
	source := FromTrace(rows, 1000, Limits{Output: 400}, 3)
	a, _ := source()
	b, _ := source()
	if len(a.Prompt.IDs) != 6758 || len(b.Prompt.IDs) != 7322 || a.Output != 400 {
		t.Fatalf("%d and %d ids", len(a.Prompt.IDs), len(b.Prompt.IDs))
	}
	x, y := a.Prompt.IDs, b.Prompt.IDs
	if !slices.Equal(x[:BlockTokens], y[:BlockTokens]) || slices.Equal(x[BlockTokens:2*BlockTokens], y[BlockTokens:2*BlockTokens]) {
		t.Error("block 0 is shared by both, the next ones are not")
	}
	for range 3 {
		source()
	}
	again, _ := source()
	if z := again.Prompt.IDs; len(z) != len(x) || slices.Equal(z[:BlockTokens], x[:BlockTokens]) {
		t.Error("the second pass is not the same lengths with other tokens")
	}
	short, _ := FromTrace(rows, 1000, Limits{Input: 700}, 3)()
	if !slices.Equal(short.Prompt.IDs, x[:700]) {
		t.Error("a cut prompt is not the begin of the whole one")
	}
}

func TestTraceFormats(t *testing.T) {
	burst := "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n45,,1,GPT-4,5,7,12,API\n5,,1,ChatGPT,472,18,490,Conversation log\n46,,1,ChatGPT,3,0,3,x\n"
	rows, err := ReadTrace(strings.NewReader(burst))
	check(t, err)
	if len(rows) != 2 || rows[0].Input != 472 || rows[1].At != 40*time.Second {
		t.Errorf("BurstGPT: %+v", rows)
	}
	for text, words := range map[string]string{
		"":                                 "empty",
		"{\"timestamp\":0,\x00":            "not compressed",
		"\x28\xb5\x2f\xfdabc":              "JSON lines",
		"a\"b,c\n":                         "CSV with a header",
		"{}x":                              "not a JSON object",
		"a,b\n1,2\n":                       "line 1",
		"timestamp,contexttokens,output\n": "generatedtokens",
		"TIMESTAMP,ContextTokens,GeneratedTokens\n":                       "no requests",
		"TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,1\n":             "line 2",
		"TIMESTAMP,ContextTokens,GeneratedTokens\n1,x,1\n":                "line 2",
		"TIMESTAMP,ContextTokens,GeneratedTokens\n1,1,1\n2,99999999999,1": "line 3",
		"TIMESTAMP,ContextTokens,GeneratedTokens\n1,1,1\n2,1\n":           "line 3",
		"TIMESTAMP,ContextTokens,GeneratedTokens\nNaN,1,1\n":              "line 2",
		"{\"timestamp\":0,\"input_length\":1,\"output_length\":1}\n{":     "line 2",
		"{\"input_length\":1,\"output_length\":1}":                        "no timestamp",
		"{\"timestamp\":0,\"input_length\":0,\"output_length\":1}":        "line 1",
		"{\"timestamp\":1e300,\"input_length\":1,\"output_length\":1}":    "range",
	} {
		if _, err := ReadTrace(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v, want %q", text, err, words)
		}
	}
}

func TestPromptFiles(t *testing.T) {
	read := func(name string) []Job {
		f, err := os.Open("testdata/" + name)
		check(t, err)
		defer f.Close()
		jobs, err := ReadPrompts(f)
		check(t, err)
		return jobs
	}
	if j := read("batch.jsonl"); len(j) != 2 || j[0].Output != 1000 || !strings.Contains(string(j[0].Prompt.Messages), "Hello world!") {
		t.Errorf("%+v", j)
	}
	if j := read("questions.jsonl"); len(j) != 2 || !strings.HasPrefix(j[0].Prompt.Text, "Compose an engaging") || j[0].Output != 0 {
		t.Errorf("%+v", j)
	}
	if j := read("sharegpt.json"); len(j) != 2 || j[0].Prompt.Text != "Who are you?" {
		t.Errorf("%+v", j)
	}
	j, err := ReadPrompts(strings.NewReader("one\n\n two \n"))
	if err != nil || len(j) != 2 || j[1].Prompt.Text != "two" {
		t.Errorf("%+v %v", j, err)
	}
	j, err = ReadPrompts(strings.NewReader(`{"prompt":[1,2],"max_tokens":5}` + "\n" + `{"prompt":"a"}`))
	if err != nil || len(j) != 2 || !slices.Equal(j[0].Prompt.IDs, []int32{1, 2}) || j[0].Output != 5 || j[1].Prompt.Text != "a" {
		t.Errorf("%+v %v", j, err)
	}
	next := Repeat(j, mustLengths(t, "7"), Limits{Input: 1, Output: 6}, 0)
	a, _ := next()
	b, _ := next()
	c, _ := next()
	if len(a.Prompt.IDs) != 1 || a.Output != 5 || b.Output != 6 || len(c.Prompt.IDs) != 1 {
		t.Errorf("%+v %+v %+v", a, b, c)
	}
	for text, words := range map[string]string{
		"": "no prompts", "[]": "no prompts", "[1]": "entry 1", "[": "its end is missing", `{"prompt":""}`: "line 1", `{"prompt":{}}`: "line 1", "{\"text\":\"a\"}\n{}": "line 2",
		`{"prompt":[1.5]}`: "line 1", `{"prompt":"a","max_tokens":99999999999}`: "max_tokens", `{"x":1}`: "no prompt", "a\x00b": "no text",
	} {
		if _, err := ReadPrompts(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v, want %q", text, err, words)
		}
	}
}

func TestBodies(t *testing.T) {
	decode := func(b Body, j Job) (string, map[string]any) {
		t.Helper()
		path, body := b.build(j)
		var out map[string]any
		if err := json.Unmarshal(body, &out); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		return path, out
	}
	path, m := decode(Body{Model: `a"b`, IgnoreEOS: true, Temperature: 0.5, Extra: json.RawMessage(`{"top_k":3}`)}, Job{Prompt{IDs: []int32{1, 22}}, 9})
	if path != "/completions" || m["model"] != `a"b` || m["max_tokens"] != 9.0 || m["ignore_eos"] != true || m["top_k"] != 3.0 || m["temperature"] != 0.5 || m["return_token_ids"] != true {
		t.Errorf("%s %v", path, m)
	}
	if ids := m["prompt"].([]any); len(ids) != 2 || ids[1] != 22.0 {
		t.Errorf("%v", m)
	}
	path, m = decode(Body{Chat: true, Plain: true, IgnoreEOS: true}, Job{Prompt{Text: "<a\n>"}, 1})
	if path != "/chat/completions" || m["messages"].([]any)[0].(map[string]any)["content"] != "<a\n>" || m["ignore_eos"] != nil || m["return_token_ids"] != nil {
		t.Errorf("%s %v", path, m)
	}
	if path, m = decode(Body{Extra: json.RawMessage(`{}`)}, Job{Prompt{Messages: json.RawMessage(`[{}]`)}, 1}); path != "/chat/completions" || m["messages"] == nil {
		t.Errorf("%s %v", path, m)
	}
	if path, m = decode(Body{}, Job{Prompt{Text: "x"}, 1}); path != "/completions" || m["prompt"] != "x" {
		t.Errorf("%s %v", path, m)
	}
}
