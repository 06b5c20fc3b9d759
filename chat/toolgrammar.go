package chat

import (
	"bytes"
	"strings"

	"reprise/chat/jinja"
)

// callState is where the reader of a tool call stands.
type callState uint8

const (
	readStart   callState = iota // behind <tool_call>
	readJSON                     // in {"name": ..., "arguments": ...}
	readName                     // behind <function=
	readBetween                  // between parameters
	readKey                      // behind <parameter=
	readValue                    // in a parameter's value
	readEnd                      // before </tool_call>
	callDone
	callFailed
)

const (
	functionOpen   = "<function="
	functionClose  = "</function>"
	parameterOpen  = "<parameter="
	parameterClose = "</parameter>"
	callClose      = "</tool_call>"

	maxNameBytes  = 256 // of a function or parameter
	maxSpaceBytes = 256 // between </function> in a value and </tool_call>
)

// parsedCall is a complete tool call as it was written.
type parsedCall struct {
	name       string
	arguments  *jinja.Dict // of the JSON form; nil in the tagged form
	parameters []rawParameter
}

type rawParameter struct{ name, value string }

// callReader reads the body of one tool call, in either form, from text that
// arrives in pieces. What it decides depends on the text alone, not on how it
// was cut.
//
//	<function=NAME> (<parameter=KEY>VALUE</parameter>)* </function> </tool_call>
//	{"name": NAME, "arguments": OBJECT} </tool_call>
type callReader struct {
	buffer []byte
	pos    int // of the next byte to read
	mark   int // start of the value or JSON text being read
	state  callState
	call   parsedCall
	json   jsonBalance
}

// feed adds text and reads on. When the call is done, pos is behind it.
func (r *callReader) feed(text string) callState {
	r.buffer = append(r.buffer, text...)
	for r.state < callDone {
		before, pos := r.state, r.pos
		if !r.advance() || r.state == before && r.pos == pos {
			break
		}
	}
	return r.state
}

// finish reads on as if the output ended with the closing tag, so that a call
// that is complete but for it counts.
func (r *callReader) finish() callState {
	rest := bytes.TrimRight(r.buffer, whitespace)
	if r.state == readEnd && len(bytes.TrimLeft(r.buffer[r.pos:], whitespace)) > 0 {
		return callFailed // a cut closing tag
	}
	if r.state == readEnd || r.state == readValue && bytes.HasSuffix(rest, []byte(functionClose)) {
		return r.feed(callClose)
	}
	return callFailed
}

// advance makes one step; false means it needs more text.
func (r *callReader) advance() bool {
	switch r.state {
	case readStart:
		return r.start()
	case readJSON:
		return r.readJSON()
	case readName:
		return r.tagName(func(name string) { r.call.name = name })
	case readBetween:
		return r.between()
	case readKey:
		return r.tagName(func(name string) { r.call.parameters = append(r.call.parameters, rawParameter{name: name}) })
	case readValue:
		return r.value()
	default:
		return r.expect(callClose, callDone)
	}
}

func (r *callReader) skipSpace() {
	r.pos = len(r.buffer) - len(bytes.TrimLeft(r.buffer[r.pos:], whitespace))
}

// expect consumes tag behind whitespace and enters next.
func (r *callReader) expect(tag string, next callState) bool {
	r.skipSpace()
	rest := r.buffer[r.pos:]
	switch {
	case bytes.HasPrefix(rest, []byte(tag)):
		r.pos += len(tag)
		r.state = next
		return true
	case strings.HasPrefix(tag, string(rest[:min(len(rest), len(tag))])):
		return false
	}
	r.state = callFailed
	return true
}

func (r *callReader) start() bool {
	r.skipSpace()
	if r.pos == len(r.buffer) {
		return false
	}
	if r.buffer[r.pos] == '{' {
		r.state, r.mark = readJSON, r.pos
		return true
	}
	return r.expect(functionOpen, readName)
}

// tagName reads NAME> and enters the state behind it.
func (r *callReader) tagName(set func(string)) bool {
	rest := r.buffer[r.pos:]
	end := bytes.IndexByte(rest, '>')
	name := rest
	if end >= 0 {
		name = rest[:end]
	}
	if len(name) > maxNameBytes || bytes.ContainsAny(name, "<\n") || end >= 0 && len(bytes.TrimSpace(name)) == 0 {
		r.state = callFailed
		return true
	}
	if end < 0 {
		return false
	}
	set(string(bytes.TrimSpace(name)))
	r.pos += end + 1
	r.mark = r.pos
	if r.state == readName {
		r.state = readBetween
	} else {
		r.state = readValue
	}
	return true
}

