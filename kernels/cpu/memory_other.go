//go:build !unix

package cpu

import (
	"errors"
	"math"
)

// mapMemory returns n zeroed bytes of the Go heap, with room to align; the device keeps them alive.
func mapMemory(n int64) ([]byte, error) {
	if n > math.MaxInt-alignment {
		return nil, errors.New("beyond the address space")
	}
	return make([]byte, int(n)+alignment), nil
}

func unmapMemory([]byte) error { return nil }
