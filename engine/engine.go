// Package engine runs requests on a model: their life cycle, the step loop, and the plan of memory.
//
// One goroutine owns everything that changes: scheduler, states, lanes. Requests reach it through a channel, updates leave
// it through Sequence without locks. The device works one step ahead of what the host has read.
//
// Not here: which request runs when (engine/sched), who owns which memory (engine/states), text, stop strings and HTTP
// (server), mathematics (model, kernels).
package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"reprise/attention"
	"reprise/engine/sched"
	"reprise/engine/states"
	"reprise/kernels"
	"reprise/model"
	"reprise/sampler"
	"reprise/spec"
	"reprise/ssm"
)

// Engine generates. Its exported methods may be called from any goroutine.
type Engine struct {
	dev     kernels.Device
	model   model.Model
	spec    model.Spec
	options Options
	plan    *Plan
	limits  Limits
	log     *slog.Logger

	// Owned by the loop's goroutine.
	sched      *sched.Scheduler
	states     *states.States
	ssm        *ssm.Pool
	kv         *attention.Pool
	tables     *sampler.Tables
	drafter    spec.Drafter // nil for plain decoding
	control    *spec.Depth
	depth      int            // drafts to propose in the next step
	tosses     int            // steps whose drafts a coin accepts
	records    []*spec.Record // of the sequences of the last step
	collected  time.Time      // when a step was collected last
	pace       pace           // prompt tokens beside running requests
	shared     *shared
	lanes      [2]*lane
	graphs     graphs
	next       int // lane of the next step
	seqs       map[sched.ID]*seq
	needs      []states.Need
	cursorHost []byte

	omit *omitting // operations to capture with; nil = all

	incoming  chan *seq
	tasks     chan func() // to run between steps
	wake      chan struct{}
	nextID    atomic.Int64
	queued    atomic.Int64 // submitted and not yet running
	closing   atomic.Bool
	aborted   atomic.Bool
	cancelled atomic.Bool  // some sequence was cancelled since the last look
	gate      sync.RWMutex // Submit against Close
	done      chan struct{}
	stats     stats
	fatal     atomic.Pointer[error]
	began     atomic.Int64 // when this turn of the loop began, behind made; 0 while it rests
	made      time.Time
}

// New makes an engine for a loaded model and starts its loop. The device and the model's weights are the caller's to
// close, after Close.
func New(dev kernels.Device, m model.Model, spec model.Spec, p *Plan, o Options) (*Engine, error) {
	e, err := build(dev, m, spec, p, o)
	if err != nil {
		return nil, err
	}
	if err := e.capture(e.geometry()); err != nil {
		return nil, err
	}
	go e.loop()
	return e, nil
}

// build makes an engine whose loop does not run yet, and whose steps are not captured.
func build(dev kernels.Device, m model.Model, spec model.Spec, p *Plan, o Options) (*Engine, error) {
	o = o.withDefaults(dev, spec.Vocab)
	e := &Engine{
		dev: dev, model: m, spec: spec, options: o, plan: p, log: o.Log,
		limits:   Limits{Vocab: spec.Vocab, MaxLen: p.MaxLen, MaxLogProbs: o.MaxLogProbs, EOS: union(spec.EOS, o.EOS), Declared: o.Declared},
		seqs:     make(map[sched.ID]*seq),
		incoming: make(chan *seq, o.MaxQueue),
		tasks:    make(chan func(), 1),
		wake:     make(chan struct{}, 1),
		done:     make(chan struct{}),
		made:     time.Now(),
	}
	if err := e.allocate(); err != nil {
		return nil, err
	}
	return e, nil
}

