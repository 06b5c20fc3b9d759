//go:build !cuda

package cuda

import (
	"errors"

	"reprise/kernels"
)

// Open fails: this binary has no CUDA.
func Open(Options) (kernels.Device, error) {
	return nil, errors.New("this binary was built without CUDA (-tags cuda)")
}
