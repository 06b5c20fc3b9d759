package jinja

import (
	"errors"
	"fmt"
	"time"
)

// Template is a parsed template. It holds no state of a render and may be
// used by several goroutines at once.
type Template struct {
	body   []statement
	limits Limits
}

// Parse compiles source under limits.
func Parse(source string, limits Limits) (*Template, error) {
	limits = limits.withDefaults()
	body, err := parseTemplate(source, limits)
	if err != nil {
		return nil, err
	}
	return &Template{body, limits}, nil
}

// Render runs the template with vars as its global variables; their values are
// not changed. now is what strftime_now reads; nil means the system clock.
// Failures are an *Error around the cause: a *RaisedError when the template
// itself refused, a *LimitError when it cost too much.
func (t *Template) Render(vars map[string]Value, now func() time.Time) (string, error) {
	vm := newMachine(t.limits)
	if now != nil {
		vm.now = now
	}
	globals := &scope{vars: builtinGlobals}
	args := &scope{vars: vars, parent: globals}
	sig, err := vm.run(t.body, args.child())
	if err != nil {
		var placed *Error
		if !errors.As(err, &placed) {
			err = fmt.Errorf("template: %w", err)
		}
		return "", err
	}
	if sig != proceed {
		panic("jinja: a loop signal left the template")
	}
	return vm.out.String(), nil
}
