package tokenizer

// scanner returns the end of the piece of text that begins at start (< len(text)).
// Each one is a split pattern of a known tokenizer.json written out by hand: Go's
// regexp has no look-ahead, and backtracking engines are not linear. Scanning a whole
// text is linear: a byte is looked at a constant number of times.
type scanner func(text string, start int) int

// The patterns, letter by letter as they stand in the files.
const (
	patternQwen2  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternQwen35 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternLlama3 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternTekken = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternGPT2   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
)

// scannerFor is the scanner of a pattern, nil if there is none.
func scannerFor(pattern string) scanner {
	switch pattern {
	case patternQwen2:
		return scanQwen2
	case patternQwen35:
		return scanQwen35
	case patternLlama3:
		return scanLlama3
	case patternTekken:
		return scanTekken
	case patternGPT2:
		return scanGPT2
	}
	return nil
}

func wholeText(text string, _ int) int { return len(text) }

func scanQwen2(text string, start int) int {
	return scanWords(text, start, classLetter, 1)
}

func scanLlama3(text string, start int) int {
	return scanWords(text, start, classLetter, 3)
}

func scanQwen35(text string, start int) int {
	return scanWords(text, start, classLetter|classMark, 1)
}

// scanWords is what Qwen and Llama 3 share: letters are the classes that words are
// made of, digits is how many numbers stay together.
func scanWords(text string, start int, letters class, digits int) int {
	if end := foldedContraction(text, start); end > start {
		return end
	}
	first, width := classAt(text, start)
	if end := wordEnd(text, start, first, width, letters); end > start {
		return end
	}
	if first&classNumber != 0 {
		return numberEnd(text, start, digits)
	}
	if end := punctuationEnd(text, start, classSpace|classNumber|letters); end > start {
		return lineBreaksEnd(text, end, false)
	}
	return spaceEnd(text, start, true)
}

func scanGPT2(text string, start int) int {
	if n := contraction(text[start:]); n > 0 {
		return start + n
	}
	from := start
	if text[from] == ' ' && from+1 < len(text) {
		from++
	}
	kind, _ := classAt(text, from)
	switch {
	case kind&classLetter != 0:
		return runEnd(text, from, classLetter)
	case kind&classNumber != 0:
		return runEnd(text, from, classNumber)
	case kind&classSpace == 0:
		return runEndWithout(text, from, classSpace|classLetter|classNumber)
	}
	return spaceEnd(text, start, false)
}

func scanTekken(text string, start int) int {
	first, width := classAt(text, start)
	if end := casedWordEnd(text, start, first, width); end > start {
		return end
	}
	if first&classNumber != 0 {
		return start + width
	}
	if end := punctuationEnd(text, start, classSpace|classNumber|classLetter); end > start {
		return lineBreaksEnd(text, end, true)
	}
	return spaceEnd(text, start, true)
}

// The functions below match one alternative each; those named ...End return start
// where it does not match.

// contraction is the length of 's 't 're 've 'm 'll 'd at the start of text, or 0.
func contraction(text string) int {
	if len(text) < 2 || text[0] != '\'' {
		return 0
	}
	switch text[1] {
	case 's', 't', 'm', 'd':
		return 2
	}
	if len(text) < 3 {
		return 0
	}
	switch text[1:3] {
	case "re", "ve", "ll":
		return 3
	}
	return 0
}

// foldedContraction is contraction in either case. U+017F, the long s, folds to s.
func foldedContraction(text string, start int) int {
	if text[start] != '\'' {
		return start
	}
	var lower [3]byte
	n := copy(lower[:], text[start:])
	for i, b := range lower[:n] {
		if b >= 'A' && b <= 'Z' {
			lower[i] = b + 'a' - 'A'
		}
	}
	if string(lower[1:n]) == "\u017f" {
		return start + n
	}
	return start + contraction(string(lower[:n]))
}

// wordEnd matches [^\r\n\p{L}\p{N}]? and one or more letters.
func wordEnd(text string, start int, first class, width int, letters class) int {
	if first&letters != 0 {
		return runEnd(text, start+width, letters)
	}
	if first&(classNewline|classNumber) != 0 {
		return start
	}
	if end := runEnd(text, start+width, letters); end > start+width {
		return end
	}
	return start
}

// casedWordEnd matches Tekken's two kinds of words: any capitals, then small letters
// (at least one), else capitals alone. Letters without case and marks are both.
func casedWordEnd(text string, start int, first class, width int) int {
	if first&classLetter != 0 {
		end, small := casedEnds(text, start)
		if small > start {
			return small
		}
		return end
	}
	if first&(classNewline|classNumber) != 0 {
		return start
	}
	core := start + width
	end, small := casedEnds(text, core)
	if small > core {
		return small
	}
	if first&classMark != 0 { // a mark is a word by itself, and that form comes first
		_, small := casedEnds(text, start)
		return small
	}
	if end > core {
		return end
	}
	return start
}

// casedEnds returns where the run of capitals at start ends, and where the match of
// "capitals, then at least one small letter" ends, start if there is none. When no
// small letter follows the run, the match gives back what it can: it ends behind the
// run's last character that counts as small.
func casedEnds(text string, start int) (capitals, small int) {
	small = start
	at := start
	for at < len(text) {
		kind, width := classAt(text, at)
		if kind&classCapital == 0 {
			break
		}
		at += width
		if kind&classSmall != 0 {
			small = at
		}
	}
	if end := runEnd(text, at, classSmall); end > at {
		return at, end
	}
	return at, small
}

// numberEnd passes up to most numbers.
func numberEnd(text string, start, most int) int {
	for ; most > 0 && start < len(text); most-- {
		kind, width := classAt(text, start)
		if kind&classNumber == 0 {
			break
		}
		start += width
	}
	return start
}

// punctuationEnd matches an optional blank and a run of characters outside the classes.
func punctuationEnd(text string, start int, outside class) int {
	from := start
	if text[from] == ' ' {
		from++
	}
	if end := runEndWithout(text, from, outside); end > from {
		return end
	}
	return start
}

// lineBreaksEnd passes line breaks, with slashes also '/'.
func lineBreaksEnd(text string, start int, slashes bool) int {
	for start < len(text) && (text[start] == '\r' || text[start] == '\n' || slashes && text[start] == '/') {
		start++
	}
	return start
}

// spaceEnd cuts a run of white space: with breaks behind its last line break if it has
// one, else in front of its last character, which goes with the word that follows; all
// of it at the end of the text or when it is a single character.
func spaceEnd(text string, start int, breaks bool) int {
	at, last, lineEnd := start, start, start
	for at < len(text) {
		kind, width := classAt(text, at)
		if kind&classSpace == 0 {
			break
		}
		last = at
		at += width
		if kind&classNewline != 0 {
			lineEnd = at
		}
	}
	switch {
	case breaks && lineEnd > start:
		return lineEnd
	case at == len(text) || last == start:
		return at
	}
	return last
}

func runEnd(text string, start int, inside class) int {
	for start < len(text) {
		kind, width := classAt(text, start)
		if kind&inside == 0 {
			break
		}
		start += width
	}
	return start
}

func runEndWithout(text string, start int, outside class) int {
	for start < len(text) {
		kind, width := classAt(text, start)
		if kind&outside != 0 {
			break
		}
		start += width
	}
	return start
}
