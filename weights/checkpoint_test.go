package weights

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"reprise/kernels"
)

// bytesTensor is a U8 vector.
func bytesTensor(name, data string) kernels.HostTensor {
	return kernels.HostTensor{Name: name, DType: kernels.U8, Shape: []int{len(data)}, Data: []byte(data)}
}

func encoded(t testing.TB, tensors ...kernels.HostTensor) []byte {
	t.Helper()
	var file bytes.Buffer
	if err := Write(&file, nil, tensors); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// folder writes files into a fresh folder.
func folder(t testing.TB, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func closed(t testing.TB, c *Checkpoint) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestSingleFileIsPreferred(t *testing.T) {
	dir := folder(t, map[string][]byte{singleFile: encoded(t, bytesTensor("a", "AAA")), indexFile: []byte("nonsense")})
	c, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, c)
	if a, err := c.Raw("a"); err != nil || string(a.Data) != "AAA" {
		t.Errorf("a = %q, %v", a.Data, err)
	}
}

func TestShards(t *testing.T) {
	outside := folder(t, map[string][]byte{"blob": encoded(t, bytesTensor("c", "CC"))})
	dir := folder(t, map[string][]byte{
		"one.safetensors":     encoded(t, bytesTensor("a", "A"), bytesTensor("unlisted", "U")),
		"sub/two.safetensors": encoded(t, bytesTensor("b", "BB")),
		indexFile: []byte(`{"metadata":{"total_size":5},"weight_map":{"a":"one.safetensors","b":"sub/two.safetensors",
			"c":"three.safetensors"}}`),
	})
	if err := os.Symlink(filepath.Join(outside, "blob"), filepath.Join(dir, "three.safetensors")); err != nil {
		t.Fatal(err)
	}
	c, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, c)
	for name, want := range map[string]string{"a": "A", "b": "BB", "c": "CC", "unlisted": "U"} {
		if got, err := c.Raw(name); err != nil || string(got.Data) != want {
			t.Errorf("%s = %q, %v", name, got.Data, err)
		}
	}
}

func TestBadFolders(t *testing.T) {
	a := encoded(t, bytesTensor("a", "A"))
	index := func(weightMap string) []byte { return []byte(`{"weight_map":` + weightMap + `}`) }
	for _, c := range []struct {
		name  string
		files map[string][]byte
		want  []string
	}{
		{"nothing", nil, []string{"neither model.safetensors nor model.safetensors.index.json"}},
		{"shards without index", map[string][]byte{"x.safetensors": a}, []string{"neither", "only x.safetensors"}},
		{"empty file", map[string][]byte{singleFile: {}}, []string{singleFile, "0 bytes"}},
		{"a folder", map[string][]byte{singleFile + "/x": a}, []string{singleFile, "not a regular file"}},
		{"index is a folder", map[string][]byte{indexFile + "/x": a}, []string{indexFile, "not a regular file"}},
		{"index is not JSON", map[string][]byte{indexFile: []byte("hello")}, []string{indexFile, "not a shard index"}},
		{"index is an array", map[string][]byte{indexFile: []byte("[]")}, []string{indexFile, "not a shard index"}},
		{"index has a tail", map[string][]byte{indexFile: []byte(`{"weight_map":{"a":"s"}} {`)}, []string{indexFile, "more data"}},
		{"no weight_map", map[string][]byte{indexFile: []byte(`{"metadata":{}}`)}, []string{indexFile, "no weight_map"}},
		{"empty weight_map", map[string][]byte{indexFile: index(`{}`)}, []string{indexFile, "no weight_map"}},
		{"weight_map is a string", map[string][]byte{indexFile: index(`"a"`)}, []string{indexFile, "want '{'"}},
		{"weight_map of numbers", map[string][]byte{indexFile: index(`{"a":1}`)}, []string{indexFile, "a string"}},
		{"two weight_maps", map[string][]byte{indexFile: []byte(`{"weight_map":{"a":"s"},"weight_map":{"a":"s"}}`)}, []string{indexFile, "given twice"}},
		{"tensor listed twice", map[string][]byte{indexFile: index(`{"a":"s","a":"s"}`)}, []string{indexFile, `tensor "a": listed twice`}},
		{"missing shard", map[string][]byte{"s": a, indexFile: index(`{"a":"s","b":"gone"}`)}, []string{indexFile, `lists shard "gone", which is not there`}},
		{"corrupt shard", map[string][]byte{"s": a[:len(a)-1], indexFile: index(`{"a":"s"}`)}, []string{"/s: ", `tensor "a"`}},
		{"absent tensor", map[string][]byte{"s": a, indexFile: index(`{"a":"s","b":"s"}`)}, []string{indexFile, `tensor "b": is not in "s"`}},
		{"tensor in another shard", map[string][]byte{"s": a, "r": encoded(t, bytesTensor("b", "")), indexFile: index(`{"a":"r","b":"s"}`)}, []string{indexFile, "should be in", "but is in"}},
		{"tensor in two shards", map[string][]byte{"s": a, "r": encoded(t, bytesTensor("b", ""), bytesTensor("a", "A")), indexFile: index(`{"a":"s","b":"r"}`)}, []string{"/s: ", `tensor "a": is in `, "/r too"}},
	} {
		dir := folder(t, c.files)
		checkpoint, err := OpenDir(dir)
		if err == nil || checkpoint != nil {
			t.Errorf("%s: opened", c.name)
			continue
		}
		for _, want := range append(c.want, dir) {
			if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: error %q, want one line with %q", c.name, err, want)
			}
		}
	}
}

