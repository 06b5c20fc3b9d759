package chat

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

const toolsJSON = `[{"type":"function","function":{"name":"get","parameters":{"type":"object","properties":{
 "s":{"type":"string"},"i":{"type":"integer"},"n":{"type":"number"},"b":{"type":"boolean"},"o":{"type":"object"},"a":{"type":"array"},
 "m":{"type":["integer","null"]},"any":{"anyOf":[{"type":"integer"},{"type":"string"}]}}}}},
 {"type":"function","function":{"name":"none"}}]`

func testTools(t testing.TB) Tools {
	t.Helper()
	tools, err := ParseTools([]byte(toolsJSON))
	if err != nil {
		t.Fatal(err)
	}
	return tools
}

var (
	textMarkers = FindMarkers(nil)
	idMarkers   = Markers{ids: [markerCount]int32{NoToken, 1, 2, 3, 4}}
)

func counter() func() string {
	n := 0
	return func() string { n++; return fmt.Sprint("id", n) }
}

// flat writes events as R{...} C{...} T{name args}, deltas of one kind joined.
func flat(events []Event) string {
	var merged eventLog
	for _, e := range events {
		if e.Kind == ToolCallEvent {
			merged.addCall(e.Call)
		} else {
			merged.add(e.Kind, e.Text)
		}
	}
	var b strings.Builder
	for _, e := range merged.take() {
		switch e.Kind {
		case ReasoningDelta:
			fmt.Fprintf(&b, "R{%s}", e.Text)
		case ContentDelta:
			fmt.Fprintf(&b, "C{%s}", e.Text)
		default:
			fmt.Fprintf(&b, "T{%d %s %s %s}", e.Call.Index, e.Call.ID, e.Call.Name, e.Call.Arguments)
		}
	}
	return b.String()
}

const (
	thinking = "<|im_start|>assistant\n<think>\n"
	answered = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
	plain    = "<|im_start|>assistant\n"
	getCall  = "<tool_call>\n<function=get>\n<parameter=s>\nv\n</parameter>\n</function>\n</tool_call>"
	gotCall  = `get {"s": "v"}}`
)

