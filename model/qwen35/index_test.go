package qwen35

import (
	"compress/gzip"
	"encoding/json"
	"os"
	"testing"

	"reprise/kernels"
	"reprise/layers"
)

// hollow is a real checkpoint's names, of which every tensor is zero and matrices have no memory.
type hollow struct {
	names map[string]string
	read  map[string]bool
}

func (h hollow) Has(name string) bool { return h.names[name] != "" }

func (h hollow) Get(name string, shape ...int) (kernels.HostTensor, error) {
	h.read[name] = h.Has(name)
	t := kernels.HostTensor{Name: name, DType: kernels.BF16, Shape: shape}
	if n := 2 * t.Elements(); n <= 1<<20 {
		t.Data = make([]byte, n)
	}
	return t, nil
}

// shapes is a device that packs nothing and runs nothing.
type shapes struct{ kernels.Device }

type weight struct{ kernels.Weight }

func (weight) Bytes() int64                                    { return 0 }
func (shapes) Pack(kernels.WeightSpec) (kernels.Weight, error) { return weight{}, nil }
func (shapes) Alloc(n int64) (kernels.Buffer, error)           { return kernels.Buffer{Size: n}, nil }
func (shapes) Submit(kernels.Program)                          {}
func (shapes) Mark() kernels.Ticket                            { return 0 }
func (shapes) Wait(kernels.Ticket) error                       { return nil }

// A published index of 22,213 tensors (single experts, saved without MTP) is read whole, and nothing else is.
func TestPublishedIndex(t *testing.T) {
	f, err := os.Open("testdata/qwen3.5-25b-reap.index.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var index struct {
		Names map[string]string `json:"weight_map"`
	}
	if err := json.NewDecoder(must(gzip.NewReader(f))).Decode(&index); err != nil {
		t.Fatal(err)
	}
	source := hollow{index.Names, map[string]bool{}}
	l := layers.NewLoader(shapes{}, source)
	m := parseFile(t, "qwen3.5-25b-reap").read(l)
	if err := l.Err(); err != nil {
		t.Fatal(err)
	}
	if m.MTP() != nil {
		t.Error("there is no MTP head")
	}
	for name, there := range source.read {
		if !there {
			t.Errorf("%s was read but is not there", name)
		}
	}
	if len(source.read) != len(index.Names) || len(index.Names) != 22213 {
		t.Errorf("%d of %d tensors were read", len(source.read), len(index.Names))
	}
}
