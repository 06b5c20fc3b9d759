package e2e

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"reprise/demo"
)

// files is a model folder in memory: contents by name.
type files map[string][]byte

func (f files) clone() files { return maps.Clone(f) }

// write makes the folder.
func (f files) write(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range f {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const goldens = "../../model/testdata/goldens/"

// golden is a tiny checkpoint without a tokenizer.
func golden(t *testing.T, name string) files {
	t.Helper()
	d, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	f := files{"config.json": read(t, goldens+name+"/config.json")}
	if f["model.safetensors"], err = d.DecodeAll(read(t, goldens+name+"/model.safetensors.zst"), nil); err != nil {
		t.Fatal(err)
	}
	return f
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// withText adds the tokenizer and the chat template of a built-in model, and widens the vocabulary to it; only made-up
// weights fit then.
func (f files) withText(t *testing.T, from string) files {
	t.Helper()
	folder, err := demo.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	f = f.clone()
	delete(f, "model.safetensors")
	f["tokenizer.json"], f["tokenizer_config.json"], f["chat_template.jinja"] = folder.Tokenizer, folder.TokenizerConfig, folder.ChatTemplate
	return f.config(t, "vocab_size", "4096")
}

// config replaces the value of a key of config.json, at the top or in text_config, wherever it is; new keys go to the
// top. An empty value removes the key.
func (f files) config(t *testing.T, key, value string) files {
	t.Helper()
	f = f.clone()
	var top map[string]json.RawMessage
	decode(t, f["config.json"], &top)
	inner := map[string]json.RawMessage{}
	if text := top["text_config"]; text != nil {
		decode(t, text, &inner)
	}
	if _, ok := inner[key]; ok {
		put(inner, key, value)
		top["text_config"] = encode(t, inner)
	} else {
		put(top, key, value)
	}
	f["config.json"] = encode(t, top)
	return f
}

func put(m map[string]json.RawMessage, key, value string) {
	if value == "" {
		delete(m, key)
		return
	}
	m[key] = json.RawMessage(value)
}

func decode(t *testing.T, text []byte, to any) {
	t.Helper()
	if err := json.Unmarshal(text, to); err != nil {
		t.Fatal(err)
	}
}

// encode writes raw values as they are, so that a config may hold what JSON forbids.
func encode(t *testing.T, m map[string]json.RawMessage) []byte {
	t.Helper()
	var b strings.Builder
	b.WriteByte('{')
	for key, value := range m {
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(key)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return []byte(b.String())
}

// unpack reads a file that is compressed as its name says.
func unpack(t *testing.T, path string) []byte {
	t.Helper()
	var r io.Reader
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	switch filepath.Ext(path) {
	case ".gz":
		r, err = gzip.NewReader(f)
	case ".zst":
		r, err = zstd.NewReader(f)
	default:
		r = f
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
