package tokenizer

import (
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// maxNonStarters is the length of a run of combining marks up to which x/text
// normalises as Unicode says. In longer runs it inserts U+034F ("stream-safe text"),
// which would change ids.
const maxNonStarters = 30

// composeText is NFC of valid UTF-8.
func composeText(text string) string {
	if longestMarkRun(text) <= maxNonStarters {
		return norm.NFC.String(text)
	}
	return string(composeRunes(decomposeRunes(text)))
}

// longestMarkRun is at least the length of the longest run of non-starters in the
// canonical decomposition of text.
func longestMarkRun(text string) int {
	run, longest := 0, 0
	for at := 0; at < len(text); {
		if text[at] < utf8.RuneSelf {
			run = 0
			at++
			continue
		}
		properties := norm.NFC.PropertiesString(text[at:])
		parts := max(1, utf8.RuneCount(properties.Decomposition()))
		if properties.CCC() == 0 {
			run, parts = 0, parts-1
		}
		run += parts
		longest = max(longest, run)
		at += properties.Size()
	}
	return longest
}

func combining(r rune) uint8 {
	if r < 0x300 {
		return 0
	}
	return norm.NFC.PropertiesString(string(r)).CCC()
}

// decomposed is a character of NFD with its combining class.
type decomposed struct {
	r   rune
	ccc uint8
}

// decomposeRunes is NFD: canonical decomposition, marks in canonical order.
func decomposeRunes(text string) []decomposed {
	out := make([]decomposed, 0, len(text))
	run := 0 // start of the run of marks at the end of out
	for _, r := range text {
		for _, part := range norm.NFD.String(string(r)) {
			c := decomposed{part, combining(part)}
			if c.ccc == 0 {
				sortMarks(out[run:])
				run = len(out) + 1
			}
			out = append(out, c)
		}
	}
	sortMarks(out[min(run, len(out)):])
	return out
}

// sortMarks is a stable counting sort by combining class: linear for any run.
func sortMarks(run []decomposed) {
	if len(run) < 2 {
		return
	}
	var start [257]int
	for _, c := range run {
		start[int(c.ccc)+1]++
	}
	for i := range 256 {
		start[i+1] += start[i]
	}
	sorted := make([]decomposed, len(run))
	for _, c := range run {
		sorted[start[c.ccc]] = c
		start[c.ccc]++
	}
	copy(run, sorted)
}

// composeRunes joins each starter with the marks and letters behind it that are not
// blocked from it (Unicode standard, section 3.11).
func composeRunes(in []decomposed) []rune {
	out := make([]rune, 0, len(in))
	starter := -1    // index in out
	last := uint8(0) // class of what was appended behind starter; 0 for nothing yet
	for _, c := range in {
		adjacent := starter == len(out)-1
		if starter >= 0 && (adjacent || last < c.ccc && last != 0) {
			if joined, ok := composePair(out[starter], c.r); ok {
				out[starter] = joined
				continue
			}
		}
		if c.ccc == 0 {
			starter, last = len(out), 0
		} else {
			last = c.ccc
		}
		out = append(out, c.r)
	}
	return out
}

func composePair(a, b rune) (rune, bool) {
	if b < 0x300 || norm.NFC.PropertiesString(string(b)).BoundaryBefore() {
		return 0, false
	}
	text := norm.NFC.String(string([]rune{a, b}))
	joined, size := utf8.DecodeRuneInString(text)
	return joined, size == len(text)
}
