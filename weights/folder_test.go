package weights

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

func TestOpenFolder(t *testing.T) {
	dir := folder(t, map[string][]byte{
		"config.json": []byte("{}"), "tokenizer.json": []byte("tok"), "chat_template.jinja": []byte("chat"),
		singleFile: encoded(t, bytesTensor("a", "A")),
	})
	f, err := OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if f.Name != dir || string(f.Config) != "{}" || string(f.Tokenizer) != "tok" || string(f.ChatTemplate) != "chat" {
		t.Errorf("read %+v", f)
	}
	if f.GenerationConfig != nil || f.TokenizerConfig != nil {
		t.Error("made up files that are not there")
	}
	c, err := f.Tensors()
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, c)
	if !c.Has("a") {
		t.Error("no tensor")
	}
}

// Dummy weights need no checkpoint: a folder opens without one, and says so only when asked.
func TestFolderWithoutTensors(t *testing.T) {
	f, err := OpenFolder(folder(t, map[string][]byte{"config.json": []byte("{}")}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Tensors(); err == nil || !strings.Contains(err.Error(), "neither") {
		t.Errorf("Tensors: %v", err)
	}
}

func TestBadModelFolders(t *testing.T) {
	empty := t.TempDir()
	file := filepath.Join(folder(t, map[string][]byte{"f": nil}), "f")
	odd := folder(t, map[string][]byte{"config.json/x": nil})
	big := folder(t, map[string][]byte{"config.json": []byte("{}")})
	if err := os.Truncate(filepath.Join(big, "config.json"), maxConfig+1); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		empty:          empty + ": no config.json: not a model folder",
		empty + "/not": "no such model folder",
		file:           "is a file",
		odd:            "config.json: not a regular file",
		big:            "config.json: larger than",
	} {
		if _, err := OpenFolder(dir); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestNewFolderFromAnyFileSystem(t *testing.T) {
	files := fstest.MapFS{"config.json": {Data: []byte("{}")}, "generation_config.json": {Data: []byte("g")}}
	f, err := NewFolder("made", files, func() (*Checkpoint, error) { return OpenBytes("made", raw(`{}`, 0)) })
	if err != nil || string(f.GenerationConfig) != "g" {
		t.Errorf("%+v, %v", f, err)
	}
	if _, err := NewFolder("made", fstest.MapFS{}, nil); err == nil || err.Error() != "made: no config.json: not a model folder" {
		t.Error(err)
	}
}