// allocate makes pools, tables and lanes as planned.
func (e *Engine) allocate() error {
	p := e.plan
	var err error
	if e.ssm, err = ssm.NewPool(e.dev, p.SSM); err != nil {
		return err
	}
	if e.kv, err = attention.NewPool(e.dev, p.KV); err != nil {
		return err
	}
	if e.options.Declared {
		if err := e.kv.Noise(e.dev); err != nil {
			return err
		}
	}
	if e.tables, err = sampler.New(e.dev, p.Sampler, e.spec.Hidden, e.dev.Activations()); err != nil {
		return err
	}
	if e.drafter, err = e.newDrafter(); err != nil {
		return err
	}
	c := states.Config{Blocks: p.SSM.Blocks, Scratch: p.SSM.Scratch, HostBytes: e.options.SwapBytes}
	if e.drafter != nil {
		c.Extra, e.control = drafts{e.tables, e.drafter}, spec.NewDepth(e.options.Drafts, e.options.FixedDepth)
	}
	if e.states, err = states.New(c, e.dev, e.ssm, e.kv); err != nil {
		return err
	}
	e.sched, err = sched.New(sched.Config{MaxSeqs: p.MaxSeqs, MaxTokens: p.MaxTokens, MaxLen: p.MaxLen})
	if err != nil {
		return err
	}
	e.pace = pace{ratio: e.options.StepRatio, least: leastPace}
	if e.dev.Activations() == kernels.F32 {
		e.pace.least = leastPaceCPU
	}
	if e.cursorHost, err = e.dev.AllocHost(ssm.CursorBytes); err != nil {
		return err
	}
	g := e.geometry()
	if e.shared, err = newShared(e.dev, g); err != nil {
		return err
	}
	for i := range e.lanes {
		if e.lanes[i], err = newLane(e.dev, g, e.shared); err != nil {
			return fmt.Errorf("step buffers: %w", err)
		}
		e.prepareLane(e.lanes[i])
	}
	return nil
}

func (e *Engine) geometry() geometry {
	p := e.plan
	g := geometry{seqs: p.rows(), tokens: p.MaxTokens, rows: p.MaxTokens, top: p.Sampler.MaxTop}
	if e.options.Synthetic != nil {
		g.coins = g.rows
	}
	return g
}

func union(a, b []int32) []int32 {
	out := append([]int32(nil), a...)
	for _, id := range b {
		found := false
		for _, have := range out {
			found = found || have == id
		}
		if !found {
			out = append(out, id)
		}
	}
	return out
}

// Limits are what requests may ask for.
func (e *Engine) Limits() Limits { return e.limits }

// Plan is where the memory went.
func (e *Engine) Plan() *Plan { return e.plan }

// Spec is the model's.
func (e *Engine) Spec() model.Spec { return e.spec }

// Submit queues a request. Errors: *FieldError, ErrQueueFull, ErrClosed, or the fault that ended the engine.
func (e *Engine) Submit(r Request) (*Sequence, error) {
	if err := r.validate(e.limits); err != nil {
		return nil, err
	}
	e.gate.RLock()
	defer e.gate.RUnlock()
	if f := e.fatal.Load(); f != nil {
		return nil, *f
	}
	if e.closing.Load() {
		return nil, ErrClosed
	}
	if e.queued.Add(1) > int64(e.options.MaxQueue) {
		e.queued.Add(-1)
		return nil, ErrQueueFull
	}
	s := &Sequence{id: e.nextID.Add(1), engine: e, ready: make(chan struct{}, 1)}
	e.incoming <- newSeq(s, r, e.limits) // never blocks: the channel holds MaxQueue
	e.wakeUp()
	return s, nil
}

func (e *Engine) wakeUp() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Close refuses new requests, lets the submitted ones finish, and stops the loop. It is an error if some slot, block or page
// did not come back.
func (e *Engine) Close() error {
	e.gate.Lock()
	e.closing.Store(true)
	e.gate.Unlock()
	e.wakeUp()
	<-e.done
	if f := e.fatal.Load(); f != nil {
		return *f
	}
	return e.states.Idle()
}

// Abort cancels everything that was submitted; Close then returns soon.
func (e *Engine) Abort() {
	e.aborted.Store(true)
	e.cancelled.Store(true)
	e.wakeUp()
}

