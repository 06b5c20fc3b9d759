package cpu

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync/atomic"
)

// task is divisible work: do is called once for every i in [0, n), by any worker, in any order and concurrently.
// worker is 0..size-1 and names the scratch memory that this call owns. A task that is part of a preallocated
// struct makes parallel free of allocations.
type task interface{ do(i, worker int) }

// pool runs tasks on a fixed set of goroutines. Worker 0 is whoever calls parallel; calls do not nest and come from
// one goroutine at a time.
type pool struct {
	helpers []*helper

	// gate is the door to the current task: bit 0 open, bits 1..31 helpers inside, bits 32..63 number of the task.
	// Work handed out is finished when the door is shut and nobody is inside, so a helper that wakes too late is
	// not waited for.
	gate  atomic.Uint64
	left  signal // the last helper left after the door was shut
	task  task
	count int64
	next  atomic.Int64

	failure atomic.Pointer[workerPanic]
	closing atomic.Bool
}

const (
	gateOpen   = 1
	gateInside = 2
	gateTask   = 1 << 32
)

// workerPanic carries a panic of a helper to the caller of parallel.
type workerPanic struct {
	cause any
	stack string
}

func (w *workerPanic) Error() string { return fmt.Sprint(w.cause) }

type helper struct {
	pool   *pool
	worker int
	seen   uint64 // number of the last task looked at
	wake   signal
	ended  chan struct{}
}

func newPool(workers int) *pool {
	p := &pool{left: newSignal()}
	for w := 1; w < workers; w++ {
		h := &helper{pool: p, worker: w, wake: newSignal(), ended: make(chan struct{})}
		p.helpers = append(p.helpers, h)
		go h.loop()
	}
	return p
}

// size is the number of workers.
func (p *pool) size() int { return len(p.helpers) + 1 }

func (p *pool) close() {
	p.closing.Store(true)
	for _, h := range p.helpers {
		h.wake.notify()
		<-h.ended
	}
}

// parallel calls t.do for i in [0, n) and returns when all calls have. A panic of any of them is raised here.
func (p *pool) parallel(n int, t task) {
	if n <= 1 || len(p.helpers) == 0 {
		for i := range n {
			t.do(i, 0)
		}
		return
	}
	p.open(n, t)
	defer p.shut()
	p.work(0)
}

func (p *pool) open(n int, t task) {
	p.task, p.count = t, int64(n)
	p.next.Store(0)
	p.gate.Store(p.gate.Load()&^(gateTask-1) + gateTask + gateOpen)
	for i, h := range p.helpers {
		if i+1 < n {
			h.wake.notify()
		}
	}
}

// shut waits for the helpers inside. When the caller is panicking that panic goes on; else a helper's is raised.
func (p *pool) shut() {
	cause := recover()
	if cause != nil {
		p.next.Store(p.count)
	}
	p.gate.And(^uint64(gateOpen))
	p.left.wait(p.empty)
	p.task = nil
	failure := p.failure.Swap(nil)
	if cause != nil {
		panic(cause)
	}
	if failure != nil {
		panic(failure)
	}
}

func (p *pool) empty() bool { return p.gate.Load()&(gateTask-1) == 0 }

func (p *pool) work(worker int) {
	for {
		i := p.next.Add(1) - 1
		if i >= p.count {
			return
		}
		p.task.do(int(i), worker)
	}
}

func (h *helper) loop() {
	defer close(h.ended)
	for {
		h.wake.wait(h.hasNews)
		if h.pool.closing.Load() {
			return
		}
		if h.enter() {
			h.help()
		}
	}
}

func (h *helper) hasNews() bool {
	g := h.pool.gate.Load()
	return g/gateTask != h.seen && g&gateOpen != 0 || h.pool.closing.Load()
}

// enter goes through the door unless it is shut or the task was done before.
func (h *helper) enter() bool {
	for {
		g := h.pool.gate.Load()
		if g&gateOpen == 0 {
			return false
		}
		if h.pool.gate.CompareAndSwap(g, g+gateInside) {
			h.seen = g / gateTask
			return true
		}
	}
}

func (h *helper) help() {
	p := h.pool
	defer func() {
		if cause := recover(); cause != nil {
			p.failure.CompareAndSwap(nil, &workerPanic{cause, string(debug.Stack())})
			p.next.Store(p.count)
		}
		if p.gate.Add(^uint64(gateInside-1))&(gateTask-1) == 0 {
			p.left.notify()
		}
	}()
	p.work(h.worker)
}

// signal lets one goroutine wait for a condition that others make true before they notify. It looks at the condition
// for some microseconds before it parks, since operations follow each other closely.
type signal struct {
	parked *atomic.Bool
	token  chan struct{}
}

func newSignal() signal { return signal{new(atomic.Bool), make(chan struct{}, 1)} }

const (
	spinRounds = 40  // looks before parking, a yield between two
	spinChecks = 100 // loads a look
)

func (s signal) wait(ready func() bool) {
	for range spinRounds {
		for range spinChecks {
			if ready() {
				return
			}
		}
		runtime.Gosched()
	}
	for !ready() {
		s.parked.Store(true)
		if ready() && s.parked.CompareAndSwap(true, false) {
			return
		}
		<-s.token
	}
}

func (s signal) notify() {
	if s.parked.CompareAndSwap(true, false) {
		s.token <- struct{}{}
	}
}