var parserCases = []struct {
	name, prompt, output string
	calls                bool
	want                 string
}{
	{"reasoning then content", thinking, "why\n</think>\n\nbecause", false, "R{why}C{because}"},
	{"leading space in reasoning", thinking, "\n why </think> x ", false, "R{why}C{x }"},
	{"tag at the very start", thinking, "</think>x", false, "C{x}"},
	{"tag at the very end", thinking, "r</think>", false, "R{r}"},
	{"only the tag", thinking, "</think>", false, ""},
	{"unterminated reasoning", thinking, "r r\n", false, "R{r r\n}"},
	{"empty", thinking, "", false, ""},
	{"second close tag is text", thinking, "r</think>a</think>b", false, "R{r}C{a</think>b}"},
	{"open tag repeated", thinking, "<think>\nr</think>c", false, "R{r}C{c}"},
	{"open tag later in reasoning", thinking, "a <think> b</think>c", false, "R{a <think> b}C{c}"},
	{"thinking off", answered, "\nhello </think> <think> x\n", false, "C{hello </think> <think> x\n}"},
	{"no tags in prompt", plain, " hello\n", false, "C{ hello\n}"},
	{"only space", plain, " \n", false, "C{ \n}"},
	{"model opens reasoning", plain, "\n<think>\nr\n</think>\n\nc", false, "R{r}C{c}"},
	{"literal open tag in prose", plain, "the <think> tag and </think>", false, "C{the <think> tag and </think>}"},
	{"almost tags", thinking, "a < b <thin </thin </think", false, "R{a < b <thin </thin </think}"},
	{"calls not offered", answered, "x " + getCall, false, "C{x " + getCall + "}"},
	{"call", answered, getCall, true, "T{0 id1 " + gotCall},
	{"content and call", answered, "I look.\n\n" + getCall + "\n", true, "C{I look.}T{0 id1 " + gotCall},
	{"two calls", answered, getCall + "\n" + getCall, true, "T{0 id1 " + gotCall + "T{1 id2 " + gotCall},
	{"text behind a call", answered, getCall + "\n\nDone. ", true, "T{0 id1 " + gotCall + "C{Done. }"},
	{"reasoning, content, call", thinking, "r\n</think>\n\nc\n" + getCall, true, "R{r}C{c}T{0 id1 " + gotCall},
	{"call inside thinking ends it", thinking, "r\n" + getCall + "\nc</think>", true, "R{r}T{0 id1 " + gotCall + "C{c</think>}"},
	{"mention inside thinking", thinking, "use <tool_call> here</think>c", true, "R{use <tool_call> here}C{c}"},
	{"cut call inside thinking", thinking, "a <tool_call><function=get><parameter=s>x</think>c", true, "R{a <tool_call><function=get><parameter=s>x}C{c}"},
	{"literal tag in prose", answered, "the <tool_call> tag", true, "C{the <tool_call> tag}"},
	{"close tag alone", answered, "a </tool_call> b", true, "C{a </tool_call> b}"},
	{"hermes", answered, "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"b\": true, \"a\": [1, 2.0]}}\n</tool_call>", true, `T{0 id1 get {"b": true, "a": [1, 2.0]}}`},
	{"hermes with text arguments", answered, `<tool_call>{"name":"get","arguments":"{\"x\":1}"}</tool_call>`, true, `T{0 id1 get {"x": 1}}`},
	{"hermes without arguments", answered, `<tool_call>{"name":"get"}</tool_call>`, true, `T{0 id1 get {}}`},
	{"hermes tags in a string", answered, `<tool_call>{"name":"get","arguments":{"s":"</tool_call><tool_call>"}}</tool_call>`, true, `T{0 id1 get {"s": "</tool_call><tool_call>"}}`},
	{"hermes broken", answered, `<tool_call>{"name":"get","arguments":{"x":1}</tool_call>y`, true, `C{<tool_call>{"name":"get","arguments":{"x":1}</tool_call>y}`},
	{"hermes no name", answered, `<tool_call>{"arguments":{}}</tool_call>`, true, `C{<tool_call>{"arguments":{}}</tool_call>}`},
	{"hermes not JSON", answered, `<tool_call>{name: 1}</tool_call>`, true, `C{<tool_call>{name: 1}</tool_call>}`},
	{"hermes array arguments", answered, `<tool_call>{"name":"get","arguments":[]}</tool_call>`, true, `C{<tool_call>{"name":"get","arguments":[]}</tool_call>}`},
	{"broken then good", answered, `<tool_call>{"name": ` + getCall, true, `C{<tool_call>{"name":}T{0 id1 ` + gotCall},
	{"unclosed call", answered, "x <tool_call>\n<function=get>\n<parameter=s>\nv", true, "C{x <tool_call>\n<function=get>\n<parameter=s>\nv}"},
	{"missing last tag", answered, strings.TrimSuffix(getCall, "\n</tool_call>"), true, "T{0 id1 " + gotCall},
	{"missing last tag, hermes", answered, `<tool_call>{"name":"get","arguments":{}} `, true, "T{0 id1 get {}}"},
	{"cut last tag", answered, strings.TrimSuffix(getCall, "_call>"), true, "C{" + strings.TrimSuffix(getCall, "_call>") + "}"},
	{"missing parameter end", answered, "<tool_call><function=get><parameter=s>\nv\n</function></tool_call>", true, "T{0 id1 " + gotCall},
	{"missing both ends", answered, "<tool_call><function=get><parameter=s>\nv\n</function>\n", true, "T{0 id1 " + gotCall},
	{"tags in a value", answered, "<tool_call><function=get><parameter=s>\na</function> b</tool_call><think></parameter></function></tool_call>", true, `T{0 id1 get {"s": "a</function> b</tool_call><think>"}}`},
	{"no parameters", answered, "<tool_call>\n<function=none>\n</function>\n</tool_call>", true, "T{0 id1 none {}}"},
	{"unknown function", answered, "<tool_call><function=zz><parameter=q>5</parameter></function></tool_call>", true, `T{0 id1 zz {"q": "5"}}`},
	{"text in the call", answered, "<tool_call><function=get>text</function></tool_call>", true, "C{<tool_call><function=get>text</function></tool_call>}"},
	{"empty name", answered, "<tool_call><function=></function></tool_call>", true, "C{<tool_call><function=></function></tool_call>}"},
	{"name with newline", answered, "<tool_call><function=a\nb></function></tool_call>", true, "C{<tool_call><function=a\nb></function></tool_call>}"},
	{"long name", answered, "<tool_call><function=" + strings.Repeat("x", 300) + ">", true, "C{<tool_call><function=" + strings.Repeat("x", 300) + ">}"},
	{"space kept in content", answered, "a \n b \n\n", true, "C{a \n b \n\n}"},
	{"types", answered, "<tool_call><function=get><parameter=s>\n5\n</parameter><parameter=i>\n5\n</parameter><parameter=n>1.50</parameter><parameter=b>True</parameter>" +
		"<parameter=o>{\"z\": 1, \"a\": 2}</parameter><parameter=a>[1]</parameter><parameter=m>null</parameter><parameter=any>x</parameter></function></tool_call>", true,
		`T{0 id1 get {"s": "5", "i": 5, "n": 1.5, "b": true, "o": {"z": 1, "a": 2}, "a": [1], "m": null, "any": "x"}}`},
	{"types that do not fit", answered, "<tool_call><function=get><parameter=i>five</parameter><parameter=b>yes</parameter><parameter=o>[1]</parameter><parameter=n>NaN</parameter>" +
		"<parameter=m>7</parameter><parameter=any>3</parameter><parameter=s>\n\nnull\n\n</parameter></function></tool_call>", true,
		`T{0 id1 get {"i": "five", "b": "yes", "o": "[1]", "n": "NaN", "m": 7, "any": 3, "s": "\nnull\n"}}`},
	{"repeated parameter", answered, "<tool_call><function=get><parameter=i>1</parameter><parameter=i>2</parameter></function></tool_call>", true, `T{0 id1 get {"i": 2}}`},
}

