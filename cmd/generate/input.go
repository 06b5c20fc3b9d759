package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"reprise/cmd/internal/cli"
)

// maxLine is the largest input line that is read; a longer one gets an error.
const maxLine = 32 << 20

// line is an input line.
type line struct {
	number  int // from 1
	text    []byte
	tooLong bool
}

// input reads lines.
type input struct {
	io.Closer
	reader *bufio.Reader
	number int
}

// openInput opens a file, by the ending of its name compressed.
func openInput(path string) (*input, error) {
	f, err := cli.Open(path)
	if err != nil {
		return nil, err
	}
	return &input{Closer: f, reader: bufio.NewReaderSize(f, 1<<20)}, nil
}

// next returns the next line that is not blank; the error is io.EOF behind the last one.
func (in *input) next() (line, error) {
	for {
		l, err := in.one()
		if err != nil || l.tooLong || len(bytes.TrimSpace(l.text)) > 0 {
			return l, err
		}
	}
}

func (in *input) one() (line, error) {
	l := line{number: in.number + 1}
	for {
		part, err := in.reader.ReadSlice('\n')
		if len(l.text)+len(part) > maxLine {
			l.tooLong = true
		} else if !l.tooLong {
			l.text = append(l.text, part...)
		}
		switch {
		case err == nil, err == io.EOF && (len(l.text) > 0 || l.tooLong):
			in.number++
			return l, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return line{}, err
		}
	}
}

// checkFiles refuses to write over the input.
func checkFiles(in, out string) error {
	a, errIn := os.Stat(in)
	b, errOut := os.Stat(out)
	switch {
	case in == "-" || out == "-":
		return nil
	case errIn != nil:
		return fmt.Errorf("-i: %w", errIn)
	case a.IsDir():
		return fmt.Errorf("-i %s: is a folder", in)
	case errOut == nil && os.SameFile(a, b):
		return cli.Usagef("-i and -o are the same file")
	}
	return nil
}

// survey counts the lines of a file, -1 for standard input, and checks that the results found belong to them.
func survey(path string, done map[int]uint64) (int, error) {
	if path == "-" {
		return -1, nil
	}
	in, err := openInput(path)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	total, found := 0, 0
	for {
		l, err := in.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return 0, fmt.Errorf("%s: line %d: %w", path, in.number+1, err)
		}
		total++
		if sum, ok := done[l.number]; ok {
			if sum != understand(l).sum() {
				return 0, fmt.Errorf("line %d of %s is not the one that the output file has a result for: the output belongs to another input", l.number, path)
			}
			found++
		}
	}
	if found < len(done) {
		return 0, fmt.Errorf("the output file has results for %d lines that %s does not have: it belongs to another input", len(done)-found, path)
	}
	return total, nil
}
