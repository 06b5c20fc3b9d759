package weights

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"reprise/kernels"
	"reprise/model"
)

// Names of a checkpoint's files.
const (
	singleFile = "model.safetensors"
	indexFile  = "model.safetensors.index.json"
)

// Checkpoint is a set of named tensors in mapped or anonymous memory. Reading is safe from several goroutines; no
// tensor may be used after Close.
type Checkpoint struct {
	name    string
	regions []*region
	tensors map[string]*tensor
}

// tensor is one tensor and whether it was handed out.
type tensor struct {
	entry
	region *region
	data   []byte // part of region's
	used   atomic.Bool
}

var _ model.Tensors = (*Checkpoint)(nil)

// OpenDir opens the checkpoint in a folder: model.safetensors, or else the shards that
// model.safetensors.index.json lists. Shard names must not lead out of the folder; symbolic links that its owner
// put there are followed.
func OpenDir(dir string) (*Checkpoint, error) {
	path := filepath.Join(dir, singleFile)
	c := newCheckpoint("checkpoint " + dir)
	err := c.addFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = c.addShards(dir)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// OpenBytes opens a safetensors file that is in memory already; content must not change. name is for errors.
func OpenBytes(name string, content []byte) (*Checkpoint, error) {
	c := newCheckpoint(name)
	if err := c.add(&region{file: name, data: content}); err != nil {
		return nil, err
	}
	return c, nil
}

// OpenFilled opens a safetensors file of size bytes that fill produces in memory outside the Go heap.
func OpenFilled(name string, size int64, fill func([]byte) error) (*Checkpoint, error) {
	r, err := allocate(size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := fill(r.data); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), r.close())
	}
	r.file = name
	c := newCheckpoint(name)
	if err := c.add(r); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func newCheckpoint(name string) *Checkpoint {
	return &Checkpoint{name: name, tensors: map[string]*tensor{}}
}

// addFile maps the file at path and adds its tensors.
func (c *Checkpoint) addFile(path string) error {
	r, err := mapFile(path)
	if err != nil {
		return err
	}
	return c.add(r)
}

// add takes over r, a whole safetensors file.
func (c *Checkpoint) add(r *region) error {
	c.regions = append(c.regions, r)
	entries, data, err := parseFile(r.file, r.data)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if other, ok := c.tensors[e.name]; ok {
			return formatError(r.file, e.name, "is in %s too", other.region.file)
		}
		c.tensors[e.name] = &tensor{entry: e, region: r, data: data[e.begin:e.end:e.end]}
	}
	return nil
}

// addShards adds the files that dir's index lists.
func (c *Checkpoint) addShards(dir string) error {
	path := filepath.Join(dir, indexFile)
	text, err := readLimited(os.DirFS(dir), indexFile, maxHeader)
	if errors.Is(err, fs.ErrNotExist) {
		return nothingFound(dir)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	where, err := parseIndex(path, text)
	if err != nil {
		return err
	}
	for _, shard := range shards(where) {
		if err := c.addFile(filepath.Join(dir, filepath.FromSlash(shard))); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return formatError(path, "", "lists shard %s, which is not there", quote(shard))
			}
			return err
		}
	}
	return c.checkIndex(dir, path, where)
}

func nothingFound(dir string) error {
	others, _ := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	hint := ""
	if len(others) > 0 {
		hint = fmt.Sprintf(" (only %s and the like, without an index)", filepath.Base(others[0]))
	}
	return fmt.Errorf("%s: neither %s nor %s%s: %w", dir, singleFile, indexFile, hint, fs.ErrNotExist)
}

// checkIndex checks that every tensor of the index is in the shard that the index names.
func (c *Checkpoint) checkIndex(dir, path string, where map[string]string) error {
	for name, shard := range where {
		t, ok := c.tensors[name]
		if !ok {
			return formatError(path, name, "is not in %s", quote(shard))
		}
		if t.region.file != filepath.Join(dir, filepath.FromSlash(shard)) {
			return formatError(path, name, "should be in %s but is in %s", quote(shard), quote(filepath.Base(t.region.file)))
		}
	}
	return nil
}

// Get returns a tensor of floating-point numbers whose shape is shape. The memory stays valid until Close.
func (c *Checkpoint) Get(name string, shape ...int) (kernels.HostTensor, error) {
	t, err := c.Raw(name)
	if err != nil {
		return t, err
	}
	file := c.tensors[name].region.file
	if !slices.Equal(t.Shape, shape) {
		return kernels.HostTensor{}, formatError(file, name, "shape %v, want %v", t.Shape, shape)
	}
	if !t.DType.Float() {
		return kernels.HostTensor{}, formatError(file, name, "dtype %v, want floating point", t.DType)
	}
	return t, nil
}

// Raw returns a tensor of any supported type and any shape. The memory stays valid until Close.
func (c *Checkpoint) Raw(name string) (kernels.HostTensor, error) {
	t, ok := c.tensors[name]
	if !ok {
		return kernels.HostTensor{}, &MissingError{c.name, name}
	}
	dtype := elementTypes[t.typeName].dtype
	if dtype == kernels.Invalid {
		return kernels.HostTensor{}, formatError(t.region.file, name, "dtype %s is not supported", t.typeName)
	}
	t.used.Store(true)
	return kernels.HostTensor{Name: name, DType: dtype, Shape: slices.Clone(t.shape), Data: t.data}, nil
}

// Has reports whether there is such a tensor.
func (c *Checkpoint) Has(name string) bool { return c.tensors[name] != nil }

// Names lists all tensors, sorted.
func (c *Checkpoint) Names() []string { return c.list(func(*tensor) bool { return true }) }

// Unused lists the tensors that nobody asked for, sorted.
func (c *Checkpoint) Unused() []string { return c.list(func(t *tensor) bool { return !t.used.Load() }) }

func (c *Checkpoint) list(keep func(*tensor) bool) []string {
	var names []string
	for name, t := range c.tensors {
		if keep(t) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Bytes is the data of all tensors together.
func (c *Checkpoint) Bytes() int64 {
	total := int64(0)
	for _, t := range c.tensors {
		total += int64(len(t.data))
	}
	return total
}

// Close unmaps the files. Tensors handed out must not be used any more.
func (c *Checkpoint) Close() error {
	var all error
	for _, r := range c.regions {
		all = errors.Join(all, r.close())
	}
	c.regions, c.tensors = nil, nil
	return all
}
