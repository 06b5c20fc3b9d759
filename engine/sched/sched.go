package sched

import (
	"fmt"
	"slices"
)

// request is the scheduler's view of a request. Between low and high tokens are in its state once everything in flight
// is done; they differ only by drafts in flight.
type request struct {
	id        ID
	seq       int64 // order of arrival, from 1
	prompt    int
	limit     int
	drafts    int
	low, high int
	flying    int // rows in flight
	where     place
	swapped   bool // preempted, and its state is kept in host memory
}

type place uint8

const (
	waiting place = iota
	preempted
	running
)

func (r *request) prefilling() bool { return r.high < r.prompt }

// full reports whether the sequence surely has all its tokens, so that only the results in flight are missing.
func (r *request) full() bool { return !r.prefilling() && r.low+1 >= r.limit }

// Scheduler plans steps. Not safe for concurrent use.
type Scheduler struct {
	config   Config
	requests map[ID]*request
	queues   [3][]*request // by place; running and preempted in order of seq
	arrivals int64
	flying   int // rows in flight of known requests
	turn     int64
	paused   bool // no admissions until a running request leaves
	relief   relief
}

// relief is what the next plan gives up; any change of state ends it.
type relief struct {
	noDrafts   bool
	admissions int // at most; -1 = no limit
}

var noRelief = relief{admissions: -1}

// New makes a scheduler without requests.
func New(c Config) (*Scheduler, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.MaxChunk == 0 {
		c.MaxChunk = c.MaxTokens
	}
	return &Scheduler{config: c, requests: make(map[ID]*request), relief: noRelief}, nil
}

// Add queues a request behind all others. The error wraps ErrRequest. Whether the device's memory can ever hold it is
// for states.Fits to say before.
func (s *Scheduler) Add(q Request) error {
	if q.Limit == 0 {
		q.Limit = s.config.MaxLen
	}
	if err := q.check(s.config); err != nil {
		return err
	}
	if s.requests[q.ID] != nil {
		return fmt.Errorf("%w: id %d is in use", ErrRequest, q.ID)
	}
	s.arrivals++
	r := &request{id: q.ID, seq: s.arrivals, prompt: q.Prompt, limit: q.Limit, drafts: q.Drafts, low: q.Computed, high: q.Computed}
	s.requests[q.ID] = r
	s.queues[waiting] = append(s.queues[waiting], r)
	return nil
}

// Remove forgets a request, whatever its state, and reports whether it was known. Its rows in flight are ignored later.
func (s *Scheduler) Remove(id ID) bool {
	r := s.requests[id]
	if r == nil {
		return false
	}
	delete(s.requests, id)
	s.flying -= r.flying
	if r.where == running {
		s.paused = false
	}
	s.unlink(r)
	s.relief = noRelief
	return true
}

func (s *Scheduler) unlink(r *request) {
	q := s.queues[r.where]
	i := slices.Index(q, r)
	s.queues[r.where] = slices.Delete(q, i, i+1)
}

// SetDrafts changes how many drafts a step of the request may have from the next plan on.
func (s *Scheduler) SetDrafts(id ID, n int) {
	if r := s.requests[id]; r != nil {
		r.drafts = max(n, 0)
	}
}

// SetMixedPrefill changes Config.MixedPrefill from the next plan on; negative = no prompt tokens beside step rows. Whoever
// says so for ever lets prompts starve.
func (s *Scheduler) SetMixedPrefill(n int) { s.config.MixedPrefill = n }

// Commit says that p, the plan scheduled last, is launched.
func (s *Scheduler) Commit(p *Plan) {
	for _, a := range p.Admitted {
		s.admit(s.mustFind(a.ID))
	}
	for i := range p.Steps {
		r := s.launch(p.Steps[i].ID)
		r.low++
		r.high += p.Steps[i].N
	}
	for i := range p.Prefills {
		r := s.launch(p.Prefills[i].ID)
		r.low += p.Prefills[i].N
		r.high += p.Prefills[i].N
	}
	s.turn = p.next
	s.relief = noRelief
}

