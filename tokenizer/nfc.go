package tokenizer

import (
	"slices"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// maxNonStarters is the length of a run of combining marks up to which x/text
// normalises as Unicode says. In longer runs it inserts U+034F ("stream-safe text"),
// which would change ids.
const maxNonStarters = 30

// composeText is NFC of valid UTF-8, as the Rust library has it: with the combining
// classes and compositions of Unicode 9, to which characters of later versions are
// starters that nothing composes with. (A text that is NFC by newer tables is so by
// those too, so newer ones may be asked first whether there is anything to do.)
func composeText(text string) string {
	if composesAsNewer(text) {
		return norm.NFC.String(text)
	}
	return string(composeRunes(decomposeRunes(text)))
}

// composesAsNewer tells whether x/text is sure to compose text as it should be: no run
// of non-starters is too long for it, and no character too new.
func composesAsNewer(text string) bool {
	run := 0
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
		r, size := utf8.DecodeRuneInString(text[at:])
		if run > maxNonStarters || r == lateVowel || properties.CCC() != 0 && isLateMark(r) {
			return false
		}
		at += size
	}
	return true
}

// combining is a character's combining class, 0 for starters.
func combining(r rune) uint8 {
	if r < 0x300 || isLateMark(r) {
		return 0
	}
	return norm.NFC.PropertiesString(string(r)).CCC()
}

// U+11938 is the one composition that came after Unicode 9: U+11935 with lateVowel.
const (
	lateVowel  = '\U00011930'
	lateJoined = '\U00011938'
)

func isLateMark(r rune) bool {
	_, found := slices.BinarySearchFunc(lateMarks, r, func(marks [2]rune, r rune) int {
		switch {
		case marks[1] < r:
			return -1
		case marks[0] > r:
			return 1
		}
		return 0
	})
	return found
}

// lateMarks are the non-starters, first and last of a range, that came after Unicode 9.
var lateMarks = [][2]rune{
	{0x7FD, 0x7FD},
	{0x898, 0x89F},
	{0x8CA, 0x8D3},
	{0x9FE, 0x9FE},
	{0xC3C, 0xC3C},
	{0xD3B, 0xD3C},
	{0xEBA, 0xEBA},
	{0x1715, 0x1715},
	{0x1ABF, 0x1ACE},
	{0x1DF6, 0x1DFA},
	{0xA82C, 0xA82C},
	{0x10D24, 0x10D27},
	{0x10EAB, 0x10EAC},
	{0x10EFD, 0x10EFF},
	{0x10F46, 0x10F50},
	{0x10F82, 0x10F85},
	{0x11070, 0x11070},
	{0x1133B, 0x1133B},
	{0x1145E, 0x1145E},
	{0x11839, 0x1183A},
	{0x1193D, 0x1193E},
	{0x11943, 0x11943},
	{0x119E0, 0x119E0},
	{0x11A34, 0x11A34},
	{0x11A47, 0x11A47},
	{0x11A99, 0x11A99},
	{0x11D42, 0x11D42},
	{0x11D44, 0x11D45},
	{0x11D97, 0x11D97},
	{0x11F41, 0x11F42},
	{0x16FF0, 0x16FF1},
	{0x1E08F, 0x1E08F},
	{0x1E130, 0x1E136},
	{0x1E2AE, 0x1E2AE},
	{0x1E2EC, 0x1E2EF},
	{0x1E4EC, 0x1E4EF},
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
		parts := string(r)
		if r != lateJoined {
			parts = norm.NFD.String(parts)
		}
		for _, part := range parts {
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
	return joined, size == len(text) && joined != lateJoined
}
