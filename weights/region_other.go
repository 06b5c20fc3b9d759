//go:build !unix

package weights

import (
	"errors"
	"fmt"
	"os"
)

func mapOpen(*os.File, int64) (*region, error) { return nil, errors.ErrUnsupported }

// allocate returns zeroed memory of the Go heap: the systems without mmap run no model that matters.
func allocate(size int64) (*region, error) {
	if size < 0 || int64(int(size)) != size {
		return nil, fmt.Errorf("cannot allocate %d bytes", size)
	}
	return &region{data: make([]byte, size)}, nil
}
