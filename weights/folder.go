package weights

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Limits of the small files of a model folder, in bytes. Real ones stay a factor of four or more below.
const (
	maxConfig    = 4 << 20
	maxTokenizer = 128 << 20
	maxTemplate  = 4 << 20
)

// Folder is a model folder: its small files as they are (nil where there is none) and access to its tensors.
type Folder struct {
	Name             string // path, or the name of an embedded model
	Config           []byte // config.json
	GenerationConfig []byte // generation_config.json
	Tokenizer        []byte // tokenizer.json
	TokenizerConfig  []byte // tokenizer_config.json
	ChatTemplate     []byte // chat_template.jinja
	HFQuant          []byte // hf_quant_config.json
	tensors          func() (*Checkpoint, error)
}

// OpenFolder reads the small files of the model folder dir; config.json must be there.
func OpenFolder(dir string) (*Folder, error) {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: no such model folder (models are not downloaded)", dir)
	}
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s: is a file, not a model folder", dir)
	}
	return NewFolder(dir, os.DirFS(dir), func() (*Checkpoint, error) { return OpenDir(dir) })
}

// NewFolder reads the small files of a model folder from files; tensors opens its checkpoint when asked.
func NewFolder(name string, files fs.FS, tensors func() (*Checkpoint, error)) (*Folder, error) {
	f := &Folder{Name: name, tensors: tensors}
	for _, small := range []struct {
		name  string
		limit int64
		text  *[]byte
	}{
		{"config.json", maxConfig, &f.Config},
		{"generation_config.json", maxConfig, &f.GenerationConfig},
		{"tokenizer.json", maxTokenizer, &f.Tokenizer},
		{"tokenizer_config.json", maxTokenizer, &f.TokenizerConfig},
		{"chat_template.jinja", maxTemplate, &f.ChatTemplate},
		{"hf_quant_config.json", maxConfig, &f.HFQuant},
	} {
		text, err := readLimited(files, small.name, small.limit)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		*small.text = text
	}
	if f.Config == nil {
		return nil, fmt.Errorf("%s: no config.json: not a model folder", name)
	}
	return f, nil
}

// Tensors opens the checkpoint; the caller closes it.
func (f *Folder) Tensors() (*Checkpoint, error) { return f.tensors() }

// readLimited reads a whole regular file, nil and fs.ErrNotExist without one, an error beyond limit bytes.
func readLimited(files fs.FS, name string, limit int64) ([]byte, error) {
	info, err := fs.Stat(files, name) // before opening: opening a pipe would wait
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", name)
	}
	f, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("%s: larger than %d bytes", name, limit)
	}
	return text, nil
}
