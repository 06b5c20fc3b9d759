//go:build unix

package weights

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func mapOpen(f *os.File, size int64) (*region, error) {
	data, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &region{f.Name(), data, true, func() error { return unix.Munmap(data) }}, nil
}

// allocate returns zeroed anonymous memory; pages take memory when they are first touched.
func allocate(size int64) (*region, error) {
	if size == 0 {
		return &region{}, nil
	}
	if size < 0 || int64(int(size)) != size {
		return nil, fmt.Errorf("cannot allocate %d bytes", size)
	}
	data, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("cannot allocate %d bytes: %w", size, err)
	}
	adviseHuge(data)
	return &region{"", data, false, func() error { return unix.Munmap(data) }}, nil
}
