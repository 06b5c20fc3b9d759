package api

import "reprise/chat"

const noToken = chat.NoToken

// piece is the text of one token, or a part of it.
type piece struct {
	id    int32 // chat.NoToken for what is left of a token whose beginning was released
	text  string
	whole bool // an added token: released in one piece or not at all
}

// stopper looks for stop strings in text that arrives in pieces. Where a match ends is decided byte by byte, so that it
// does not depend on how the text was cut: the first byte that completes a stop string ends the text, and of several
// strings completed there the longest counts. It holds text back only while a stop string may have begun in it.
type stopper struct {
	stops   []string
	failure [][]int // of each stop string: length of the longest border of each prefix
	matched []int   // bytes of each stop string that the text ends with
	held    []piece
	include bool // leave the stop string in the text
}

func newStopper(stops []string, include bool) *stopper {
	s := &stopper{stops: stops, include: include, matched: make([]int, len(stops))}
	for _, stop := range stops {
		s.failure = append(s.failure, borders(stop))
	}
	return s
}

// borders returns, for every prefix of s, the length of its longest proper prefix that is also its end.
func borders(s string) []int {
	out := make([]int, len(s))
	for i, k := 1, 0; i < len(s); i++ {
		for k > 0 && s[i] != s[k] {
			k = out[k-1]
		}
		if s[i] == s[k] {
			k++
		}
		out[i] = k
	}
	return out
}

// step advances every stop string by one byte and returns the longest one that is complete, or -1.
func (s *stopper) step(c byte) int {
	found := -1
	for i, stop := range s.stops {
		k := s.matched[i]
		for k > 0 && stop[k] != c {
			k = s.failure[i][k-1]
		}
		if stop[k] == c {
			k++
		}
		s.matched[i] = k
		if k == len(stop) && (found < 0 || k > len(s.stops[found])) {
			found = i
		}
	}
	return found
}

// push takes the next piece and returns what can be released, and the stop string that was found ("" = none). After a
// match the stopper must not be used again.
func (s *stopper) push(p piece) (released []piece, stop string) {
	s.held = append(s.held, p)
	for i := range len(p.text) {
		if found := s.step(p.text[i]); found >= 0 {
			stop = s.stops[found]
			cut := len(p.text) - 1 - i
			if !s.include {
				cut += len(stop)
			}
			return s.release(cut, true), stop
		}
	}
	longest := 0
	for _, k := range s.matched {
		longest = max(longest, k)
	}
	return s.release(longest, false), ""
}

// release takes everything but the last keep bytes out of what is held; cut says that those bytes are dropped for good.
func (s *stopper) release(keep int, cut bool) []piece {
	at := len(s.held)
	for at > 0 && keep > 0 && keep >= len(s.held[at-1].text) {
		at--
		keep -= len(s.held[at].text)
	}
	out := s.held[:at:at]
	rest := s.held[at:]
	if keep > 0 {
		p := s.held[at-1]
		out, rest = s.held[:at-1:at-1], s.held[at-1:]
		if head := p.text[:len(p.text)-keep]; cut || !p.whole {
			if p.whole {
				p.id = noToken // half a marker is only text
			}
			out = append(out, piece{p.id, head, false})
			rest = append([]piece{{noToken, p.text[len(head):], false}}, s.held[at:]...)
		}
	}
	s.held = rest
	return out
}

// pass releases a piece that no stop string may match in, and everything before it.
func (s *stopper) pass(p piece) []piece {
	out := append(s.flush(), p)
	clear(s.matched)
	return out
}

// flush releases what is held: no more text follows.
func (s *stopper) flush() []piece {
	out := s.held
	s.held = nil
	return out
}
