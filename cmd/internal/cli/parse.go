package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// UsageError is a command line that makes no sense; programs exit with 2.
type UsageError struct{ Problem string }

func (e *UsageError) Error() string { return e.Problem }

// Usagef makes a UsageError.
func Usagef(format string, a ...any) error { return &UsageError{fmt.Sprintf(format, a...)} }

// Main runs a program and exits: 0, 2 for a wrong command line, 1 for everything else. An error is one line.
func Main(name string, run func(args []string) error) {
	err := run(os.Args[1:])
	var usage *UsageError
	switch {
	case err == nil || errors.Is(err, pflag.ErrHelp):
		return
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "%s: %s\n", name, oneLine(err.Error()))
		os.Exit(2)
	}
	fmt.Fprintf(os.Stderr, "%s: %s\n", name, oneLine(err.Error()))
	os.Exit(1)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// NewFlags makes the flag set of a program; usage is printed in front of the list of flags.
func NewFlags(name, usage string) *pflag.FlagSet {
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	fs.SortFlags = false
	fs.SetOutput(io.Discard) // errors are reported by Main
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		name = strings.ReplaceAll(name, "_", "-")
		if base, _, dotted := strings.Cut(name, "."); dotted { // --compilation-config.mode 3
			name = base
		}
		return pflag.NormalizedName(name)
	})
	fs.Usage = func() { fmt.Printf("%s\nflags:\n%s", usage, fs.FlagUsagesWrapped(120)) }
	return fs
}

// Parse reads a command line and returns what is not a flag. Errors are *UsageError, or pflag.ErrHelp after the help was
// printed.
func Parse(fs *pflag.FlagSet, args []string) ([]string, error) {
	err := fs.Parse(longNames(args))
	var unknown *pflag.NotExistError
	switch {
	case err == nil:
		return fs.Args(), nil
	case errors.Is(err, pflag.ErrHelp):
		return nil, err
	case errors.As(err, &unknown):
		name := unknown.GetSpecifiedName()
		if near := nearest(fs, name); near != "" {
			return nil, Usagef("unknown flag --%s; did you mean --%s? (--help lists the flags)", name, near)
		}
		return nil, Usagef("unknown flag --%s (--help lists the flags)", name)
	}
	return nil, &UsageError{err.Error()}
}

// shortNames are vLLM's short flags of more than one letter.
var shortNames = map[string]string{
	"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size", "-ep": "--enable-expert-parallel",
	"-cc": "--compilation-config", "-sc": "--speculative-config", "-q": "--quantization", "-O": "--optimization-level",
	"-O0": "--optimization-level=0", "-O1": "--optimization-level=1", "-O2": "--optimization-level=2", "-O3": "--optimization-level=3",
}

// longNames replaces vLLM's short flags, which pflag would read as clusters of single letters.
func longNames(args []string) []string {
	out := slices.Clone(args)
	for i, arg := range out {
		if arg == "--" {
			break
		}
		name, value, assigned := strings.Cut(arg, "=")
		if base, _, _ := strings.Cut(name, "."); shortNames[base] != "" {
			out[i] = shortNames[base]
			if assigned {
				out[i] += "=" + value
			}
		}
	}
	return out
}

// nearest is the known flag that looks most like name, or "".
func nearest(fs *pflag.FlagSet, name string) string {
	best, limit := "", 1+len(name)/4
	fs.VisitAll(func(f *pflag.Flag) {
		if d := distance(name, f.Name); d <= limit && !f.Hidden {
			best, limit = f.Name, d-1
		}
	})
	return best
}

// distance is the Levenshtein distance of two names.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