func parserFor(t testing.TB, prompt string, calls bool, markers Markers) *Parser {
	return NewParser(ParserOptions{Prompt: prompt, Markers: markers, Tools: testTools(t), ParseCalls: calls, NewID: counter()})
}

func TestParser(t *testing.T) {
	for _, c := range parserCases {
		t.Run(c.name, func(t *testing.T) {
			p := parserFor(t, c.prompt, c.calls, textMarkers)
			events := append(p.Push(NoToken, c.output), p.Finish()...)
			if got := flat(events); got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
			p = parserFor(t, c.prompt, c.calls, idMarkers)
			events = nil
			for _, tok := range tokensOf(c.output) {
				events = append(events, p.Push(tok.id, tok.text)...)
			}
			if got := flat(append(events, p.Finish()...)); got != c.want {
				t.Errorf("by token id: got  %q\nwant %q", got, c.want)
			}
		})
	}
}

type token struct {
	id   int32
	text string
}

// tokensOf cuts text so that each tag is its own token of idMarkers.
func tokensOf(text string) []token {
	s := newScanner(textMarkers, true)
	var out []token
	for _, p := range append(s.push(NoToken, text), s.flush()...) {
		id := int32(100)
		if p.kind != noMarker {
			id = int32(p.kind)
		}
		out = append(out, token{id, p.text})
	}
	return out
}

// split runs output through a parser cut at random places.
func split(p *Parser, output string, random *rand.Rand) []Event {
	var events []Event
	for output != "" {
		n := 1 + random.IntN(min(len(output), 9))
		events = append(events, p.Push(NoToken, output[:n])...)
		output = output[n:]
	}
	return append(events, p.Finish()...)
}

func TestParserSplits(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, c := range parserCases {
		for range 60 {
			if got := flat(split(parserFor(t, c.prompt, c.calls, textMarkers), c.output, random)); got != c.want {
				t.Fatalf("%s: got  %q\nwant %q", c.name, got, c.want)
			}
		}
	}
}

