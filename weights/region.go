package weights

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// region is memory that is not the Go heap's: a mapped file, or anonymous pages.
type region struct {
	file    string // for errors
	data    []byte
	mapped  bool // file pages that may not be resident yet
	release func() error
}

func (r *region) close() error {
	if r.release == nil {
		return nil
	}
	err := r.release()
	r.release, r.data = nil, nil
	return err
}

// mapFile maps a regular file read-only; where mapping does not work it is read into anonymous memory.
func mapFile(path string) (*region, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	if info.Size() == 0 || int64(int(info.Size())) != info.Size() {
		return nil, fmt.Errorf("%s: a file of %d bytes cannot be a checkpoint here", path, info.Size())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if r, err := mapOpen(f, info.Size()); err == nil {
		return r, nil
	}
	return readOpen(f, info.Size())
}

// pageSize is the unit of residency.
func pageSize() int { return os.Getpagesize() }

func readOpen(f *os.File, size int64) (*region, error) {
	r, err := allocate(size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	if _, err := io.ReadFull(f, r.data); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", f.Name(), err), r.close())
	}
	return r, nil
}
