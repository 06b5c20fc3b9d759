package cli

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// MaxWindow bounds what a zstd stream may ask for.
const MaxWindow = 128 << 20

// input is a file with what decompresses it.
type input struct {
	io.Reader
	closers []func()
}

// Open opens a file for reading, decompressed if its name ends in .gz or .zst; "-" is standard input.
func Open(path string) (io.ReadCloser, error) {
	in := &input{Reader: os.Stdin}
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		in.Reader, in.closers = f, append(in.closers, func() { f.Close() })
	}
	if err := in.decompress(path); err != nil {
		in.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return in, nil
}

func (in *input) decompress(path string) error {
	switch {
	case strings.HasSuffix(path, ".gz"):
		r, err := gzip.NewReader(bufio.NewReader(in.Reader))
		if err != nil {
			return fmt.Errorf("no gzip data, as its name says: %w", err)
		}
		in.Reader = r
	case strings.HasSuffix(path, ".zst"):
		d, err := zstd.NewReader(in.Reader, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(MaxWindow))
		if err != nil {
			return err
		}
		in.Reader, in.closers = d, append(in.closers, d.Close)
	}
	return nil
}

// Close frees what reading took.
func (in *input) Close() error {
	for i := len(in.closers) - 1; i >= 0; i-- {
		in.closers[i]()
	}
	return nil
}
