//go:build !linux

package weights

func adviseHuge([]byte) {}

// prefault cannot do it for a whole range here.
func prefault([]byte) bool { return false }
