package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"reprise/cmd/internal/cli"
)

// writable finds out before a run whether a file of a flag can be written behind it. What is there stays as it is.
func writable(flag, name string) error {
	if name == "" {
		return nil
	}
	_, missing := os.Stat(name)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return cli.Usagef("--%s: %v", flag, err)
	}
	err = f.Close()
	if errors.Is(missing, fs.ErrNotExist) {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// sameFile reports whether two names, of files that need not exist, are those of one file.
func sameFile(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	one, err := os.Stat(a)
	two, err2 := os.Stat(b)
	if err == nil && err2 == nil {
		return os.SameFile(one, two)
	}
	a, err = filepath.Abs(a)
	b, err2 = filepath.Abs(b)
	return err == nil && err2 == nil && a == b
}

// writeFile writes a file anew; without a name nothing.
func writeFile(name string, write func(io.Writer) error) error {
	if name == "" {
		return nil
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
