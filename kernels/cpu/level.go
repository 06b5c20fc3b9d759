package cpu

// level is a set of instructions the vector routines are written for. avx2 and avx512 give the same bits; generic rounds
// products before they are added.
type level int

const (
	generic level = iota
	avx2
	avx512
)

func (l level) String() string { return [...]string{"generic", "avx2", "avx512"}[l] }

// simd is the level that runs. Tests lower it while no device works.
var simd = bestLevel()
