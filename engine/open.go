package engine

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"reprise/kernels"
	"reprise/model"
	"reprise/weights"
)

// Source is where Open takes the weights from.
type Source struct {
	Folder   *weights.Folder
	Dummy    bool                    // make weights up; only config.json is needed
	Progress func(done, total int64) // of reading the weights; may be nil
}

// Opened is a running engine and what has to be closed behind it.
type Opened struct {
	*Engine
	weights io.Closer
	want    []model.TensorSpec
}

// Tensors lists what the model's weights are made of.
func (o *Opened) Tensors() []model.TensorSpec { return o.want }

// Close lets the engine finish, then releases the weights. The device stays open.
func (o *Opened) Close() error {
	err := o.Engine.Close()
	if e := o.weights.Close(); err == nil {
		err = e
	}
	return err
}

// Open loads a model onto dev and starts an engine. Errors are one line that names file and field, or flag.
func Open(dev kernels.Device, src Source, o Options) (*Opened, error) {
	config, err := ParseConfig(src.Folder)
	if err != nil {
		return nil, err
	}
	spec := config.Spec()
	o = o.withDefaults(dev, spec.Vocab)
	want := wanted(config, o)
	p, err := makePlan(config, o, dev.Activations(), dev.MemoryFree())
	if err != nil {
		return nil, err
	}
	if err := supported(dev, p); err != nil {
		return nil, err
	}
	m, tensors, err := src.load(dev, config, p.MaxTokens, o)
	if err != nil {
		return nil, err
	}
	e, err := New(dev, m, spec, p, o)
	if err != nil {
		tensors.Close()
		return nil, err
	}
	return &Opened{e, tensors, want}, nil
}

// supported reports what a device cannot hold, in the words of the command line.
func supported(dev kernels.Device, p *Plan) error {
	if err := dev.StateSupport(p.SSM.State); err != nil {
		return fmt.Errorf("--mamba-ssm-cache-dtype, --ssm-read-dtype: %w", err)
	}
	return nil
}

// load reads the weights onto dev, for batches of up to maxTokens tokens. The tensors are the caller's to close, behind the
// model.
func (s Source) load(dev kernels.Device, config model.Config, maxTokens int, o Options) (model.Model, tensors, error) {
	want := wanted(config, o)
	tensors, err := s.open(want, o.Seed)
	if err != nil {
		return nil, nil, err
	}
	m, err := s.read(dev, config, o.visible(tensors), tensorBytes(want), maxTokens)
	if err != nil {
		err = fmt.Errorf("%s: %w", s.Folder.Name, err)
	} else if dev.HostWeights() {
		err = tensors.Populate(s.Progress)
	}
	if err != nil {
		tensors.Close()
		return nil, nil, err
	}
	return m, tensors, nil
}

// read makes the model. Where the device copies the tensors, about total bytes, that is the work that takes time.
func (s Source) read(dev kernels.Device, config model.Config, from model.Tensors, total int64, maxTokens int) (model.Model, error) {
	if dev.HostWeights() || s.Progress == nil {
		return config.Load(dev, from, maxTokens)
	}
	m, err := config.Load(dev, &counted{Tensors: from, total: total, progress: s.Progress}, maxTokens)
	if err == nil {
		s.Progress(total, total)
	}
	return m, err
}

// counted reports how much was asked for: the device has copied what came before.
type counted struct {
	model.Tensors
	done, total int64
	progress    func(done, total int64)
}

// Get counts a tensor; one that is two weights counts once too often, which progress may not show.
func (c *counted) Get(name string, shape ...int) (kernels.HostTensor, error) {
	t, err := c.Tensors.Get(name, shape...)
	c.done = min(c.done+int64(len(t.Data)), c.total)
	c.progress(c.done, c.total)
	return t, err
}

// wanted lists the tensors that the model is loaded from: those of the drafting head only if it drafts.
func wanted(c model.Config, o Options) []model.TensorSpec {
	if o.headDrafts() {
		return c.Want()
	}
	return slices.DeleteFunc(slices.Clone(c.Want()), func(t model.TensorSpec) bool { return OfHead(t.Name) })
}

// OfHead reports whether a tensor belongs to the drafting head, in whichever tree of a checkpoint.
func OfHead(name string) bool {
	return strings.HasPrefix(name, "mtp.") || strings.Contains(name, ".mtp.")
}

// headless is a checkpoint without its drafting head.
type headless struct{ model.Tensors }

// Has denies the head.
func (h headless) Has(name string) bool { return !OfHead(name) && h.Tensors.Has(name) }

// visible is what a model may load of a checkpoint.
func (o Options) visible(t model.Tensors) model.Tensors {
	if o.headDrafts() {
		return t
	}
	return headless{t}
}

func tensorBytes(want []model.TensorSpec) int64 {
	var n int64
	for _, t := range want {
		size := int64(t.DType.Size())
		for _, d := range t.Shape {
			size *= int64(d)
		}
		n += size
	}
	return n
}

// tensors are weights that can be made resident and closed.
type tensors interface {
	model.Tensors
	io.Closer
	// Populate reads what was handed out, so that no step waits for a disk.
	Populate(progress func(done, total int64)) error
}

// made are made-up weights: always resident.
type made struct{ *weights.Dummy }

func (made) Populate(func(done, total int64)) error { return nil }

func (s Source) open(want []model.TensorSpec, seed uint64) (tensors, error) {
	if s.Dummy {
		d, err := weights.NewDummy(want, seed)
		return made{d}, err
	}
	return s.Folder.Tensors()
}
