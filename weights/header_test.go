package weights

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"reprise/kernels"
)

// raw builds a file of a header as it is and size bytes of data.
func raw(header string, size int) []byte {
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(file, header...), make([]byte, size)...)
}

// one is a header of a single tensor with the given fields.
func one(fields string) string { return `{"x":{` + fields + `}}` }

const good = `"dtype":"F32","shape":[2],"data_offsets":[0,8]`

func TestCorruptFiles(t *testing.T) {
	huge := binary.LittleEndian.AppendUint64(nil, 1<<63)
	over := append(binary.LittleEndian.AppendUint64(nil, maxHeader+1), `{"x":1}`...)
	two := func(a, b string) string {
		return `{"a":{"dtype":"U8","shape":[4],"data_offsets":` + a + `},"b":{"dtype":"U8","shape":[4],"data_offsets":` + b + `}}`
	}
	for _, c := range []struct {
		name, want string
		file       []byte
	}{
		{"empty", "too short", nil},
		{"seven bytes", "too short", make([]byte, 7)},
		{"header length beyond int64", "more than the format's limit", huge},
		{"header length beyond the limit", "more than the format's limit", over},
		{"header length beyond the file", "truncated", raw(one(good), 0)[:20]},
		{"no header", "not a JSON object", make([]byte, 8)},
		{"header is an array", "not a JSON object", raw(`[1]`, 0)},
		{"header starts with a space", "not a JSON object", raw(` {}`, 0)},
		{"header is cut", "want", raw(`{"x":{`, 0)},
		{"header has a tail", "more data", raw(one(good)+"x", 8)},
		{"header has a comma too many", "a string", raw(`{"x":{`+good+`},}`, 8)},
		{"header is not UTF-8", "not UTF-8", raw("{\"\xff\":{"+good+`}}`, 8)},
		{"bad escape", "bad string", raw(`{"\q":{`+good+`}}`, 8)},
		{"control character", "control character", raw("{\"a\n\":{"+good+`}}`, 8)},
		{"string without end", "unfinished string", raw(`{"x`, 0)},
		{"backslash at the end", "unfinished string", raw(`{"x\`, 0)},
		{"name too long", "longer than", raw(`{"`+strings.Repeat("x", maxName+1)+`":{`+good+`}}`, 8)},
		{"metadata is a number", "header: want '{'", raw(`{"__metadata__":1}`, 0)},
		{"metadata of numbers", "a string", raw(`{"__metadata__":{"a":1}}`, 0)},
		{"metadata twice", "listed twice", raw(`{"__metadata__":{},"__metadata__":{}}`, 0)},
		{"tensor twice", `tensor "x": listed twice`, raw(`{"x":{`+good+`},"x":{`+good+`}}`, 8)},
		{"tensor twice through an escape", `tensor "x": listed twice`, raw(`{"x":{`+good+`},"\u0078":{`+good+`}}`, 8)},
		{"tensor is a number", `tensor "x": want '{'`, raw(`{"x":1}`, 0)},
		{"no dtype", "needs dtype", raw(one(`"shape":[2],"data_offsets":[0,8]`), 8)},
		{"no shape", "needs dtype", raw(one(`"dtype":"F32","data_offsets":[0,8]`), 8)},
		{"no offsets", "needs dtype", raw(one(`"dtype":"F32","shape":[2]`), 8)},
		{"keys in capitals", "needs dtype", raw(one(`"DTYPE":"F32","shape":[2],"data_offsets":[0,8]`), 8)},
		{"dtype twice", "dtype given twice", raw(one(good+`,"dtype":"F32"`), 8)},
		{"shape twice", "shape given twice", raw(one(`"shape":[],`+good), 8)},
		{"offsets twice", "data_offsets given twice", raw(one(good+`,"data_offsets":[]`), 8)},
		{"unknown dtype", `unknown dtype "F31"`, raw(one(`"dtype":"F31","shape":[2],"data_offsets":[0,8]`), 8)},
		{"dtype in small letters", `unknown dtype "f32"`, raw(one(`"dtype":"f32","shape":[2],"data_offsets":[0,8]`), 8)},
		{"dtype is a number", "dtype: want", raw(one(`"dtype":32,"shape":[2],"data_offsets":[0,8]`), 8)},
		{"one offset", "two data_offsets", raw(one(`"dtype":"F32","shape":[2],"data_offsets":[8]`), 8)},
		{"three offsets", "more than 2", raw(one(`"dtype":"F32","shape":[2],"data_offsets":[0,8,8]`), 8)},
		{"negative offset", "non-negative integer", raw(one(`"dtype":"F32","shape":[2],"data_offsets":[-8,0]`), 8)},
		{"fractional offset", "want ']'", raw(one(`"dtype":"F32","shape":[2],"data_offsets":[0,8.0]`), 8)},
		{"offset with a leading zero", "non-negative integer", raw(one(`"dtype":"F32","shape":[2],"data_offsets":[0,08]`), 8)},
		{"offset beyond int64", "too large", raw(one(`"dtype":"F32","shape":[2],"data_offsets":[0,9223372036854775808]`), 8)},
		{"offsets backwards", "run backwards", raw(one(`"dtype":"F32","shape":[2],"data_offsets":[8,0]`), 8)},
		{"negative dimension", "shape: want a non-negative", raw(one(`"dtype":"F32","shape":[-2],"data_offsets":[0,8]`), 8)},
		{"shape of strings", "shape: want a non-negative", raw(one(`"dtype":"F32","shape":["2"],"data_offsets":[0,8]`), 8)},
		{"too many dimensions", "more than 8", raw(one(`"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]`), 8)},
		{"product wraps to the right size", "too large", raw(one(`"dtype":"U8","shape":[4294967296,4294967296,1],"data_offsets":[0,0]`), 0)},
		{"bits wrap", "too large", raw(one(`"dtype":"F32","shape":[576460752303423488],"data_offsets":[0,0]`), 0)},
		{"shape and offsets differ", "needs 96 bits", raw(one(`"dtype":"F32","shape":[3],"data_offsets":[0,8]`), 8)},
		{"half a byte", "needs 4 bits", raw(one(`"dtype":"F4","shape":[1],"data_offsets":[0,1]`), 1)},
		{"beyond the data", `tensor "x": data_offsets [0, 8] exceed the 7 bytes`, raw(one(good), 7)},
		{"overlap", `tensor "b": data_offsets [2, 6] overlap tensor "a"`, raw(two("[0,4]", "[2,6]"), 6)},
		{"same range", "overlap", raw(two("[0,4]", "[0,4]"), 4)},
		{"hole at the start", "leave a hole after byte 0", raw(two("[1,5]", "[5,9]"), 9)},
		{"hole between", `tensor "b": data_offsets [5, 9] leave a hole after byte 4`, raw(two("[0,4]", "[5,9]"), 9)},
		{"trailing bytes", "1 bytes of data that no tensor covers", raw(two("[0,4]", "[4,8]"), 9)},
		{"data without tensors", "no tensor covers", raw(`{}`, 8)},
		{"deep nesting", "nested deeper", raw(one(`"y":`+strings.Repeat("[", 100)), 0)},
		{"unknown field is not JSON", "not JSON", raw(one(`"y":nil,`+good), 8)},
	} {
		checkpoint, err := OpenBytes("bad.safetensors", c.file)
		if err == nil || checkpoint != nil {
			t.Errorf("%s: opened", c.name)
			continue
		}
		var format *FormatError
		if !errors.As(err, &format) || !strings.HasPrefix(err.Error(), "bad.safetensors: ") {
			t.Errorf("%s: %T %q does not say which file", c.name, err, err)
		}
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 500 {
			t.Errorf("%s: error %q, want one short line with %q", c.name, err, c.want)
		}
	}
}

func TestOddButValidFiles(t *testing.T) {
	for name, file := range map[string][]byte{
		"no tensors":       raw(`{}`, 0),
		"padded header":    raw("{}      \n", 0),
		"white space":      raw("{ \"x\" : { \"shape\" : [ 2 ] ,\n\"data_offsets\":[ 0, 8 ],\t\"dtype\":\"F32\" } }", 8),
		"unknown field":    raw(one(good+`,"extra":{"a":[1,-2.5e3,true,null,"s"],"b":{}}`), 8),
		"long metadata":    raw(`{"__metadata__":{"a":"`+strings.Repeat("x", 1<<20)+`"},"x":{`+good+`}}`, 8),
		"metadata":         raw(`{"__metadata__":{"format":"pt","a":"\u00e9\n"},"x":{`+good+`}}`, 8),
		"scalar":           raw(one(`"dtype":"I64","shape":[],"data_offsets":[0,8]`), 8),
		"no elements":      raw(one(`"dtype":"F32","shape":[0,9223372036854775807],"data_offsets":[0,0]`), 0),
		"empty in between": raw(`{"c":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 2),
		"packed fours":     raw(one(`"dtype":"F4","shape":[3,2],"data_offsets":[0,3]`), 3),
	} {
		if _, err := OpenBytes(name, file); err != nil {
			t.Error(err)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	tensors := []kernels.HostTensor{
		{Name: "a", DType: kernels.BF16, Shape: []int{2, 3}, Data: []byte("abcdefghijkl")},
		{Name: "é\n\"", DType: kernels.F32, Shape: []int{}, Data: []byte("1234")},
		{Name: "none", DType: kernels.I64, Shape: []int{0, 5}},
		{Name: "half", DType: kernels.F16, Shape: []int{1}, Data: []byte("hh")},
		{Name: "e4", DType: kernels.F8E4M3, Shape: []int{3}, Data: []byte("444")},
		{Name: "e5", DType: kernels.F8E5M2, Shape: []int{1, 1}, Data: []byte("5")},
		{Name: "u8", DType: kernels.U8, Shape: []int{1}, Data: []byte("u")},
		{Name: "i8", DType: kernels.I8, Shape: []int{1}, Data: []byte("i")},
		{Name: "i16", DType: kernels.I16, Shape: []int{1}, Data: []byte("16")},
		{Name: "i32", DType: kernels.I32, Shape: []int{1}, Data: []byte("0032")},
		{Name: "i64", DType: kernels.I64, Shape: []int{1}, Data: []byte("00000064")},
	}
	var file bytes.Buffer
	if err := Write(&file, map[string]string{"format": "pt"}, tensors); err != nil {
		t.Fatal(err)
	}
	c, err := OpenBytes("round", file.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range tensors {
		got, err := c.Raw(want.Name)
		if err != nil {
			t.Fatal(err)
		}
		if got.DType != want.DType || fmt.Sprint(got.Shape) != fmt.Sprint(want.Shape) || !bytes.Equal(got.Data, want.Data) {
			t.Errorf("%q: read %v %v %q, wrote %v %v %q", want.Name, got.DType, got.Shape, got.Data, want.DType, want.Shape, want.Data)
		}
	}
	if len(c.Names()) != len(tensors) || c.Bytes() != 12+4+2+3+1+1+1+2+4+8 {
		t.Errorf("%d tensors of %d bytes", len(c.Names()), c.Bytes())
	}
}

func TestWriteRefusesWhatCannotBeRead(t *testing.T) {
	x := kernels.HostTensor{Name: "x", DType: kernels.U8, Shape: []int{1}, Data: []byte("x")}
	short, invalid, reserved := x, x, x
	short.Data = nil
	invalid.DType = kernels.Invalid
	reserved.Name = "__metadata__"
	for name, tensors := range map[string][]kernels.HostTensor{
		"twice": {x, x}, "too few bytes": {short}, "no dtype": {invalid}, "reserved name": {reserved},
	} {
		if err := Write(&bytes.Buffer{}, nil, tensors); err == nil {
			t.Errorf("%s: written", name)
		}
	}
}
