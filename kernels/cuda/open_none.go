//go:build !cuda

package cuda

import (
	"errors"

	"reprise/kernels"
)

// Built says whether this binary has CUDA.
const Built = false

// Open fails: this binary has no CUDA.
func Open(Options) (kernels.Device, error) {
	return nil, errors.New("this binary was built without CUDA (-tags cuda)")
}
