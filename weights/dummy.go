package weights

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/bits"
	"runtime"
	"slices"
	"sync"

	"reprise/kernels"
	"reprise/model"
)

// A made-up value is one of 4096 quantiles of its tensor's distribution, chosen by 12 bits of a counter-based
// generator: one word of random bits gives a group of four elements. Tables make it as fast as memory can be filled.
const (
	quantiles   = 4096
	groupSize   = 4
	groupBlock  = 64 << 10        // groups a goroutine makes at a time
	dummyAlign  = 64              // bytes between the starts of tensors
	maxElements = math.MaxInt / 8 // of one tensor, so that no size overflows
)

// Dummy is a source of made-up weights. A tensor's values depend on the seed, its name and its specification only;
// they are made when the tensor is first asked for. It is safe for use by several goroutines.
type Dummy struct {
	memory  *region
	tensors map[string]*dummyTensor
	seed    uint64

	mu     sync.Mutex // guards tables
	tables map[tableKey]*table
}

type dummyTensor struct {
	spec model.TensorSpec
	data []byte
	once sync.Once
}

var _ model.Tensors = (*Dummy)(nil)

// NewDummy prepares made-up weights for specs. It reserves address space for all of them; memory is taken when a
// tensor is made. The error names a specification that cannot be met.
func NewDummy(specs []model.TensorSpec, seed uint64) (*Dummy, error) {
	d := &Dummy{tensors: map[string]*dummyTensor{}, seed: seed, tables: map[tableKey]*table{}}
	ends, total := make([]int64, len(specs)), int64(0)
	for i, spec := range specs {
		size, err := dummyBytes(spec)
		if err != nil {
			return nil, fmt.Errorf("dummy weights: tensor %s: %w", quote(spec.Name), err)
		}
		if d.Has(spec.Name) {
			return nil, fmt.Errorf("dummy weights: tensor %s is specified twice", quote(spec.Name))
		}
		d.tensors[spec.Name] = &dummyTensor{spec: spec}
		start := (total + dummyAlign - 1) / dummyAlign * dummyAlign
		if start > math.MaxInt64-size-dummyAlign {
			return nil, errors.New("dummy weights: more bytes than can be counted")
		}
		total = start + size
		ends[i] = total
	}
	memory, err := allocate(total)
	if err != nil {
		return nil, fmt.Errorf("dummy weights: %w", err)
	}
	d.memory = memory
	for i, spec := range specs {
		size, _ := dummyBytes(spec)
		d.tensors[spec.Name].data = memory.data[ends[i]-size : ends[i] : ends[i]]
	}
	return d, nil
}

// dummyBytes is the size of a tensor.
func dummyBytes(spec model.TensorSpec) (int64, error) {
	if !spec.DType.Float() {
		return 0, fmt.Errorf("cannot make up %v", spec.DType)
	}
	if spec.Init > model.InitConv {
		return 0, fmt.Errorf("unknown kind of values %d", spec.Init)
	}
	n := 1
	for _, dim := range spec.Shape {
		if dim < 0 || dim > 0 && n > maxElements/dim {
			return 0, fmt.Errorf("impossible shape %v", spec.Shape)
		}
		n *= dim
	}
	return int64(n) * int64(spec.DType.Size()), nil
}

// Has reports whether the tensor was specified.
func (d *Dummy) Has(name string) bool { return d.tensors[name] != nil }

// Get returns a made-up tensor; shape must be the specified one. The memory stays valid until Close.
func (d *Dummy) Get(name string, shape ...int) (kernels.HostTensor, error) {
	t, ok := d.tensors[name]
	if !ok {
		return kernels.HostTensor{}, &MissingError{"dummy weights", name}
	}
	if !slices.Equal(t.spec.Shape, shape) {
		return kernels.HostTensor{}, formatError("dummy weights", name, "shape %v, want %v", t.spec.Shape, shape)
	}
	t.once.Do(func() { d.fill(t) })
	return kernels.HostTensor{Name: name, DType: t.spec.DType, Shape: slices.Clone(shape), Data: t.data}, nil
}

// Close releases the memory of all tensors.
func (d *Dummy) Close() error {
	d.tensors = nil
	return d.memory.close()
}

// fill makes all values of t, in parallel.
func (d *Dummy) fill(t *dummyTensor) {
	key, values := d.key(t.spec.Name), d.table(t.spec)
	blockBytes := groupBlock * groupSize * t.spec.DType.Size()
	blocks := (len(t.data) + blockBytes - 1) / blockBytes
	workers := min(blocks, runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for b := w; b < blocks; b += workers {
				part := t.data[b*blockBytes : min((b+1)*blockBytes, len(t.data))]
				values.fill(part, t.spec.DType.Size(), key+uint64(b*groupBlock)*weyl)
			}
		})
	}
	all.Wait()
}

