package jinja

import (
	"fmt"
	"math"
	"strings"
)

// Dict is a mapping that keeps insertion order, like Python's dict.
type Dict struct {
	keys   []Value
	values []Value
	index  map[any]int
}

// NewDict returns an empty mapping.
func NewDict() *Dict { return &Dict{index: map[any]int{}} }

// hashKey maps keys that are equal in Python to one Go key.
func hashKey(key Value) (any, error) {
	switch k := key.(type) {
	case String:
		return string(k), nil
	case Markup:
		return string(k), nil
	case Bool:
		return int64(boolInt(k)), nil
	case Int:
		return int64(k), nil
	case Float:
		if f := float64(k); f == math.Trunc(f) && math.Abs(f) < 1<<62 {
			return int64(f), nil
		}
		return k, nil
	case None, BigInt:
		return k, nil
	case *Undefined:
		return None{}, nil
	case *List:
		if k.Form == FormTuple && len(k.Items) <= maxTupleKey {
			return hashTuple(k.Items)
		}
	}
	return nil, fmt.Errorf("unhashable type: '%s'", key.typeName())
}

// maxTupleKey is the longest tuple that can be a key.
const maxTupleKey = 16

// tupleKey is the key of a tuple: the keys of its items, written out.
type tupleKey string

func hashTuple(items []Value) (any, error) {
	var b strings.Builder
	for _, item := range items {
		k, err := hashKey(item)
		if err != nil {
			return nil, err
		}
		part := fmt.Sprintf("%T %v", k, k)
		if b.Len()+len(part) > 1<<16 {
			return nil, errType("a tuple key is too large")
		}
		fmt.Fprintf(&b, "%d:%s", len(part), part)
	}
	return tupleKey(b.String()), nil
}

// Set adds or replaces an entry whose key is a string.
func (d *Dict) Set(key string, value Value) { d.put(key, String(key), value) }

// SetValue adds or replaces an entry; it fails for keys without a hash.
func (d *Dict) SetValue(key, value Value) error {
	h, err := hashKey(key)
	if err == nil {
		d.put(h, key, value)
	}
	return err
}

func (d *Dict) put(hash any, key, value Value) {
	if i, ok := d.index[hash]; ok {
		d.values[i] = value
		return
	}
	d.index[hash] = len(d.keys)
	d.keys = append(d.keys, key)
	d.values = append(d.values, value)
}

// Get returns the entry of a string key, or nil.
func (d *Dict) Get(key string) Value {
	if i, ok := d.index[key]; ok {
		return d.values[i]
	}
	return nil
}

// lookup returns the entry of any key, or nil.
func (d *Dict) lookup(key Value) (Value, error) {
	h, err := hashKey(key)
	if err != nil {
		return nil, err
	}
	if i, ok := d.index[h]; ok {
		return d.values[i], nil
	}
	return nil, nil
}

// Len is the number of entries.
func (d *Dict) Len() int { return len(d.keys) }

// Entry returns the i-th entry in insertion order.
func (d *Dict) Entry(i int) (key, value Value) { return d.keys[i], d.values[i] }

// Copy returns a mapping with the same entries.
func (d *Dict) Copy() *Dict {
	c := &Dict{index: make(map[any]int, len(d.keys))}
	for k, i := range d.index {
		c.index[k] = i
	}
	c.keys = append(c.keys, d.keys...)
	c.values = append(c.values, d.values...)
	return c
}

// pairs returns the entries as tuples.
func (d *Dict) pairs() []Value {
	out := make([]Value, len(d.keys))
	for i := range d.keys {
		out[i] = &List{Items: []Value{d.keys[i], d.values[i]}, Form: FormTuple}
	}
	return out
}
