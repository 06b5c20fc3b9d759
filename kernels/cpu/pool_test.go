package cpu

import (
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

type countTask struct {
	hits    []atomic.Int32
	workers []atomic.Int32
	panicAt int
}

func (c *countTask) do(i, worker int) {
	if i == c.panicAt {
		panic("index of doom")
	}
	c.hits[i].Add(1)
	c.workers[worker].Add(1)
}

func TestPoolCallsEachIndexOnce(t *testing.T) {
	for _, workers := range []int{1, 2, 3, 8} {
		p := newPool(workers)
		for round := range 2000 {
			n := round % 17
			c := &countTask{hits: make([]atomic.Int32, n), workers: make([]atomic.Int32, workers), panicAt: -1}
			p.parallel(n, c)
			for i := range c.hits {
				if got := c.hits[i].Load(); got != 1 {
					t.Fatalf("%d workers: index %d of %d called %d times", workers, i, n, got)
				}
			}
		}
		p.close()
	}
}

func TestPoolCarriesPanics(t *testing.T) {
	p := newPool(3)
	defer p.close()
	for at := range 50 {
		c := &countTask{hits: make([]atomic.Int32, 50), workers: make([]atomic.Int32, 3), panicAt: at}
		func() {
			defer func() {
				cause := recover()
				if w, ok := cause.(*workerPanic); ok {
					if !strings.Contains(w.stack, "countTask") {
						t.Errorf("stack does not name the task:\n%s", w.stack)
					}
					cause = w.cause
				}
				if cause != "index of doom" {
					t.Errorf("panic at %d: recovered %v", at, cause)
				}
			}()
			p.parallel(50, c)
		}()
	}
	c := &countTask{hits: make([]atomic.Int32, 9), workers: make([]atomic.Int32, 3), panicAt: -1}
	p.parallel(9, c)
	for i := range c.hits {
		if c.hits[i].Load() != 1 {
			t.Errorf("after a panic: index %d called %d times", i, c.hits[i].Load())
		}
	}
}

func TestPoolParksAndWakes(t *testing.T) {
	p := newPool(2)
	defer p.close()
	for range 20 {
		c := &countTask{hits: make([]atomic.Int32, 4), workers: make([]atomic.Int32, 2), panicAt: -1}
		p.parallel(4, c)
		time.Sleep(time.Millisecond)
	}
}

func TestPoolDoesNotAllocate(t *testing.T) {
	p := newPool(2)
	defer p.close()
	c := &countTask{hits: make([]atomic.Int32, 64), workers: make([]atomic.Int32, 2), panicAt: -1}
	if n := testing.AllocsPerRun(100, func() { p.parallel(64, c) }); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}

func TestPoolEndsItsGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	newPool(8).close()
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("%d goroutines before, %d after", before, runtime.NumGoroutine())
}

func BenchmarkParallel(b *testing.B) {
	p := newPool(runtime.GOMAXPROCS(0))
	defer p.close()
	c := &countTask{hits: make([]atomic.Int32, 8), workers: make([]atomic.Int32, p.size()), panicAt: -1}
	for b.Loop() {
		p.parallel(8, c)
	}
}
