package weights

import "fmt"

// FormatError is a file that breaks a rule of its format, or a tensor that is not what its reader needs.
type FormatError struct {
	File   string
	Tensor string // "" when the fault is not one tensor's
	Reason string
}

func (e *FormatError) Error() string {
	if e.Tensor == "" {
		return fmt.Sprintf("%s: %s", e.File, e.Reason)
	}
	return fmt.Sprintf("%s: tensor %s: %s", e.File, quote(e.Tensor), e.Reason)
}

// MissingError is a tensor that a model needs and its source does not have.
type MissingError struct {
	Source string
	Tensor string
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s: missing tensor %s", e.Source, quote(e.Tensor))
}

// quote keeps a stranger's string on one short line.
func quote(s string) string {
	const longest = 200
	if len(s) > longest {
		return fmt.Sprintf("%q...", s[:longest])
	}
	return fmt.Sprintf("%q", s)
}

func formatError(file, tensor, format string, args ...any) error {
	return &FormatError{file, tensor, fmt.Sprintf(format, args...)}
}
