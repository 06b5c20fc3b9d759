package tokenizer

// byteRunes is the character that vocabularies write for each byte: itself where it
// is visible in Latin-1, else the next free one from U+0100 on.
var byteRunes = func() (table [256]rune) {
	free := rune(256)
	for b := range table {
		if b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE {
			table[b] = rune(b)
			continue
		}
		table[b] = free
		free++
	}
	return table
}()

// byteOfRune is the inverse of byteRunes, for runes below its length.
var byteOfRune = func() (table [324]int16) {
	for i := range table {
		table[i] = -1
	}
	for b, r := range byteRunes {
		table[r] = int16(b)
	}
	return table
}()

// appendTokenBytes appends what a token stands for: the bytes its characters spell, or
// its own text where one of them spells none.
func appendTokenBytes(dst []byte, token string) []byte {
	start := len(dst)
	for _, r := range token {
		if int(r) >= len(byteOfRune) || byteOfRune[r] < 0 {
			return append(dst[:start], token...)
		}
		dst = append(dst, byte(byteOfRune[r]))
	}
	return dst
}
