package ledger

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestArenaRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for range 100 {
		limit := int64(64 + rng.IntN(4000))
		grown := int64(0)
		a := NewArena(limit, int64(1+rng.IntN(1000)), func(n int64) error { grown += n; return nil })
		var owned []Extent
		for range 400 {
			if n := len(owned); n > 0 && rng.IntN(2) == 0 {
				i := rng.IntN(n)
				a.Free(owned[i])
				owned = slices.Delete(owned, i, i+1)
			} else if e, err := a.Alloc(int64(rng.IntN(300))); err == nil {
				owned = append(owned, e)
			} else if !errors.Is(err, ErrHostMemory) {
				t.Fatal(err)
			}
			if err := a.Check(owned); err != nil {
				t.Fatal(err)
			}
			if grown > limit {
				t.Fatalf("grown to %d, limit %d", grown, limit)
			}
		}
		for _, e := range owned {
			a.Free(e)
		}
		if err := a.Check(nil); err != nil || a.Used() != 0 || len(a.free) > len(a.sizes) {
			t.Fatalf("at the end: %v, %d used, free %v", err, a.Used(), a.free)
		}
	}
}

func TestArenaReportsTheDevice(t *testing.T) {
	broken := errors.New("no pinned memory")
	a := NewArena(1<<20, 1<<10, func(int64) error { return broken })
	if _, err := a.Alloc(10); !errors.Is(err, broken) || !errors.Is(err, ErrHostMemory) {
		t.Errorf("got %v", err)
	}
	if err := a.Check(nil); err != nil {
		t.Error(err)
	}
}

func TestArenaCheckFindsDamage(t *testing.T) {
	a := NewArena(1<<10, 256, func(int64) error { return nil })
	e, _ := a.Alloc(64)
	f, _ := a.Alloc(64)
	for name, owned := range map[string][]Extent{"leak": {e}, "nothing": nil, "twice": {e, f, f}, "foreign": {e, f, {Chunk: 3, Size: 64}}, "longer": {e, {f.Chunk, f.Offset, 128}}} {
		if a.Check(owned) == nil {
			t.Errorf("%s: not found", name)
		}
	}
	if err := a.Check([]Extent{f, e}); err != nil {
		t.Error(err)
	}
}