func TestShardsStayInTheFolder(t *testing.T) {
	for _, shard := range []string{
		"../x", "a/../../x", "a/../x", "/etc/passwd", "", ".", "..", "./x", "a//x", `..\\x`, `C:\\x`, "C:x", `a\u0000b`, "x/",
	} {
		dir := folder(t, map[string][]byte{"x": encoded(t, bytesTensor("a", "A")), "in/" + indexFile: []byte(`{"weight_map":{"a":"` + shard + `"}}`)})
		_, err := OpenDir(filepath.Join(dir, "in"))
		if err == nil || !strings.Contains(err.Error(), `tensor "a": shard `) || !strings.Contains(err.Error(), "not a file inside") {
			t.Errorf("shard %q: %v", shard, err)
		}
	}
}

func TestGetChecks(t *testing.T) {
	file := raw(`{"f":{"dtype":"BF16","shape":[3,4],"data_offsets":[0,24]},"i":{"dtype":"I32","shape":[1],"data_offsets":[24,28]},
		"b":{"dtype":"BOOL","shape":[4],"data_offsets":[28,32]}}`, 32)
	c, err := OpenBytes("model.safetensors", file)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []struct {
		name, want string
		shape      []int
	}{
		{"f", `model.safetensors: tensor "f": shape [3 4], want [4 4]`, []int{4, 4}},
		{"f", `model.safetensors: tensor "f": shape [3 4], want [12]`, []int{12}},
		{"f", `model.safetensors: tensor "f": shape [3 4], want []`, nil},
		{"i", `model.safetensors: tensor "i": dtype int32, want floating point`, []int{1}},
		{"b", `model.safetensors: tensor "b": dtype BOOL is not supported`, []int{4}},
		{"g", `model.safetensors: missing tensor "g"`, []int{1}},
	} {
		if _, err := c.Get(bad.name, bad.shape...); err == nil || err.Error() != bad.want {
			t.Errorf("Get(%s, %v): %v, want %s", bad.name, bad.shape, err, bad.want)
		}
	}
	var missing *MissingError
	if _, err := c.Raw("g"); !errors.As(err, &missing) || missing.Tensor != "g" {
		t.Errorf("a missing tensor gives %T", err)
	}
	f, err := c.Get("f", 3, 4)
	if err != nil || f.DType != kernels.BF16 || len(f.Data) != 24 || cap(f.Data) != 24 {
		t.Errorf("f = %+v, %v", f, err)
	}
	f.Shape[0] = 99
	if again, err := c.Get("f", 3, 4); err != nil || again.Shape[0] != 3 {
		t.Errorf("a caller's change of the shape reached the checkpoint: %v, %v", again.Shape, err)
	}
	if c.Has("g") || !c.Has("b") {
		t.Error("Has is wrong")
	}
}

func TestUnusedNamesWhatNobodyRead(t *testing.T) {
	c, err := OpenBytes("m", encoded(t, bytesTensor("z", "Z"), bytesTensor("a", "A"), bytesTensor("read", "R")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Raw("read"); err != nil {
		t.Fatal(err)
	}
	c.Has("a")
	if got := fmt.Sprint(c.Unused(), c.Names()); got != "[a z] [a read z]" {
		t.Errorf("unused and all: %s", got)
	}
}

func TestConcurrentReads(t *testing.T) {
	dir := folder(t, map[string][]byte{singleFile: encoded(t, bytesTensor("a", "AAA"), bytesTensor("b", strings.Repeat("B", 1<<20)))})
	c, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, c)
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			for range 100 {
				if b, err := c.Raw("b"); err != nil || b.Data[1<<19] != 'B' {
					t.Errorf("b: %v", err)
				}
				c.Unused()
			}
			if err := c.Populate(nil); err != nil {
				t.Error(err)
			}
		})
	}
	readers.Wait()
}

func TestOpenFilled(t *testing.T) {
	file := encoded(t, bytesTensor("a", "AAA"))
	c, err := OpenFilled("made", int64(len(file)), func(dst []byte) error { copy(dst, file); return nil })
	if err != nil {
		t.Fatal(err)
	}
	if a, err := c.Raw("a"); err != nil || string(a.Data) != "AAA" {
		t.Errorf("a = %q, %v", a.Data, err)
	}
	closed(t, c)
	if _, err := OpenFilled("made", 100, func([]byte) error { return fs.ErrInvalid }); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("the error of filling is lost: %v", err)
	}
	if _, err := OpenFilled("made", 0, func([]byte) error { return nil }); err == nil {
		t.Error("opened nothing")
	}
	if _, err := OpenFilled("made", -1, func([]byte) error { return nil }); err == nil {
		t.Error("opened a negative size")
	}
}
