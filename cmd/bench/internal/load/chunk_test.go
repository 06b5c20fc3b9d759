package load

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

const (
	completionChunk = `{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" the \"token_ids\":[1,2,3] \\","logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":[5,6]}],"usage":{"prompt_tokens":3,"completion_tokens":7,"total_tokens":10}}`
	chatChunk       = `{"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"Hello \u00fc"},"logprobs":{"content":[{"token":"x","top_logprobs":[{},[]]}]},"finish_reason":null,"token_ids":null}]}`
)

func TestChunks(t *testing.T) {
	for _, c := range []struct {
		text string
		want chunk
	}{
		{completionChunk, chunk{ids: 2, text: true, prompt: 3, completion: 7}},
		{chatChunk, chunk{ids: -1, text: true, prompt: -1, completion: -1}},
		{`{"choices":[{"delta":{"role":"assistant","content":""}}]}`, chunk{ids: -1, prompt: -1, completion: -1}},
		{`{"choices":[{"delta":{"reasoning_content":"x","content":null}}]}`, chunk{ids: -1, text: true, prompt: -1, completion: -1}},
		{`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}`, chunk{ids: -1, text: true, prompt: -1, completion: -1}},
		{`{"choices":[{"text":"","finish_reason":"length","token_ids":[]}],"usage":null}`, chunk{ids: 0, finished: true, prompt: -1, completion: -1}},
		{` { "choices" : [ ] , "usage" : { "prompt_tokens" : 12 , "completion_tokens" : 34 , "prompt_tokens_details" : { "cached_tokens" : 1 } } } `, chunk{ids: -1, prompt: 12, completion: 34}},
		{`{"choices":[{"token_ids":[1]},{"token_ids":[2,3]}]}`, chunk{ids: 3, prompt: -1, completion: -1}},
		{`{}`, chunk{ids: -1, prompt: -1, completion: -1}},
		{`{"choices":null,"usage":{"prompt_tokens":null,"completion_tokens":1.5}}`, chunk{ids: -1, prompt: -1, completion: -1}},
		{`{"error":null,"x":[{"a":"}]"}]}`, chunk{ids: -1, prompt: -1, completion: -1}},
	} {
		got, err := parseChunk([]byte(c.text))
		if err != nil || got.ids != c.want.ids || got.text != c.want.text || got.finished != c.want.finished || got.prompt != c.want.prompt || got.completion != c.want.completion || got.problem != nil {
			t.Errorf("%s\n%+v %v", c.text, got, err)
		}
	}
	got, err := parseChunk([]byte(`{"error":{"message":"no \"memory\"","code":500}}`))
	if err != nil || message(got.problem) != `no "memory"` {
		t.Errorf("%s %v", got.problem, err)
	}
	if got, _ := parseChunk([]byte(`{"error":"plain"}`)); message(got.problem) != `"plain"` {
		t.Errorf("%s", got.problem)
	}
}

// TestCutChunks: no beginning of a chunk is a chunk, and none panics.
func TestCutChunks(t *testing.T) {
	for _, text := range []string{completionChunk, chatChunk} {
		for i := range len(text) {
			var bad *badStream
			if _, err := parseChunk([]byte(text[:i])); !errors.As(err, &bad) {
				t.Errorf("%q is accepted", text[:i])
			}
		}
		if _, err := parseChunk([]byte(text + "}")); err == nil {
			t.Error("text behind the object is accepted")
		}
	}
}

// FuzzChunk: whatever encoding/json accepts as an object is accepted, and the usage agrees.
func FuzzChunk(f *testing.F) {
	for _, s := range []string{completionChunk, chatChunk, `{"a":"\\\"","b":[[],{}]}`, `{"usage":{"completion_tokens":5}}`, `[`, `{"a"`, `{"`, `{"choices":[[]]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseChunk(data)
		var o struct {
			Choices []struct{} `json:"choices"`
			Usage   struct {
				N *int `json:"completion_tokens"`
			} `json:"usage"`
		}
		var keys map[string]json.RawMessage
		if json.Unmarshal(data, &o) != nil || json.Unmarshal(data, &keys) != nil || keys == nil {
			return
		}
		if err != nil {
			t.Fatalf("%q is refused: %v", data, err)
		}
		if strings.Count(string(data), "usage") == 1 && keys["usage"] != nil && strings.Count(string(data), "completion_tokens") == 1 && o.Usage.N != nil && *o.Usage.N >= 0 && *o.Usage.N < 1e9 &&
			strings.Contains(string(keys["usage"]), `"completion_tokens"`) && c.completion != *o.Usage.N && !strings.ContainsAny(string(data), `\`) {
			t.Errorf("%q: %d, want %d", data, c.completion, *o.Usage.N)
		}
	})
}

func readEvents(r io.Reader) (out []string, err error) {
	e := &events{now: time.Now}
	e.reset(r)
	for {
		data, err := e.next()
		if err != nil {
			return out, err
		}
		out = append(out, string(data))
	}
}

func TestEvents(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	stream := ": comment\r\n\r\ndata: one\r\n\r\nevent: e\nid: 4\ndata:two\n\n\ndata: " + long + "\n\ndata: [DONE]"
	want := "one,two," + long + ",[DONE]"
	for name, r := range map[string]io.Reader{
		"whole": strings.NewReader(stream), "bytes": iotest.OneByteReader(strings.NewReader(stream)), "halves": iotest.HalfReader(strings.NewReader(stream)),
		"error with data": iotest.DataErrReader(strings.NewReader(stream)),
	} {
		got, err := readEvents(r)
		if err != io.EOF || strings.Join(got, ",") != want {
			t.Errorf("%s: %d events, %v", name, len(got), err)
		}
	}
	if _, err := readEvents(io.MultiReader(strings.NewReader("data: a"), iotest.ErrReader(errors.New("reset")))); err == nil || err.Error() != "reset" {
		t.Errorf("%v", err)
	}
	var bad *badStream
	if _, err := readEvents(io.LimitReader(zeros{}, 2*maxEvent)); !errors.As(err, &bad) {
		t.Errorf("an endless line: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestReaderDoesNotAllocate(t *testing.T) {
	stream := strings.Repeat("data: "+completionChunk+"\n\n", 50)
	e := &events{now: time.Now}
	e.reset(strings.NewReader(stream))
	if n := testing.AllocsPerRun(20, func() {
		e.reset(strings.NewReader(stream))
		for {
			data, err := e.next()
			if err != nil {
				return
			}
			if _, err := parseChunk(data); err != nil {
				t.Fatal(err)
			}
		}
	}); n > 1 { // the strings.Reader
		t.Errorf("%v allocations in 50 events", n)
	}
}

// BenchmarkReader is the work on one event without the connection.
func BenchmarkReader(b *testing.B) {
	event := "data: " + completionChunk + "\n\n"
	stream := strings.Repeat(event, 1000)
	e := &events{now: time.Now}
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for n := b.N; n > 0; {
		e.reset(strings.NewReader(stream))
		for ; n > 0; n-- {
			data, err := e.next()
			if err != nil {
				break
			}
			if _, err := parseChunk(data); err != nil {
				b.Fatal(err)
			}
		}
	}
}
