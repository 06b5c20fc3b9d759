package jinja

import "strings"

// Value is a Python-like value. The implementations in this package are all
// there are: None, Bool, Int, BigInt, Float, String, Markup, *List, *Dict,
// *Undefined, *Namespace and the callables and loop objects of a render.
type Value interface{ typeName() string }

// None is Python's None.
type None struct{}

// Bool is Python's bool; in arithmetic it counts as 0 or 1.
type Bool bool

// Int is a Python int within 64 bits; arithmetic beyond that is an error.
type Int int64

// BigInt is an integer beyond 64 bits in canonical decimal digits. It can be
// printed and compared for equality only.
type BigInt string

// Float is Python's float.
type Float float64

// String is a Python str in UTF-8; indices and lengths count code points.
type String string

// Markup is a string marked safe: joining it to a String by + escapes that.
type Markup string

// ListForm tells the Python sequence types apart that share [List].
type ListForm uint8

const (
	FormList  ListForm = iota // list
	FormTuple                 // tuple
	FormRange                 // range object
	FormKeys                  // dict views: sized, no indexing
	FormValues
	FormItems
	FormGenerator // iterable once: no length, no indexing
)

// List is a sequence of one of the forms. It is not changed after creation,
// except that iterating a generator empties it.
type List struct {
	Items []Value
	Form  ListForm
}

// NewList makes a Python list that owns items.
func NewList(items ...Value) *List { return &List{Items: items} }

// Undefined is the result of a failed look-up: it prints as nothing, is false,
// and fails on any further use.
type Undefined struct {
	name   string
	reason string // overrides the usual message
}

func (u *Undefined) describe() string {
	if u.reason != "" {
		return u.reason
	}
	return "'" + u.name + "' is undefined"
}

// Namespace is the mutable object made by namespace().
type Namespace struct{ vars *Dict }

// function is a callable: a global, a bound method or a macro.
type function struct {
	name string
	call func(vm *machine, args *callArgs) (Value, error)
}

func (None) typeName() string       { return "NoneType" }
func (Bool) typeName() string       { return "bool" }
func (Int) typeName() string        { return "int" }
func (BigInt) typeName() string     { return "int" }
func (Float) typeName() string      { return "float" }
func (String) typeName() string     { return "str" }
func (Markup) typeName() string     { return "Markup" }
func (*Dict) typeName() string      { return "dict" }
func (*Undefined) typeName() string { return "Undefined" }
func (*Namespace) typeName() string { return "Namespace" }
func (*function) typeName() string  { return "function" }
func (l *List) typeName() string {
	return [...]string{"list", "tuple", "range", "dict_keys", "dict_values", "dict_items", "generator"}[l.Form]
}

// text returns the characters of a String or Markup.
func text(v Value) (string, bool) {
	switch s := v.(type) {
	case String:
		return string(s), true
	case Markup:
		return string(s), true
	}
	return "", false
}

// sized tells whether len() works on the list.
func (l *List) sized() bool { return l.Form != FormGenerator }

// indexed tells whether the list can be indexed.
func (l *List) indexed() bool { return l.Form <= FormRange }

// take returns the items to iterate, once only for a generator.
func (l *List) take() []Value {
	items := l.Items
	if l.Form == FormGenerator {
		l.Items = nil
	}
	return items
}

var htmlEscaper = strings.NewReplacer("&", "&amp;", ">", "&gt;", "<", "&lt;", "'", "&#39;", `"`, "&#34;")

// escape returns v as Markup, escaping what is not Markup already.
func (vm *machine) escape(v Value) (Markup, error) {
	if m, ok := v.(Markup); ok {
		return m, nil
	}
	s, err := vm.str(v)
	if err == nil {
		err = vm.scan(len(s))
	}
	if err != nil {
		return "", err
	}
	escaped := htmlEscaper.Replace(s)
	return Markup(escaped), vm.grow(len(escaped))
}
