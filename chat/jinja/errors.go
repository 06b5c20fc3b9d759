package jinja

import (
	"errors"
	"fmt"
)

// Error is a fault of a template, at a line of its source.
type Error struct {
	Line int
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("template line %d: %v", e.Line, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// RaisedError carries the message a template gave to raise_exception.
type RaisedError struct{ Message string }

func (e *RaisedError) Error() string { return e.Message }

// atLine adds a line to an error that has none yet.
func atLine(line int, err error) error {
	var placed *Error
	if err == nil || errors.As(err, &placed) {
		return err
	}
	return &Error{Line: line, Err: err}
}

func errUndefined(u *Undefined) error { return errors.New(u.describe()) }

func errType(format string, args ...any) error { return fmt.Errorf(format, args...) }