func (s *Scheduler) mustFind(id ID) *request {
	r := s.requests[id]
	if r == nil {
		panic(fmt.Sprintf("sched: the plan names request %d, which is not known: plans are committed before anything else changes", id))
	}
	return r
}

func (s *Scheduler) admit(r *request) {
	s.unlink(r)
	r.where, r.swapped = running, false
	s.queues[running] = append(s.queues[running], r)
}

func (s *Scheduler) launch(id ID) *request {
	r := s.mustFind(id)
	r.flying++
	s.flying++
	return r
}

// Applied reports the results of a committed plan, in the order of commits. accepted has one entry for each step row,
// then one for each prefill row (ignored), as kernels.Commit writes them. Rows of removed requests are ignored.
func (s *Scheduler) Applied(p *Plan, accepted []int32) {
	for i := range p.Steps {
		r := s.land(p.Steps[i].ID)
		if r == nil {
			continue
		}
		a := int(accepted[i])
		r.low += a - 1
		r.high -= p.Steps[i].N - a
	}
	for i := range p.Prefills {
		s.land(p.Prefills[i].ID)
	}
	s.relief = noRelief
}

func (s *Scheduler) land(id ID) *request {
	r := s.requests[id]
	if r == nil {
		return nil
	}
	if r.flying == 0 {
		panic(fmt.Sprintf("sched: results for request %d, which has nothing in flight", id))
	}
	r.flying--
	s.flying--
	return r
}

// Relieve says what to do when memory cannot take p, the plan scheduled last; the ID belongs to Preempt and Hopeless.
func (s *Scheduler) Relieve(p *Plan) (Relief, ID) {
	active := s.queues[running]
	switch admitted := len(p.Admitted); {
	case admitted > 1, admitted == 1 && len(active) > 0:
		s.relief.admissions = admitted - 1
		return Replan, 0
	case p.T > 1:
		s.relief.noDrafts = true
		return Replan, 0
	case admitted == 1:
		return Hopeless, p.Admitted[0].ID
	case s.flying > 0:
		return Drain, 0
	case len(active) == 0:
		panic("sched: relief for an empty plan")
	case len(active) == 1:
		return Hopeless, active[0].id
	}
	return Preempt, active[len(active)-1].id
}

// Preempt moves a running request without rows in flight back to the head of the queue. With swapped its state is kept
// and it goes on where it was; otherwise all its tokens, output included, become the prompt to compute again.
func (s *Scheduler) Preempt(id ID, swapped bool) {
	r := s.requests[id]
	if r == nil || r.where != running || r.flying > 0 {
		panic(fmt.Sprintf("sched: request %d cannot be preempted: it does not run, or has rows in flight", id))
	}
	if !swapped {
		r.restart()
	}
	r.swapped = swapped
	s.unlink(r)
	r.where = preempted
	i, _ := slices.BinarySearchFunc(s.queues[preempted], r.seq, func(q *request, seq int64) int { return int(q.seq - seq) })
	s.queues[preempted] = slices.Insert(s.queues[preempted], i, r)
	s.paused = true
	s.relief = noRelief
}

// restart drops the state. The token sampled last is known though it is not in the state.
func (r *request) restart() {
	if !r.prefilling() {
		r.prompt = r.low + 1
	}
	r.low, r.high = 0, 0
}

// Upper is the tokens in the request's state if everything in flight is accepted; 0 for an unknown request.
func (s *Scheduler) Upper(id ID) int {
	if r := s.requests[id]; r != nil {
		return r.high
	}
	return 0
}

// Prompt is the tokens that the request's prefill covers; more than was added after a preemption without swap.
func (s *Scheduler) Prompt(id ID) int {
	if r := s.requests[id]; r != nil {
		return r.prompt
	}
	return 0
}

// Running is the number of requests that hold memory of the device.
func (s *Scheduler) Running() int { return len(s.queues[running]) }

// Waiting is the number of requests that wait to be admitted, preempted ones included.
func (s *Scheduler) Waiting() int { return len(s.queues[waiting]) + len(s.queues[preempted]) }

// InFlight is the number of rows whose results are still to come.
func (s *Scheduler) InFlight() int { return s.flying }
