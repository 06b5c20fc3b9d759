package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"

	"reprise/cmd/internal/cli"
	"reprise/server/api"
)

// errOtherInput is an output file with results for other lines.
var errOtherInput = errors.New("the output file has a result for another line here: it belongs to another input")

// runner answers the lines of an input.
type runner struct {
	api      *api.API
	fault    func() error // what ended the engine, or nil
	inFlight int
	out      *output
	done     map[int]uint64 // lines that have results already
	progress *cli.Progress

	answered, failed int
}

// run answers everything that has no result yet. Where it returns an error, the lines without a result have none.
func (r *runner) run(ctx context.Context, in *input) error {
	results := make(chan *result, r.inFlight)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(results)
		return r.read(ctx, in, results)
	})
	group.Go(func() error { return r.write(results) })
	return group.Wait()
}

// read starts a bounded number of requests and waits for all of them.
func (r *runner) read(ctx context.Context, in *input, results chan<- *result) error {
	workers, running := errgroup.WithContext(ctx)
	workers.SetLimit(r.inFlight)
	seen := map[[16]byte]struct{}{}
	var err error
	for running.Err() == nil {
		var l line
		if l, err = in.next(); err != nil {
			break
		}
		q := understand(l)
		q.once(seen)
		if sum, ok := r.done[l.number]; ok {
			if sum != q.sum() {
				err = errOtherInput
				break
			}
			continue
		}
		workers.Go(func() error {
			out, err := r.answer(running, q)
			if err != nil {
				return err
			}
			results <- out // the writer reads until this is closed, even after an error of its own
			return nil
		})
	}
	if e := workers.Wait(); e != nil {
		return e
	}
	if err != nil && err != io.EOF {
		return fmt.Errorf("line %d: %w", in.number+1, err)
	}
	return ctx.Err()
}

// once refuses a custom_id that an earlier line had.
func (q *request) once(seen map[[16]byte]struct{}) {
	if q.id == nil {
		return
	}
	sum := sha256.Sum256([]byte(*q.id))
	key := [16]byte(sum[:])
	if _, twice := seen[key]; twice {
		q.err = malformed("custom_id", "%q is that of an earlier line", *q.id)
	}
	seen[key] = struct{}{}
}

// write appends results as they come.
func (r *runner) write(results <-chan *result) error {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	var failed error
	for failed == nil {
		select {
		case out, open := <-results:
			if !open {
				return r.out.flush()
			}
			r.answered++
			if out.Error != nil {
				r.failed++
			}
			failed = r.out.write(out)
			r.progress.Add(1)
		case <-tick.C:
			failed = r.out.flush()
		}
	}
	go func() { // the group's context ends the requests
		for range results {
		}
	}()
	return failed
}

// answer runs one request. The error is one that ends the whole run.
func (r *runner) answer(ctx context.Context, q request) (*result, error) {
	body, err := r.call(ctx, q)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case r.fault() != nil:
		return nil, r.fault()
	}
	out := &result{ID: idOf(q.number), CustomID: q.id, Response: &response{http.StatusOK, "req_" + rand.Text(), body}}
	if err != nil {
		e := api.AsError(err)
		if e.Status >= http.StatusInternalServerError {
			fmt.Fprintf(os.Stderr, "generate: line %d: %v\n", q.number, err)
		}
		out.Response.StatusCode, out.Response.Body = e.Status, e.Body()
		out.Error = &resultError{e.Code, e.Message}
	}
	return out, nil
}

// call answers a request; a full queue is waited for.
func (r *runner) call(ctx context.Context, q request) (body any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &api.PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		body, err = r.once(ctx, q)
		var e *api.Error
		if !errors.As(err, &e) || e.Status != http.StatusTooManyRequests {
			return body, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (r *runner) once(ctx context.Context, q request) (any, error) {
	if q.err != nil {
		return nil, q.err
	}
	understand := r.api.Completion
	if q.chat {
		understand = r.api.Chat
	}
	call, err := understand(q.body)
	switch {
	case err != nil:
		return nil, err
	case call.Streams():
		return nil, malformed("stream", "not available in a batch")
	}
	return call.Answer(ctx)
}
