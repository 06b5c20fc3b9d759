package load

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// chunk is what counts of one event of a streamed completion or chat.
type chunk struct {
	ids        int    // token ids of all choices; -1 where the server sends none
	text       bool   // some choice has text, reasoning or a tool call
	finished   bool   // some choice has a finish_reason
	prompt     int    // usage.prompt_tokens; -1 where absent
	completion int    // usage.completion_tokens; -1 where absent
	problem    []byte // the raw error member, nil without one
}

// parseChunk reads the members that count and skips over the others without looking inside. It allocates nothing.
func parseChunk(data []byte) (chunk, error) {
	c := chunk{ids: -1, prompt: -1, completion: -1}
	w := walker{data: data}
	w.object(func(key []byte) {
		switch string(key) {
		case "choices":
			w.array(func() { c.choice(&w) })
		case "usage":
			c.usage(&w)
		case "error":
			if raw := w.value(); string(raw) != "null" {
				c.problem = raw
			}
		default:
			w.value()
		}
	})
	w.space()
	if w.bad || w.i != len(data) {
		return c, &badStream{"an event that is not JSON: " + strconv.Quote(string(data[:min(len(data), 100)]))}
	}
	return c, nil
}

// choice reads a choice, and by calling itself the delta of a chat's choice.
func (c *chunk) choice(w *walker) {
	w.object(func(key []byte) {
		switch string(key) {
		case "token_ids":
			c.tokenIDs(w)
		case "delta":
			c.choice(w)
		case "text", "content", "reasoning_content", "reasoning", "refusal":
			if raw := w.value(); len(raw) > 2 && raw[0] == '"' {
				c.text = true
			}
		case "tool_calls":
			if raw := w.value(); len(raw) > 2 && raw[0] == '[' {
				c.text = true
			}
		case "finish_reason":
			if raw := w.value(); len(raw) > 2 && raw[0] == '"' {
				c.finished = true
			}
		default:
			w.value()
		}
	})
}

func (c *chunk) tokenIDs(w *walker) {
	if w.peek() != '[' {
		w.value() // null: the server does not return ids
		return
	}
	c.ids = max(c.ids, 0)
	w.array(func() { w.value(); c.ids++ })
}

func (c *chunk) usage(w *walker) {
	if w.peek() != '{' {
		w.value()
		return
	}
	w.object(func(key []byte) {
		switch string(key) {
		case "prompt_tokens":
			c.prompt = w.number()
		case "completion_tokens":
			c.completion = w.number()
		default:
			w.value()
		}
	})
}

// message is the text of an error member, shortened.
func message(raw []byte) string {
	var e struct{ Message string }
	if json.Unmarshal(raw, &e) != nil || e.Message == "" {
		e.Message = string(raw)
	}
	return e.Message[:min(len(e.Message), 200)]
}

// walker goes through JSON text once. After bad is set it gives nothing more.
type walker struct {
	data []byte
	i    int
	bad  bool
}

func (w *walker) space() {
	for w.i < len(w.data) && (w.data[w.i] == ' ' || w.data[w.i] == '\n' || w.data[w.i] == '\t' || w.data[w.i] == '\r') {
		w.i++
	}
}

// peek is the first byte of what comes next, 0 at the end.
func (w *walker) peek() byte {
	w.space()
	if w.bad || w.i >= len(w.data) {
		return 0
	}
	return w.data[w.i]
}

// take goes past b if it is next.
func (w *walker) take(b byte) bool {
	if w.peek() != b {
		return false
	}
	w.i++
	return true
}

func (w *walker) must(b byte) {
	if !w.take(b) {
		w.bad = true
	}
}

// object calls member with each key, raw between its quotes; member must read the value.
func (w *walker) object(member func(key []byte)) {
	w.must('{')
	if w.take('}') {
		return
	}
	for !w.bad {
		key := w.str()
		w.must(':')
		if w.bad {
			return
		}
		member(key[1 : len(key)-1])
		if !w.take(',') {
			w.must('}')
			return
		}
	}
}

// array calls element in front of each; element must read it.
func (w *walker) array(element func()) {
	if w.peek() != '[' {
		w.value()
		return
	}
	w.i++
	if w.take(']') {
		return
	}
	for !w.bad {
		element()
		if !w.take(',') {
			w.must(']')
			return
		}
	}
}

// str reads a string, quotes included.
func (w *walker) str() []byte {
	if w.peek() != '"' {
		w.bad = true
		return nil
	}
	begin := w.i
	for w.i++; ; w.i++ {
		n := bytes.IndexByte(w.data[w.i:], '"')
		if n < 0 {
			w.bad = true
			return nil
		}
		w.i += n
		back := w.i
		for w.data[back-1] == '\\' { // ends at the opening quote at the latest
			back--
		}
		if (w.i-back)%2 == 0 {
			w.i++
			return w.data[begin:w.i]
		}
	}
}

// value reads whatever comes and returns its text. Of objects and arrays only the brackets' number is checked.
func (w *walker) value() []byte {
	switch b := w.peek(); b {
	case '"':
		return w.str()
	case '{', '[':
		return w.nested()
	case 0, ',', ':', '}', ']':
		w.bad = true
		return nil
	}
	begin := w.i
	for w.i < len(w.data) && !delimiter(w.data[w.i]) {
		w.i++
	}
	return w.data[begin:w.i]
}

func delimiter(b byte) bool {
	switch b {
	case ',', '}', ']', ':', '{', '[', '"', ' ', '\n', '\t', '\r':
		return true
	}
	return false
}

func (w *walker) nested() []byte {
	begin, depth := w.i, 0
	for w.i < len(w.data) {
		switch w.data[w.i] {
		case '"':
			if w.str(); w.bad {
				return nil
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		w.i++
		if depth == 0 {
			return w.data[begin:w.i]
		}
	}
	w.bad = true
	return nil
}

// number reads a whole number that is not negative; anything else is -1.
func (w *walker) number() int {
	raw := w.value()
	n, digits := 0, 0
	for _, b := range raw {
		if b < '0' || b > '9' || digits == 9 {
			return -1
		}
		n, digits = 10*n+int(b-'0'), digits+1
	}
	if digits == 0 {
		return -1
	}
	return n
}
