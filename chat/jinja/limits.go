package jinja

import "fmt"

// Limits bounds what one template may cost. The zero value of a field means
// its default.
type Limits struct {
	SourceBytes int   // template text; default 1 MiB
	Depth       int   // nesting of syntax, calls and printed values; default 200
	Steps       int64 // evaluated nodes plus touched bytes / 32; default 10 million
	AllocBytes  int64 // bytes of all values created, freed or not; default 512 MiB
	OutputBytes int   // size of any single string, the output included; default 32 MiB
}

// DefaultLimits suits prompts of some megabytes and stops a hostile template
// within a few seconds.
func DefaultLimits() Limits {
	return Limits{SourceBytes: 1 << 20, Depth: 200, Steps: 10_000_000, AllocBytes: 512 << 20, OutputBytes: 32 << 20}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	if l.SourceBytes == 0 {
		l.SourceBytes = d.SourceBytes
	}
	if l.Depth == 0 {
		l.Depth = d.Depth
	}
	if l.Steps == 0 {
		l.Steps = d.Steps
	}
	if l.AllocBytes == 0 {
		l.AllocBytes = d.AllocBytes
	}
	if l.OutputBytes == 0 {
		l.OutputBytes = d.OutputBytes
	}
	return l
}

// LimitError says which bound of [Limits] was passed.
type LimitError struct{ What string }

func (e *LimitError) Error() string { return "template limit exceeded: " + e.What }

// budget counts what a render has spent.
type budget struct {
	limits Limits
	steps  int64
	bytes  int64
	depth  int
}

// step charges n units of work.
func (b *budget) step(n int) error {
	b.steps += int64(n)
	if b.steps > b.limits.Steps {
		return &LimitError{fmt.Sprintf("more than %d steps", b.limits.Steps)}
	}
	return nil
}

// touch charges the work of copying or searching n bytes.
func (b *budget) touch(n int) error { return b.step(1 + n/32) }

// scan charges the work of looking at n bytes one character at a time.
func (b *budget) scan(n int) error { return b.step(1 + n/16) }

// grow charges the creation of a value of n bytes, before it is made.
func (b *budget) grow(n int) error {
	if n < 0 || n > b.limits.OutputBytes {
		return &LimitError{fmt.Sprintf("a value larger than %d bytes", b.limits.OutputBytes)}
	}
	b.bytes += int64(n)
	if b.bytes > b.limits.AllocBytes {
		return &LimitError{fmt.Sprintf("more than %d bytes of values", b.limits.AllocBytes)}
	}
	return b.touch(n)
}

// valueBytes is what one element of a list or mapping is charged at.
const valueBytes = 16

func (b *budget) growList(n int) error {
	if n > b.limits.OutputBytes/valueBytes {
		return &LimitError{"a list too long"}
	}
	return b.grow(n * valueBytes)
}

// enter goes one level deeper; the caller leaves by leave.
func (b *budget) enter() error {
	b.depth++
	return b.checkDepth(b.depth)
}

func (b *budget) leave() { b.depth-- }

func (b *budget) checkDepth(depth int) error {
	if depth > b.limits.Depth {
		return &LimitError{fmt.Sprintf("nesting deeper than %d", b.limits.Depth)}
	}
	return nil
}
