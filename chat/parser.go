package chat

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"
)

// whitespace is what is trimmed next to tags.
const whitespace = " \t\r\n"

// ParserOptions configure a Parser.
type ParserOptions struct {
	// Prompt is the rendered prompt: its end decides whether the answer
	// starts inside the reasoning.
	Prompt string
	// Markers are the token ids of the tags.
	Markers Markers
	// Tools are the functions offered. ParseCalls tells whether calls are
	// looked for at all: without it (no tools, or tool_choice none) tool call
	// tags are text.
	Tools      Tools
	ParseCalls bool
	// NewID makes the id of a call; nil makes random ones.
	NewID func() string
}

// Parser splits a generated answer into reasoning, content and tool calls as
// it arrives. It holds back at most a possible marker with the whitespace
// before it, and a tool call until it is complete. A tag that it does not act
// on stays text. A Parser serves one answer and one goroutine.
type Parser struct {
	options ParserOptions
	scanner scanner
	log     eventLog

	reasoning bool   // the text at hand is reasoning
	trim      bool   // drop whitespace up to the next text
	space     []byte // whitespace held back: a tag may follow
	begun     bool   // reasoning or content was emitted since the last tag
	mayThink  bool   // <think> may still open the reasoning

	call   *callReader // a tool call being read
	pieces []piece     // what it has read, its opening tag first
	calls  int
	ended  bool // no more calls are looked for
}

// NewParser returns a parser for the answer to a prompt.
func NewParser(options ParserOptions) *Parser {
	if options.NewID == nil {
		options.NewID = randomID
	}
	state := promptState(options.Prompt)
	return &Parser{
		options:   options,
		scanner:   newScanner(options.Markers, options.ParseCalls),
		reasoning: state.reasoning,
		trim:      state.atTag,
		mayThink:  true,
		ended:     !options.ParseCalls,
	}
}

func randomID() string {
	var b [12]byte
	rand.Read(b[:])
	return "call_" + hex.EncodeToString(b[:])
}

// StartsInReasoning tells whether an answer to the prompt begins inside the
// reasoning: its last turn has opened <think> and not closed it.
func StartsInReasoning(prompt string) bool { return promptState(prompt).reasoning }

// turnStart opens a turn in the chat formats of the supported families; tags
// in earlier turns say nothing about the answer.
const turnStart = "<|im_start|>"

type tagState struct {
	reasoning bool
	atTag     bool // only whitespace follows the last think tag
}

func promptState(prompt string) tagState {
	if at := strings.LastIndex(prompt, turnStart); at >= 0 {
		prompt = prompt[at:]
	}
	open := strings.LastIndex(prompt, markerTexts[thinkOpen])
	closed := strings.LastIndex(prompt, markerTexts[thinkClose])
	if open < 0 && closed < 0 {
		return tagState{}
	}
	end := closed + len(markerTexts[thinkClose])
	if open > closed {
		end = open + len(markerTexts[thinkOpen])
	}
	return tagState{reasoning: open > closed, atTag: strings.Trim(prompt[end:], whitespace) == ""}
}

// Push takes the next token and its text, which may be empty, and returns
// what became certain. Text without a token has the id NoToken.
func (p *Parser) Push(id int32, text string) []Event {
	p.process(p.scanner.push(id, text))
	return p.log.take()
}

// Finish ends the answer and returns what was held back.
func (p *Parser) Finish() []Event {
	p.process(p.scanner.flush())
	var rest []piece
	if p.call != nil {
		rest = p.endCall(p.call.finish())
	}
	p.ended = true
	p.process(rest)
	p.releaseSpace()
	return p.log.take()
}

// process works pieces off; a call that turns out malformed puts its own back.
func (p *Parser) process(queue []piece) {
	for len(queue) > 0 {
		next := queue[0]
		queue = queue[1:]
		if p.call == nil {
			p.one(next)
			continue
		}
		if next.kind == thinkClose && p.reasoning {
			queue = slices.Concat(p.giveUp(0), []piece{next}, queue)
			continue
		}
		p.pieces = append(p.pieces, next)
		if state := p.call.feed(next.text); state >= callDone {
			queue = append(p.endCall(state), queue...)
		}
	}
}

// one handles a piece outside tool calls.
func (p *Parser) one(next piece) {
	switch {
	case next.kind == thinkClose && p.reasoning:
		p.enter(false)
		p.mayThink = false
	case next.kind == thinkOpen && p.mayThink && !p.begun:
		p.enter(true)
	case next.kind == toolOpen && !p.ended:
		p.call, p.pieces = &callReader{}, []piece{next}
	default:
		p.text(next.text)
	}
}

// enter changes between reasoning and content at a tag.
func (p *Parser) enter(reasoning bool) {
	p.reasoning, p.space, p.trim, p.begun = reasoning, p.space[:0], true, false
}

// text emits text, holding back whitespace at its end where a tag may follow.
func (p *Parser) text(text string) {
	if p.trim {
		text = strings.TrimLeft(text, whitespace)
	}
	if text == "" {
		return
	}
	p.trim = false
	body := strings.TrimRight(text, whitespace)
	if body != "" {
		p.releaseSpace()
		p.emit(body)
	}
	p.space = append(p.space, text[len(body):]...)
	if !p.tagMayFollow() {
		p.releaseSpace()
	}
}

func (p *Parser) releaseSpace() {
	if len(p.space) > 0 {
		p.emit(string(p.space))
		p.space = p.space[:0]
	}
}

// tagMayFollow tells whether a tag that would be acted on can still come.
func (p *Parser) tagMayFollow() bool {
	return p.reasoning || !p.ended || p.mayThink && !p.begun
}

func (p *Parser) emit(text string) {
	kind := ContentDelta
	if p.reasoning {
		kind = ReasoningDelta
	}
	p.begun = true
	p.log.add(kind, text)
}

// endCall emits a complete call, or gives the pieces of a malformed one back
// with its opening tag turned into text. It returns the pieces to go on with.
func (p *Parser) endCall(state callState) []piece {
	reader := p.call
	if state == callDone {
		arguments, err := argumentsOf(reader.call, p.options.Tools)
		if err == nil {
			p.emitCall(reader.call.name, arguments)
			p.call, p.pieces = nil, nil
			return appendText(nil, string(reader.buffer[reader.pos:]))
		}
	}
	return p.giveUp(1)
}

// giveUp turns a call that is not one into the pieces it was made of. Opening
// tags among them are text, so that no text is read as a call twice, except in
// the last keep pieces behind the first: one may be the tag that ended the
// attempt.
func (p *Parser) giveUp(keep int) []piece {
	pieces := p.pieces
	p.call, p.pieces = nil, nil
	for i := range pieces {
		if pieces[i].kind == toolOpen && (i == 0 || i < len(pieces)-keep) {
			pieces[i].kind = noMarker
		}
	}
	return pieces
}

// emitCall ends the reasoning, if a call interrupts it, and emits the call.
func (p *Parser) emitCall(name, arguments string) {
	p.enter(false)
	p.mayThink = false
	p.log.addCall(ToolCall{Index: p.calls, ID: p.options.NewID(), Name: name, Arguments: arguments})
	p.calls++
}
