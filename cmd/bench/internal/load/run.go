package load

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Plan says what to send and when. Arrivals make an open loop, Concurrency a closed one.
type Plan struct {
	Source      Source
	Arrivals    Arrivals
	Concurrency int           // of a closed loop
	MaxInFlight int           // of an open loop; 0 = no limit. Requests that must wait for it count as late.
	Requests    int           // at most that many are measured; 0 = no limit
	Duration    time.Duration // of arrivals that are measured; 0 = no limit
	Ramp        time.Duration // requests that arrive in it are sent, but not measured
	Warmup      int           // requests before the run, not measured
	WarmUp      Source        // of these; nil = Source
}

// Run sends the requests and waits for their answers. When ctx ends nothing more is sent, what runs is broken off, and
// what there is comes back. observe is called after every answer of the run, from several goroutines; nil = nobody looks.
func Run(ctx context.Context, c *Client, p Plan, observe func(*Outcome)) ([]*Outcome, error) {
	if (p.Arrivals == nil) == (p.Concurrency < 1) {
		return nil, errors.New("load: a plan has either arrivals or a concurrency")
	}
	if p.Requests < 1 && p.Duration <= 0 && p.Arrivals == nil {
		return nil, errors.New("load: a closed loop needs a number of requests or a duration")
	}
	if observe == nil {
		observe = func(*Outcome) {}
	}
	r := &run{client: c, plan: p, observe: observe}
	if err := r.warmUp(ctx); err != nil {
		return nil, err
	}
	r.begin = time.Now()
	if p.Arrivals != nil {
		r.open(ctx)
	} else {
		r.closed(ctx)
	}
	r.answers.Wait()
	return r.outcomes, nil
}

type run struct {
	client   *Client
	plan     Plan
	observe  func(*Outcome)
	begin    time.Time
	answers  sync.WaitGroup
	mutex    sync.Mutex // of source, measured and outcomes
	measured int        // requests so far that count
	outcomes []*Outcome // in order of arrival
}

// warmUp sends requests one after another until they are answered; the first failure ends the run, because the others
// would fail too.
func (r *run) warmUp(ctx context.Context) error {
	source := r.plan.WarmUp
	if source == nil {
		source = r.plan.Source
	}
	for range r.plan.Warmup {
		job, ok := source()
		if !ok || ctx.Err() != nil {
			return nil
		}
		o := &Outcome{Asked: job.Output}
		path, body := r.client.body.build(job)
		r.client.post(ctx, path, body, o, time.Now())
		if o.Failure != nil && ctx.Err() == nil {
			return errors.New("the first request failed: " + o.Failure.Kind + ": " + o.Failure.Detail)
		}
	}
	return nil
}

// ready is a request that only has to be sent.
type ready struct {
	outcome *Outcome
	path    string
	body    []byte
}

// prepare makes the next request for an intended arrival; false = no more.
func (r *run) prepare(at time.Duration) (ready, bool) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	p := &r.plan
	measured := at >= p.Ramp
	if measured && (p.Requests > 0 && r.measured == p.Requests || p.Duration > 0 && at >= p.Ramp+p.Duration) {
		return ready{}, false
	}
	job, ok := p.Source()
	if !ok {
		return ready{}, false
	}
	o := &Outcome{Intended: at, Asked: job.Output, Measured: measured}
	if measured {
		r.measured++
	}
	r.outcomes = append(r.outcomes, o)
	path, body := r.client.body.build(job)
	return ready{o, path, body}, true
}

func (r *run) send(ctx context.Context, q ready) {
	r.client.post(ctx, q.path, q.body, q.outcome, r.begin)
	q.outcome.Cut = q.outcome.Failure != nil && ctx.Err() != nil
	r.observe(q.outcome)
}

// open sends each request at its time, whatever became of those before. The body is made ahead of it.
func (r *run) open(ctx context.Context) {
	var seats chan struct{}
	if r.plan.MaxInFlight > 0 {
		seats = make(chan struct{}, r.plan.MaxInFlight)
	}
	for {
		at, ok := r.plan.Arrivals()
		if !ok {
			return
		}
		q, ok := r.prepare(at)
		if !ok {
			return
		}
		if !sleep(ctx, time.Until(r.begin.Add(at))) || !enter(ctx, seats) {
			r.drop(q)
			return
		}
		r.answers.Go(func() {
			r.send(ctx, q)
			leave(seats)
		})
	}
}

// drop takes back the request prepared last, which was never sent.
func (r *run) drop(q ready) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.outcomes = r.outcomes[:len(r.outcomes)-1]
	if q.outcome.Measured {
		r.measured--
	}
}

func enter(ctx context.Context, seats chan struct{}) bool {
	if seats == nil {
		return true
	}
	select {
	case seats <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func leave(seats chan struct{}) {
	if seats != nil {
		<-seats
	}
}

// sleep waits; false = ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// closed keeps a number of requests under way. Where all fail at once it pauses, so that a server that refuses is not
// flooded. During the ramp the number grows evenly.
func (r *run) closed(ctx context.Context) {
	var failures atomic.Int64
	for i := range r.plan.Concurrency {
		r.answers.Go(func() {
			if !sleep(ctx, r.plan.Ramp*time.Duration(i)/time.Duration(r.plan.Concurrency)) {
				return
			}
			for ctx.Err() == nil {
				q, ok := r.prepare(time.Since(r.begin))
				if !ok {
					return
				}
				r.send(ctx, q)
				if q.outcome.Failure == nil {
					failures.Store(0)
				} else if !sleep(ctx, min(time.Duration(failures.Add(1))*pause, maxPause)) {
					return
				}
			}
		})
	}
}

// Pauses of a closed loop after failures in a row.
const (
	pause    = 10 * time.Millisecond
	maxPause = time.Second
)
