package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// ErrHostMemory is returned when the limit of host memory for images is reached.
var ErrHostMemory = errors.New("host memory for swapped-out state is used up")

// extentUnit is what sizes are rounded to.
const extentUnit = 64

// Extent is a piece of host memory: Size bytes from Offset of a chunk.
type Extent struct {
	Chunk        int
	Offset, Size int64
}

func (e Extent) end() int64 { return e.Offset + e.Size }

// Arena deals out pieces of host memory, first fit. It grows by chunks as needed up to a limit and never shrinks, since
// pinned memory is slow to get.
type Arena struct {
	limit, chunk int64
	grow         func(bytes int64) error // get chunk number len(sizes)
	sizes        []int64
	free         []Extent // in order, none touching
	total, used  int64
}

// NewArena makes an empty arena of at most limit bytes that asks grow for chunks of at least chunk bytes.
func NewArena(limit, chunk int64, grow func(int64) error) *Arena {
	return &Arena{limit: limit, chunk: chunk, grow: grow}
}

// Used is the bytes given out.
func (a *Arena) Used() int64 { return a.used }

// Alloc gives out n bytes. The error wraps ErrHostMemory when the limit is reached.
func (a *Arena) Alloc(n int64) (Extent, error) {
	n = max(extentUnit, (n+extentUnit-1)/extentUnit*extentUnit)
	i := a.find(n)
	if i < 0 {
		if err := a.expand(n); err != nil {
			return Extent{}, err
		}
		i = a.find(n)
	}
	f := &a.free[i]
	e := Extent{f.Chunk, f.Offset, n}
	f.Offset += n
	f.Size -= n
	if f.Size == 0 {
		a.free = slices.Delete(a.free, i, i+1)
	}
	a.used += n
	return e, nil
}

func (a *Arena) find(n int64) int {
	return slices.IndexFunc(a.free, func(f Extent) bool { return f.Size >= n })
}

func (a *Arena) expand(n int64) error {
	size := min(max(n, a.chunk), a.limit-a.total) / extentUnit * extentUnit
	if size < n {
		return fmt.Errorf("%w: %d bytes wanted, %d of %d in use", ErrHostMemory, n, a.used, a.limit)
	}
	if err := a.grow(size); err != nil {
		return fmt.Errorf("%w: %w", ErrHostMemory, err)
	}
	a.sizes = append(a.sizes, size)
	a.total += size
	a.free = append(a.free, Extent{len(a.sizes) - 1, 0, size})
	return nil
}

// Free takes an extent of Alloc back.
func (a *Arena) Free(e Extent) {
	i, _ := slices.BinarySearchFunc(a.free, e, compare)
	if i > 0 && touches(a.free[i-1], e) {
		i--
		a.free[i].Size += e.Size
	} else {
		a.free = slices.Insert(a.free, i, e)
	}
	if i+1 < len(a.free) && touches(a.free[i], a.free[i+1]) {
		a.free[i].Size += a.free[i+1].Size
		a.free = slices.Delete(a.free, i+1, i+2)
	}
	a.used -= e.Size
}

func compare(a, b Extent) int {
	return cmp.Or(cmp.Compare(a.Chunk, b.Chunk), cmp.Compare(a.Offset, b.Offset))
}

func touches(a, b Extent) bool { return a.Chunk == b.Chunk && a.end() == b.Offset }

// Check proves that the free extents and the owned ones together are all memory, once.
func (a *Arena) Check(owned []Extent) error {
	all := append(slices.Clone(a.free), owned...)
	slices.SortFunc(all, compare)
	chunk, at, used := 0, int64(0), int64(0)
	for _, e := range all {
		if e.Chunk != chunk {
			if chunk >= len(a.sizes) || at != a.sizes[chunk] {
				return fmt.Errorf("arena: chunk %d ends at %d", chunk, at)
			}
			chunk, at = chunk+1, 0
		}
		if e.Chunk != chunk || e.Offset != at || e.Size <= 0 {
			return fmt.Errorf("arena: extent %+v where byte %d of chunk %d was due", e, at, chunk)
		}
		at = e.end()
	}
	for _, e := range owned {
		used += e.Size
	}
	if len(all) > 0 && (chunk != len(a.sizes)-1 || at != a.sizes[chunk]) || len(all) == 0 && len(a.sizes) > 0 || used != a.used {
		return fmt.Errorf("arena: %d of %d chunks, last to %d; %d bytes owned, %d in use", chunk+1, len(a.sizes), at, used, a.used)
	}
	return nil
}
