package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// result is an output line.
type result struct {
	ID       string       `json:"id"` // names the input line
	CustomID *string      `json:"custom_id"`
	Response *response    `json:"response"`
	Error    *resultError `json:"error"`
}

type response struct {
	StatusCode int    `json:"status_code"`
	RequestID  string `json:"request_id"`
	Body       any    `json:"body"`
}

type resultError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

const idPrefix = "batch_req_"

func idOf(number int) string { return idPrefix + strconv.Itoa(number) }

// numberOf is the input line that an id names.
func numberOf(id string) (int, bool) {
	digits, ok := strings.CutPrefix(id, idPrefix)
	n, err := strconv.Atoi(digits)
	return n, ok && err == nil && n > 0 && digits == strconv.Itoa(n)
}

// Compressed results are collected for this long, or up to this size, and written as a gzip member or zstd frame of their
// own: a run that is killed loses at most those, and answers their lines again.
const (
	flushEvery = time.Second
	flushBytes = 256 << 10
)

// output appends results to a file.
type output struct {
	file     *os.File
	compress func(dst *bytes.Buffer, src []byte) error // nil: as they are
	pending  bytes.Buffer
	packed   bytes.Buffer
	flushed  time.Time
}

// openOutput opens a new file or one of an earlier run, of which it keeps every whole result: by input line, the sum of
// its custom_id. A file that is not an output of this program is left alone.
func openOutput(path string) (*output, map[int]uint64, error) {
	out := &output{compress: compressorFor(path), flushed: time.Now()}
	if path == "-" {
		out.file = os.Stdout
		return out, map[int]uint64{}, nil
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, nil, fmt.Errorf("-o: %w", err)
	}
	done, end, err := claim(f, path)
	if err == nil {
		err = f.Truncate(end)
	}
	if err == nil {
		_, err = f.Seek(end, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("-o %s: %w", path, err)
	}
	out.file = f
	return out, done, nil
}

// claim takes the file for this process and reads the results in it.
func claim(f *os.File, path string) (map[int]uint64, int64, error) {
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, 0, err
	case !info.Mode().IsRegular():
		return nil, 0, errors.New("is not a regular file")
	}
	if err := lock(f); err != nil {
		return nil, 0, errors.New("another process is writing it")
	}
	return recoverResults(f, info.Size(), path)
}

func compressorFor(path string) func(*bytes.Buffer, []byte) error {
	switch {
	case strings.HasSuffix(path, ".gz"):
		w := gzip.NewWriter(nil)
		return func(dst *bytes.Buffer, src []byte) error {
			w.Reset(dst)
			if _, err := w.Write(src); err != nil {
				return err
			}
			return w.Close()
		}
	case strings.HasSuffix(path, ".zst"):
		w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(true))
		if err != nil {
			panic("zstd: " + err.Error()) // fixed options are valid or not
		}
		return func(dst *bytes.Buffer, src []byte) error {
			_, err := dst.Write(w.EncodeAll(src, dst.AvailableBuffer()))
			return err
		}
	}
	return nil
}

// write appends a result; a plain file has it at once.
func (o *output) write(r *result) error {
	e := json.NewEncoder(&o.pending)
	e.SetEscapeHTML(false)
	if err := e.Encode(r); err != nil {
		return err
	}
	if o.compress == nil || o.pending.Len() >= flushBytes || time.Since(o.flushed) >= flushEvery {
		return o.flush()
	}
	return nil
}

// flush writes what was collected.
func (o *output) flush() error {
	o.flushed = time.Now()
	if o.pending.Len() == 0 {
		return nil
	}
	data := o.pending.Bytes()
	if o.compress != nil {
		o.packed.Reset()
		if err := o.compress(&o.packed, data); err != nil {
			return err
		}
		data = o.packed.Bytes()
	}
	_, err := o.file.Write(data)
	o.pending.Reset()
	return err
}

// Close ends the file.
func (o *output) Close() error {
	if o.file == os.Stdout {
		return nil
	}
	return o.file.Close()
}
