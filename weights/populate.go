package weights

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// populateChunk is the unit of reading: large enough for a disk, small enough for progress.
const populateChunk = 8 << 20

// Populate makes the mapped pages of all tensors handed out so far resident, so that no later read waits for the
// disk; tensors that nobody asked for are left alone. progress, if not nil, is called with bytes done and in total
// from one goroutine at a time. It returns an error where a file became shorter or unreadable.
func (c *Checkpoint) Populate(progress func(done, total int64)) error {
	chunks, total := c.usedChunks()
	p := populator{total: total, progress: progress}
	var workers sync.WaitGroup
	for range min(len(chunks), 2*runtime.GOMAXPROCS(0)) { // they wait for the disk more than they compute
		workers.Go(func() { p.work(chunks) })
	}
	workers.Wait()
	return p.err
}

// chunk is a page-aligned part of a mapped file.
type chunk struct {
	file  string
	pages []byte
}

// usedChunks cuts the pages under used tensors of mapped files into chunks, in file order.
func (c *Checkpoint) usedChunks() (chunks []chunk, total int64) {
	for _, r := range c.regions {
		if !r.mapped {
			continue
		}
		for _, span := range c.usedSpans(r) {
			for at := span.begin; at < span.end; at += populateChunk {
				part := r.data[at:min(at+populateChunk, span.end)]
				chunks = append(chunks, chunk{r.file, part})
				total += int64(len(part))
			}
		}
	}
	return chunks, total
}

// span is a range of bytes of a region.
type span struct{ begin, end int }

// usedSpans are the page-aligned ranges of r that used tensors touch, merged.
func (c *Checkpoint) usedSpans(r *region) []span {
	page := pageSize()
	var spans []span
	for _, t := range c.tensors {
		if t.used.Load() && t.region == r && len(t.data) > 0 {
			begin := int(uintptr(unsafe.Pointer(&t.data[0])) - uintptr(unsafe.Pointer(&r.data[0])))
			end := (begin + len(t.data) + page - 1) / page * page
			spans = append(spans, span{begin / page * page, min(end, len(r.data))})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return a.begin - b.begin })
	var merged []span
	for _, s := range spans {
		if last := len(merged) - 1; last >= 0 && s.begin <= merged[last].end {
			merged[last].end = max(merged[last].end, s.end)
		} else {
			merged = append(merged, s)
		}
	}
	return merged
}

// populator is one call of Populate.
type populator struct {
	next     atomic.Int64 // index of the next chunk
	mu       sync.Mutex   // guards what follows
	done     int64
	total    int64
	progress func(done, total int64)
	err      error
}

func (p *populator) work(chunks []chunk) {
	for {
		i := int(p.next.Add(1) - 1)
		if i >= len(chunks) {
			return
		}
		if !p.report(chunks[i], populate(chunks[i])) {
			return
		}
	}
}

// report notes a finished chunk; it answers whether to go on.
func (p *populator) report(c chunk, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil && p.err == nil {
		p.err = err
	}
	p.done += int64(len(c.pages))
	if p.progress != nil && p.err == nil {
		p.progress(p.done, p.total)
	}
	return p.err == nil
}

func populate(c chunk) (err error) {
	if prefault(c.pages) {
		return nil
	}
	return touch(c)
}

// touch reads a byte of every page. Where the file has no such page any more the fault becomes an error.
func touch(c chunk) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("%s: cannot be read to its end; was it changed? (%v)", c.file, fault)
		}
	}()
	sum := byte(0)
	for i := 0; i < len(c.pages); i += pageSize() {
		sum ^= c.pages[i]
	}
	runtime.KeepAlive(sum)
	return nil
}