// Err is the fault that ended the engine, or that its device hangs, or nil. A device that hangs does not let the loop end:
// neither does Close return.
func (e *Engine) Err() error {
	if f := e.fatal.Load(); f != nil {
		return *f
	}
	limit, began := e.options.StepTimeout, e.began.Load()
	if took := time.Since(e.made) - time.Duration(began); limit > 0 && began > 0 && took > limit {
		return fmt.Errorf("the device hangs: a step has taken %s and is not done", took.Round(time.Second/10))
	}
	return nil
}

// loop runs until Close, or until the device is beyond use.
func (e *Engine) loop() {
	defer close(e.done)
	for e.turn() {
	}
	e.began.Store(0)
}

// turn launches a step, if there is one, and collects the one before it. It reports whether the loop goes on.
func (e *Engine) turn() bool {
	e.began.Store(int64(time.Since(e.made)))
	e.takeIncoming()
	e.takeCancelled()
	launched := e.launch()
	if previous := e.lanes[e.next]; previous.busy { // the lane not used last
		e.collect(previous)
	} else if !launched {
		if last := e.lanes[1-e.next]; last.busy {
			e.collect(last)
		} else if !e.rest() {
			return false
		}
	}
	if e.fatal.Load() != nil {
		e.failAll()
		return false
	}
	return true
}

// rest waits for work with nothing in flight; false when the engine shall end.
func (e *Engine) rest() bool {
	e.publishStats()
	if len(e.seqs) > 0 {
		return true // cancelled or failed while planning; plan again
	}
	if e.closing.Load() && len(e.incoming) == 0 {
		return false
	}
	e.began.Store(0)
	<-e.wake
	return true
}

func (e *Engine) takeIncoming() {
	for {
		select {
		case q := <-e.incoming:
			e.accept(q)
		case f := <-e.tasks:
			f()
		default:
			return
		}
	}
}

// accept hands a request to the scheduler, or fails it if it can never run.
func (e *Engine) accept(q *seq) {
	e.seqs[q.id] = q
	e.stats.promptTokens.Add(int64(len(q.request.Prompt)))
	if err := e.states.Fits(q.limit); err != nil {
		e.fail(q, &FieldError{"prompt", err.Error()})
		return
	}
	if err := e.sched.Add(q.schedule(e.options.Drafts)); err != nil {
		e.fail(q, err)
	}
}

// takeCancelled ends what its reader has given up.
func (e *Engine) takeCancelled() {
	if !e.cancelled.Swap(false) {
		return
	}
	all := e.aborted.Load()
	for _, q := range e.seqs {
		if all || q.cancelled.Load() {
			u := q.update()
			u.Reason = Aborted
			e.end(q, u)
		}
	}
}

// end publishes the last update of a sequence and takes back what it held.
func (e *Engine) end(q *seq, u *Update) {
	if !q.running {
		e.queued.Add(-1)
	}
	q.ended = true
	e.sched.Remove(q.id)
	e.states.Release(q.id)
	delete(e.seqs, q.id)
	e.stats.finished(u)
	q.publish(u)
}

func (e *Engine) fail(q *seq, err error) {
	u := q.update()
	u.Err = err
	e.end(q, u)
}

func (e *Engine) failAll() {
	e.gate.Lock() // no Submit is half way
	defer e.gate.Unlock()
	e.closing.Store(true)
	e.takeIncoming()
	err := e.Err()
	for _, q := range e.seqs {
		e.fail(q, err)
	}
}

// fault handles an error of Wait: the sequences of the step fail, the engine goes on unless the device cannot.
func (e *Engine) fault(l *lane, err error) {
	e.log.Error("step failed", "error", err)
	var f *kernels.Fault
	if !errors.As(err, &f) || f.Sticky {
		err = fmt.Errorf("the device failed: %w", err)
		e.fatal.Store(&err)
		return
	}
	for _, rows := range [...][]row{l.steps, l.prefills} {
		for i := range rows {
			if q := rows[i].seq; !q.ended {
				e.fail(q, fmt.Errorf("%w: %v", ErrFault, err))
			}
		}
	}
}
