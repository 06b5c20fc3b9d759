package chat

// EventKind says what an Event carries.
type EventKind uint8

const (
	ReasoningDelta EventKind = iota // Text continues the reasoning
	ContentDelta                    // Text continues the content
	ToolCallEvent                   // Call is complete
)

// Event is one step of a parsed answer.
type Event struct {
	Kind EventKind
	Text string
	Call ToolCall
}

// ToolCall is a function call made by the model.
type ToolCall struct {
	Index     int    // of the call in the answer, from 0
	ID        string // unique
	Name      string
	Arguments string // JSON text of an object
}

// eventLog collects events, neighbouring deltas of one kind as one.
type eventLog struct {
	events []Event
	kind   EventKind // of text
	text   []byte
}

func (l *eventLog) add(kind EventKind, text string) {
	if l.kind != kind {
		l.close()
	}
	l.kind = kind
	l.text = append(l.text, text...)
}

func (l *eventLog) addCall(call ToolCall) {
	l.close()
	l.events = append(l.events, Event{Kind: ToolCallEvent, Call: call})
}

// close ends the delta being collected.
func (l *eventLog) close() {
	if len(l.text) > 0 {
		l.events = append(l.events, Event{Kind: l.kind, Text: string(l.text)})
		l.text = l.text[:0]
	}
}

// take returns the events so far and starts anew.
func (l *eventLog) take() []Event {
	l.close()
	out := l.events
	l.events = nil
	return out
}