// weyl is the step of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): counter i has the state key + i * weyl.
const weyl = 0x9e3779b97f4a7c15

// mix is the output function of SplitMix64.
func mix(state uint64) uint64 {
	state = (state ^ state>>30) * 0xbf58476d1ce4e5b9
	state = (state ^ state>>27) * 0x94d049bb133111eb
	return state ^ state>>31
}

// key is the generator's first state for a tensor.
func (d *Dummy) key(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return mix(mix(d.seed+weyl) + bits.RotateLeft64(h.Sum64(), 32))
}

// tableKey says what a table of values depends on: width is the size of the last dimension where it matters.
type tableKey struct {
	init  model.Init
	dtype kernels.DType
	width int
}

// table is the stored form of each quantile, in the low bytes.
type table [quantiles]uint32

func (d *Dummy) table(spec model.TensorSpec) *table {
	key := tableKey{init: spec.Init, dtype: spec.DType}
	if (spec.Init == model.InitMatrix || spec.Init == model.InitConv) && len(spec.Shape) > 0 {
		key.width = spec.Shape[len(spec.Shape)-1]
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tables[key] == nil {
		d.tables[key] = makeTable(key)
	}
	return d.tables[key]
}

func makeTable(key tableKey) *table {
	t := new(table)
	for i := range t {
		t[i] = encode(key.dtype, float32(quantile(key.init, key.width, (float64(i)+0.5)/quantiles)))
	}
	return t
}

// quantile is the value below which a share u of the made-up values lies.
func quantile(init model.Init, width int, u float64) float64 {
	normal := func() float64 { return math.Sqrt2 * math.Erfinv(2*u-1) }
	scale := 1 / math.Sqrt(max(1, float64(width)))
	switch init {
	case model.InitOne:
		return 1 + 0.05*normal()
	case model.InitZero:
		return 0.05 * normal()
	case model.InitALog:
		return math.Log(1 + 15*u)
	case model.InitDtBias:
		dt := math.Exp(math.Log(1e-3) + u*math.Log(100))
		return dt + math.Log(-math.Expm1(-dt))
	case model.InitConv:
		return (2*u - 1) * scale
	}
	return normal() * scale
}

// encode is f as stored, rounded to nearest.
func encode(t kernels.DType, f float32) uint32 {
	switch t {
	case kernels.F32:
		return math.Float32bits(f)
	case kernels.F16:
		return uint32(kernels.F32ToF16(f))
	case kernels.BF16:
		return uint32(kernels.F32ToBF16(f))
	case kernels.F8E4M3:
		return uint32(kernels.F32ToF8E4M3(f))
	}
	half := kernels.F32ToF16(f) // e5m2 is the upper byte of a half
	return uint32((half + 0x7f + half>>8&1) >> 8)
}

// fill writes the values of the groups whose first state is given; the last group may be cut.
func (t *table) fill(dst []byte, size int, state uint64) {
	group := groupSize * size
	whole := len(dst) / group * group
	switch size {
	case 1:
		t.fill1(dst[:whole], state)
	case 2:
		t.fill2(dst[:whole], state)
	case 4:
		t.fill4(dst[:whole], state)
	}
	if whole < len(dst) {
		var last [groupSize * 4]byte
		t.fill(last[:group], size, state+uint64(whole/group)*weyl)
		copy(dst[whole:], last[:])
	}
}

func (t *table) fill1(dst []byte, state uint64) {
	for ; len(dst) >= 4; dst = dst[4:] {
		r := mix(state)
		state += weyl
		binary.LittleEndian.PutUint32(dst, t[r>>52]|t[r>>40&0xfff]<<8|t[r>>28&0xfff]<<16|t[r>>16&0xfff]<<24)
	}
}

func (t *table) fill2(dst []byte, state uint64) {
	for ; len(dst) >= 8; dst = dst[8:] {
		r := mix(state)
		state += weyl
		binary.LittleEndian.PutUint64(dst, uint64(t[r>>52])|uint64(t[r>>40&0xfff])<<16|uint64(t[r>>28&0xfff])<<32|uint64(t[r>>16&0xfff])<<48)
	}
}

func (t *table) fill4(dst []byte, state uint64) {
	for ; len(dst) >= 16; dst = dst[16:] {
		r := mix(state)
		state += weyl
		binary.LittleEndian.PutUint64(dst, uint64(t[r>>52])|uint64(t[r>>40&0xfff])<<32)
		binary.LittleEndian.PutUint64(dst[8:], uint64(t[r>>28&0xfff])|uint64(t[r>>16&0xfff])<<32)
	}
}
