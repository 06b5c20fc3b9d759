package kl

import "fmt"

// Excerpts are count pieces of length tokens: each file gives count/len(files) of them, the first ones one more where that
// leaves a rest, from the middles of equal parts.
func Excerpts(files [][]int32, names []string, count, length int) ([][]int32, error) {
	if count < len(files) {
		return nil, fmt.Errorf("%d texts of %d files: want at least one of each", count, len(files))
	}
	var out [][]int32
	for i, ids := range files {
		n := count / len(files)
		if i < count%len(files) {
			n++
		}
		if len(ids)/n < length {
			return nil, fmt.Errorf("%s has %d tokens, %d texts of %d are asked for", names[i], len(ids), n, length)
		}
		for j := range n {
			part := len(ids) / n
			from := j*part + (part-length)/2
			out = append(out, ids[from:from+length])
		}
	}
	return out, nil
}
