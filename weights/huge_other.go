//go:build unix && !linux

package weights

func adviseHuge([]byte) {}
