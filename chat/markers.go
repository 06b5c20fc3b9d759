package chat

import "strings"

// marker is a tag in generated text that a parser may act on.
type marker uint8

const (
	noMarker marker = iota
	thinkOpen
	thinkClose
	toolOpen
	toolClose
	markerCount
)

var markerTexts = [markerCount]string{thinkOpen: "<think>", thinkClose: "</think>", toolOpen: "<tool_call>", toolClose: "</tool_call>"}

// NoToken stands for a marker that is no token of its own.
const NoToken int32 = -1

// Markers holds the token ids of the markers; those without a token of their
// own are recognised by their text.
type Markers struct{ ids [markerCount]int32 }

// TokenLookup is what FindMarkers needs of a tokenizer.
type TokenLookup interface {
	TokenID(text string) (int32, bool)
	IsAdded(id int32) bool
}

// FindMarkers looks the markers up among a tokenizer's added tokens; a nil
// tokenizer has none.
func FindMarkers(tokens TokenLookup) Markers {
	var m Markers
	for k, text := range markerTexts {
		m.ids[k] = NoToken
		if tokens == nil || text == "" {
			continue
		}
		if id, ok := tokens.TokenID(text); ok && tokens.IsAdded(id) {
			m.ids[k] = id
		}
	}
	return m
}

// IDs lists the markers' token ids: their text must reach the parser even
// where special tokens are hidden.
func (m Markers) IDs() []int32 {
	var out []int32
	for _, id := range m.ids[1:] {
		if id != NoToken {
			out = append(out, id)
		}
	}
	return out
}

// of returns the marker that a token is.
func (m Markers) of(id int32) marker {
	if id == NoToken {
		return noMarker
	}
	for k, own := range m.ids[1:] {
		if own == id {
			return marker(k + 1)
		}
	}
	return noMarker
}

// piece is text, or a marker with its text.
type piece struct {
	kind marker
	text string
}

// scanner cuts pushed text into pieces. It holds back only what may be the
// start of a marker.
type scanner struct {
	markers Markers
	byText  []marker // markers to find in text
	held    string
}

func newScanner(markers Markers, tools bool) scanner {
	s := scanner{markers: markers}
	for k := thinkOpen; k < markerCount; k++ {
		if markers.ids[k] == NoToken && (tools || k < toolOpen) {
			s.byText = append(s.byText, k)
		}
	}
	return s
}

func (s *scanner) push(id int32, text string) []piece {
	kind := s.markers.of(id)
	if kind == noMarker {
		return s.text(text)
	}
	out := s.text(strings.TrimSuffix(text, markerTexts[kind]))
	return append(append(out, s.flush()...), piece{kind, markerTexts[kind]})
}

func (s *scanner) text(text string) []piece {
	text = s.held + text
	var out []piece
	for {
		at, kind := s.find(text)
		if kind == noMarker {
			break
		}
		out = appendText(out, text[:at])
		out = append(out, piece{kind, markerTexts[kind]})
		text = text[at+len(markerTexts[kind]):]
	}
	keep := s.partial(text)
	s.held = text[len(text)-keep:]
	return appendText(out, text[:len(text)-keep])
}

func appendText(out []piece, text string) []piece {
	if text == "" {
		return out
	}
	return append(out, piece{noMarker, text})
}

// find returns the first marker in text.
func (s *scanner) find(text string) (int, marker) {
	first, found := len(text), noMarker
	for _, k := range s.byText {
		if at := strings.Index(text, markerTexts[k]); at >= 0 && at < first {
			first, found = at, k
		}
	}
	return first, found
}

// partial is the length of the longest end of text that a marker starts with.
func (s *scanner) partial(text string) int {
	longest := 0
	for _, k := range s.byText {
		longest = max(longest, overlap(text, markerTexts[k]))
	}
	return longest
}

// overlap is the length of the longest end of text that is a proper start of
// tag.
func overlap(text, tag string) int {
	for n := min(len(text), len(tag)-1); n > 0; n-- {
		if strings.HasSuffix(text, tag[:n]) {
			return n
		}
	}
	return 0
}

// flush gives up what is held: it is text.
func (s *scanner) flush() []piece {
	out := appendText(nil, s.held)
	s.held = ""
	return out
}