// TestLiteralTags wants tags typed letter by letter to be text where the
// model has tokens for them.
func TestLiteralTags(t *testing.T) {
	p := parserFor(t, thinking, true, idMarkers)
	output := "a</think>b " + getCall
	if got, want := flat(append(p.Push(100, output), p.Finish()...)), "R{"+output+"}"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	// a marker's token counts even when its text is hidden, or comes with
	// text that was held back
	p = parserFor(t, thinking, false, idMarkers)
	events := append(p.Push(100, "r"), p.Push(2, "é</think>")...)
	events = append(events, p.Push(3, "")...)
	events = append(events, p.Push(100, "c")...)
	if got := flat(append(events, p.Finish()...)); got != "R{ré}C{<tool_call>c}" {
		t.Errorf("got %q", got)
	}
}

// TestHoldBack wants text to leave at once unless it may start a tag.
func TestHoldBack(t *testing.T) {
	p := parserFor(t, thinking, true, textMarkers)
	for _, step := range []struct{ push, want string }{
		{"a", "R{a}"}, {" b <", "R{ b}"}, {"x", "R{ <x}"}, {"y\n", "R{y}"}, {"</thi", ""}, {"nk>\n", ""}, {"\nc", "C{c}"},
		{" d", "C{ d}"}, {"\n<tool", ""}, {"_call>\n<func", ""}, {"z", "C{\n<tool_call>\n<funcz}"}, {"\n" + getCall, "T{0 id1 " + gotCall}, {"\n", ""}, {"e", "C{e}"},
	} {
		if got := flat(p.Push(NoToken, step.push)); got != step.want {
			t.Errorf("push %q gave %q, want %q", step.push, got, step.want)
		}
	}
	if got := flat(p.Finish()); got != "" {
		t.Errorf("finish gave %q", got)
	}
}

func TestStartsInReasoning(t *testing.T) {
	for prompt, want := range map[string]bool{
		thinking: true, answered: false, plain: false, "": false, "<think>": true, "<think></think>": false, "</think><think>": true,
		"<|im_start|>user\nwhat is <think>?<|im_end|>\n" + plain: false,
		"<|im_start|>assistant\n<think>\npartial":                true,
	} {
		if got := StartsInReasoning(prompt); got != want {
			t.Errorf("%q: %v", prompt, got)
		}
	}
}

func TestRandomID(t *testing.T) {
	if a, b := randomID(), randomID(); a == b || len(a) != 29 || !strings.HasPrefix(a, "call_") {
		t.Errorf("%q %q", a, b)
	}
}

// TestParserLinear feeds answers made to be read again and again.
func TestParserLinear(t *testing.T) {
	for _, unit := range []string{"<tool_call><function=get><parameter=s>", "<tool_call>{\"a\":\"", "<tool_call>", "<tool_call>{", "<tool_call>\n", "</function>", "<tool_call><function=get>", "\n", "<"} {
		p := parserFor(t, thinking, true, textMarkers)
		output := strings.Repeat(unit, 1_000_000/len(unit))
		events := p.Push(NoToken, "x")
		for i := 0; i < len(output); i += 50 {
			events = append(events, p.Push(NoToken, output[i:min(i+50, len(output))])...)
		}
		events = append(events, p.Push(NoToken, "</parameter>no")...)
		if got := flat(append(events, p.Finish()...)); got != "R{x"+output+"</parameter>no}" {
			t.Errorf("%q: %.80q", unit, got)
		}
	}
}

// FuzzParser wants the same events however the output is cut, no text lost
// without tags, and no panic.
func FuzzParser(f *testing.F) {
	for i, c := range parserCases {
		f.Add(c.output, uint64(i), strings.HasSuffix(c.prompt, "<think>\n"), c.calls)
	}
	f.Fuzz(func(t *testing.T, output string, seed uint64, reasoning, calls bool) {
		prompt := answered
		if reasoning {
			prompt = thinking
		}
		random := rand.New(rand.NewPCG(seed, 0))
		p := parserFor(t, prompt, calls, textMarkers)
		whole := flat(append(p.Push(NoToken, output), p.Finish()...))
		if got := flat(split(parserFor(t, prompt, calls, textMarkers), output, random)); got != whole {
			t.Errorf("whole %q\nsplit %q", whole, got)
		}
		if !calls && !strings.Contains(output, "think>") {
			want := strings.TrimLeft(output, whitespace)
			if len(whole) > 0 && whole[2:len(whole)-1] != want {
				t.Errorf("%q became %q", output, whole)
			}
		}
	})
}
