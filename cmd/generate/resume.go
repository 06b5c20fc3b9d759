package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"reprise/cmd/internal/cli"
)

// errForeign is an output file that this program did not write.
var errForeign = errors.New("exists and is not an output of this command; remove it or choose another name")

// recovered collects the results of an earlier run.
type recovered map[int]uint64

// add takes whole lines.
func (r recovered) add(text []byte) error {
	for len(text) > 0 {
		at := bytes.IndexByte(text, '\n')
		if at < 0 {
			return errForeign // only a plain file may end within a line, and its end is cut before
		}
		var own struct {
			ID       string          `json:"id"`
			CustomID *string         `json:"custom_id"`
			Response json.RawMessage `json:"response"`
		}
		if json.Unmarshal(text[:at], &own) != nil || own.Response == nil {
			return errForeign
		}
		n, ok := numberOf(own.ID)
		if _, twice := r[n]; !ok || twice {
			return errForeign
		}
		r[n] = sumOf(own.CustomID)
		text = text[at+1:]
	}
	return nil
}

// recoverResults reads an output file and returns where its last whole result ends.
func recoverResults(f *os.File, size int64, path string) (map[int]uint64, int64, error) {
	found := recovered{}
	read := plainResults
	switch {
	case strings.HasSuffix(path, ".gz"):
		read = gzipResults
	case strings.HasSuffix(path, ".zst"):
		read = zstdResults
	}
	end, err := read(f, size, found)
	if err == nil && end == 0 && size > 0 && !tornStart(f, path) {
		err = errForeign
	}
	return found, end, err
}

// tornStart tells whether a file without one whole result may be the beginning of an output.
func tornStart(f *os.File, path string) bool {
	const want = `{"id":"` + idPrefix
	have := make([]byte, len(want))
	n, _ := io.ReadFull(startOf(f, path), have) // it is torn: what there is of it is compared
	info, err := f.Stat()
	return err == nil && want[:n] == string(have[:n]) && (n > 0 || info.Size() < 2*flushBytes)
}

// startOf decompresses what can be of a torn file.
func startOf(f *os.File, path string) io.Reader {
	r := bufio.NewReader(io.NewSectionReader(f, 0, 2*flushBytes))
	start, _ := r.Peek(4) // shorter files are compared as far as they go
	matches := func(magic string) bool {
		n := min(len(start), len(magic))
		return magic[:n] == string(start[:n])
	}
	none := strings.NewReader("")
	switch {
	case strings.HasSuffix(path, ".gz") && matches("\x1f\x8b\x08"):
		if z, err := gzip.NewReader(r); err == nil {
			return z
		}
		return none
	case strings.HasSuffix(path, ".zst") && matches("\x28\xb5\x2f\xfd"):
		if z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(cli.MaxWindow)); err == nil {
			return z.IOReadCloser()
		}
		return none
	}
	return r
}

func plainResults(f *os.File, size int64, found recovered) (end int64, err error) {
	r := bufio.NewReaderSize(io.NewSectionReader(f, 0, size), 1<<20)
	for {
		text, err := r.ReadBytes('\n')
		if err == io.EOF {
			return end, nil // what is behind the last newline is torn
		}
		if err != nil {
			return 0, err
		}
		if err := found.add(text); err != nil {
			return 0, err
		}
		end += int64(len(text))
	}
}

// counter counts what was read; as an io.ByteReader it makes decompressors read no further than they must.
type counter struct {
	*bufio.Reader
	count int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.count += int64(n)
	return n, err
}

func (c *counter) ReadByte() (byte, error) {
	b, err := c.Reader.ReadByte()
	if err == nil {
		c.count++
	}
	return b, err
}

// maxMember bounds a decompressed gzip member or zstd frame; own ones hold a flush.
const maxMember = flushBytes + 1<<30

func gzipResults(f *os.File, size int64, found recovered) (end int64, err error) {
	c := &counter{Reader: bufio.NewReader(io.NewSectionReader(f, 0, size))}
	for {
		z, err := gzip.NewReader(c)
		if err != nil {
			return end, nil // the end, or torn
		}
		z.Multistream(false)
		text, err := io.ReadAll(io.LimitReader(z, maxMember))
		if err != nil {
			return end, nil
		}
		if err := found.add(text); err != nil {
			return 0, err
		}
		end = c.count
	}
}

func zstdResults(f *os.File, size int64, found recovered) (end int64, err error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxMember), zstd.WithDecoderMaxWindow(cli.MaxWindow))
	if err != nil {
		return 0, err
	}
	defer d.Close()
	r := bufio.NewReaderSize(io.NewSectionReader(f, 0, size), 1<<20)
	for {
		frame, err := readFrame(r)
		if err != nil {
			return end, nil // the end, or torn
		}
		text, err := d.DecodeAll(frame, nil)
		if err != nil {
			return end, nil
		}
		if err := found.add(text); err != nil {
			return 0, err
		}
		end += int64(len(frame))
	}
}

// readFrame reads one zstd frame by its block headers, without decoding it.
func readFrame(r *bufio.Reader) ([]byte, error) {
	start, err := r.Peek(zstd.HeaderMaxSize)
	if err != nil && err != io.EOF {
		return nil, err
	}
	var h zstd.Header
	if err := h.Decode(start); err != nil {
		return nil, err
	}
	if h.Skippable {
		return nil, errors.New("a skippable frame")
	}
	var frame bytes.Buffer
	if _, err := io.CopyN(&frame, r, int64(h.HeaderSize)); err != nil {
		return nil, err
	}
	for last := false; !last; {
		var b [3]byte
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return nil, err
		}
		frame.Write(b[:])
		word := int64(b[0]) | int64(b[1])<<8 | int64(b[2])<<16
		length := word >> 3
		last = word&1 == 1
		switch kind := word >> 1 & 3; {
		case kind == 1:
			length = 1 // one byte, repeated
		case kind == 3 || frame.Len() > maxMember:
			return nil, fmt.Errorf("a broken frame")
		}
		if _, err := io.CopyN(&frame, r, length); err != nil {
			return nil, err
		}
	}
	if h.HasCheckSum {
		if _, err := io.CopyN(&frame, r, 4); err != nil {
			return nil, err
		}
	}
	return frame.Bytes(), nil
}