func (r *callReader) between() bool {
	r.skipSpace()
	if bytes.HasPrefix(r.buffer[r.pos:], []byte("</")) {
		return r.expect(functionClose, readEnd)
	}
	return r.expect(parameterOpen, readKey)
}

// value reads up to </parameter>, or to the </function> </tool_call> of a
// call whose last </parameter> is missing.
func (r *callReader) value() bool {
	rest := r.buffer[r.pos:]
	closed := bytes.Index(rest, []byte(parameterClose))
	ended := bytes.Index(rest, []byte(functionClose))
	if ended >= 0 && (closed < 0 || ended < closed) {
		return r.functionEnd(r.pos + ended)
	}
	if closed < 0 {
		r.pos += max(len(rest)-len(parameterClose)+1, 0)
		return false
	}
	r.setValue(r.pos + closed)
	r.pos += closed + len(parameterClose)
	r.state = readBetween
	return true
}

// functionEnd decides whether the </function> at a place in a value ends the
// call or is part of the value.
func (r *callReader) functionEnd(at int) bool {
	behind := bytes.TrimLeft(r.buffer[at+len(functionClose):], whitespace)
	space := len(r.buffer) - at - len(functionClose) - len(behind)
	switch {
	case space > maxSpaceBytes:
	case bytes.HasPrefix(behind, []byte(callClose)):
		r.setValue(at)
		r.pos, r.state = at+len(functionClose), readEnd
		return true
	case strings.HasPrefix(callClose, string(behind[:min(len(behind), len(callClose))])):
		r.pos = at
		return false
	}
	r.pos = at + len(functionClose)
	return true
}

// setValue takes the text up to end as the last parameter's value, without
// one newline on either side.
func (r *callReader) setValue(end int) {
	value := string(r.buffer[r.mark:end])
	value = strings.TrimSuffix(strings.TrimPrefix(value, "\n"), "\n")
	r.call.parameters[len(r.call.parameters)-1].value = value
}

// readJSON looks for the end of the object and checks it.
func (r *callReader) readJSON() bool {
	for r.pos < len(r.buffer) {
		c := r.buffer[r.pos]
		r.pos++
		done, ok := r.json.next(c)
		if !ok {
			r.state = callFailed
			return true
		}
		if done {
			r.state = readEnd
			if !r.takeJSON(r.buffer[r.mark:r.pos]) {
				r.state = callFailed
			}
			return true
		}
	}
	return false
}

func (r *callReader) takeJSON(data []byte) bool {
	v, err := jinja.DecodeJSON(data)
	object, ok := v.(*jinja.Dict)
	if err != nil || !ok {
		return false
	}
	name, ok := object.Get("name").(jinja.String)
	if !ok || name == "" {
		return false
	}
	r.call.name = string(name)
	switch arguments := object.Get("arguments").(type) {
	case *jinja.Dict:
		r.call.arguments = arguments
	case nil:
		r.call.arguments = jinja.NewDict()
	case jinja.String:
		r.call.arguments, ok = parsedArguments(arguments).(*jinja.Dict)
		return ok
	default:
		return false
	}
	return true
}

// jsonBalance finds the end of a JSON object byte by byte and stops early at
// bytes that no JSON has.
type jsonBalance struct {
	depth    int
	inString bool
	escaped  bool
}

// next takes one byte: done behind the outermost bracket, not ok where it
// cannot be JSON.
func (j *jsonBalance) next(c byte) (done, ok bool) {
	if j.inString {
		switch {
		case c < 0x20:
			return false, false
		case j.escaped:
			j.escaped = false
		case c == '\\':
			j.escaped = true
		case c == '"':
			j.inString = false
		}
		return false, true
	}
	switch {
	case c == '"':
		j.inString = true
	case c == '{' || c == '[':
		j.depth++
	case c == '}' || c == ']':
		j.depth--
		return j.depth == 0, true
	default:
		return false, strings.IndexByte(" \t\r\n,:+-.0123456789eEtrufalsn", c) >= 0
	}
	return false, true
}
