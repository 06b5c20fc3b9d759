// Package demo holds two small trained checkpoints, one of each model family, so that every program runs without a
// download. README.md says what they are and how they were trained. The build tag nodemo leaves them out.
//
// Not here: anything that computes; a demo is an ordinary model folder that happens to be embedded.
package demo

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"reprise/weights"
)

// ErrLeftOut is wrapped by Open in a program that was built without the checkpoints.
var ErrLeftOut = errors.New("this program was built without the demo models (build tag nodemo)")

const prefix = "demo-"

// Names lists the models that Open knows, the default first.
func Names() []string { return []string{prefix + "qwen35", prefix + "nemotron"} }

// Open returns the embedded model folder of that name. Its tensors are decompressed each time Tensors is called.
func Open(name string) (*weights.Folder, error) {
	if !slices.Contains(Names(), name) {
		return nil, fmt.Errorf("%s: no such demo model (there are %s)", name, strings.Join(Names(), ", "))
	}
	if leftOut {
		return nil, fmt.Errorf("%s: %w", name, ErrLeftOut)
	}
	return OpenFrom(embedded, name)
}

// OpenFrom is Open from a copy of this package's folder, which programs without the embedded models can be given.
func OpenFrom(folder fs.FS, name string) (*weights.Folder, error) {
	files, err := fs.Sub(folder, strings.TrimPrefix(name, prefix))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return weights.NewFolder(name, unpacked{files}, func() (*weights.Checkpoint, error) { return openTensors(name, files) })
}

func openTensors(name string, files fs.FS) (*weights.Checkpoint, error) {
	packed, size, err := readPacked(files, "model.safetensors")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return weights.OpenFilled(name, size, func(dst []byte) error { return decode(dst, packed) })
}

// readPacked returns the compressed bytes of a file and its size when decompressed.
func readPacked(files fs.FS, name string) (packed []byte, size int64, err error) {
	packed, err = fs.ReadFile(files, name+".zst")
	if err != nil {
		return nil, 0, err
	}
	var header zstd.Header
	if err := header.Decode(packed); err != nil || !header.HasFCS {
		return nil, 0, fmt.Errorf("%s.zst: no frame with a size: %w", name, err)
	}
	return packed, int64(header.FrameContentSize), nil
}

// decode decompresses packed into exactly dst.
func decode(dst, packed []byte) error {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer decoder.Close()
	out, err := decoder.DecodeAll(packed, dst[:0:len(dst)])
	if err != nil {
		return err
	}
	if len(out) != len(dst) {
		return fmt.Errorf("%d bytes decompressed, want %d", len(out), len(dst))
	}
	if len(dst) > 0 && &out[0] != &dst[0] {
		copy(dst, out)
	}
	return nil
}

// unpacked shows the files of a folder, those stored as NAME.zst as NAME.
type unpacked struct{ files fs.FS }

// Open opens a file, decompressed.
func (u unpacked) Open(name string) (fs.File, error) {
	f, err := u.files.Open(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	packed, size, err := readPacked(u.files, name)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	info, err := fs.Stat(u.files, name+".zst")
	if err != nil {
		return nil, err
	}
	text := make([]byte, size)
	if err := decode(text, packed); err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return &file{bytes.NewReader(text), fileInfo{info, name, size}}, nil
}

// file is a decompressed file.
type file struct {
	*bytes.Reader
	info fileInfo
}

// Stat describes the decompressed file.
func (f *file) Stat() (fs.FileInfo, error) { return f.info, nil }

// Close does nothing.
func (f *file) Close() error { return nil }

// fileInfo is the compressed file's, but for name and size.
type fileInfo struct {
	fs.FileInfo
	name string
	size int64
}

func (i fileInfo) Name() string { return i.name }
func (i fileInfo) Size() int64  { return i.size }
