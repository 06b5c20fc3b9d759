package weights

import (
	"bytes"
	"testing"

	"reprise/kernels"
)

// What opens keeps every promise of the format, and writing it again gives the same tensors.
func FuzzFile(f *testing.F) {
	f.Add(raw(`{}`, 0))
	f.Add(raw(`{"__metadata__":{"format":"pt"},"x":{`+good+`}}`, 8))
	f.Add(raw(`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"BF16","shape":[2,1],"data_offsets":[4,8]}}`, 8))
	f.Add(raw(`{"\u0061":{"dtype":"F4","shape":[2],"data_offsets":[0,1],"z":[1,{"a":null}]}}  `, 1))
	f.Fuzz(func(t *testing.T, file []byte) {
		c, err := OpenBytes("f", file)
		if err != nil {
			if len(err.Error()) > 2000 || bytes.ContainsRune([]byte(err.Error()), '\n') {
				t.Errorf("not one short line: %q", err)
			}
			return
		}
		var tensors []kernels.HostTensor
		for _, name := range c.Names() {
			h, err := c.Raw(name)
			if err != nil {
				continue // a type without a kernels.DType
			}
			if h.Elements()*h.DType.Size() != len(h.Data) {
				t.Errorf("%q: %v %v with %d bytes", name, h.DType, h.Shape, len(h.Data))
			}
			tensors = append(tensors, h)
		}
		var again bytes.Buffer
		if err := Write(&again, nil, tensors); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenBytes("again", again.Bytes()); err != nil {
			t.Error(err)
		}
	})
}

// No index leads out of the folder.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":1},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"x/y"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../x"}}`))
	f.Add([]byte(`{"weight_map":{"a":"a\\..\\b","c":"\u002e\u002e/x"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		where, err := parseIndex("i", text)
		if err != nil {
			return
		}
		for tensor, shard := range where {
			if shard == "" || shard[0] == '/' || bytes.Contains([]byte("/"+shard+"/"), []byte("/../")) {
				t.Errorf("tensor %q in %q", tensor, shard)
			}
		}
		if len(shards(where)) == 0 {
			t.Error("no shards")
		}
	})
}
