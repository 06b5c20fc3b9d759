//go:build cuda

package cuda

import (
	"errors"

	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// tickets are points of the stream, and the faults between them.
type tickets struct {
	events [128]driver.Event // of ticket t at t modulo the length; an older ticket is done when a newer one is
	last   kernels.Ticket
	done   kernels.Ticket
	faults []ticketFault // not yet reported, oldest first
}

type ticketFault struct {
	at    kernels.Ticket
	fault *kernels.Fault
}

func (t *tickets) open() (err error) {
	for i := range t.events {
		if t.events[i], err = driver.NewEvent(false); err != nil {
			return err
		}
	}
	return nil
}

func (t *tickets) close() error {
	var list []error
	for i := range t.events {
		if t.events[i] != (driver.Event{}) {
			list = append(list, t.events[i].Destroy())
		}
	}
	return errors.Join(list...)
}

func (t *tickets) mark(s driver.Stream) (kernels.Ticket, error) {
	t.last++
	return t.last, s.Record(t.events[int(t.last)%len(t.events)])
}

// wait blocks until ticket n is done.
func (t *tickets) wait(n kernels.Ticket) error {
	if n <= t.done {
		return nil
	}
	oldest := max(1, t.last+1-min(t.last, kernels.Ticket(len(t.events))))
	n = max(n, oldest)
	if err := t.events[int(n)%len(t.events)].Synchronize(); err != nil {
		return err
	}
	t.done = n
	return nil
}

// fault notes a fault of the program that is enqueued now; blame one of a program up to ticket n.
func (t *tickets) fault(f *kernels.Fault) {
	t.faults = append(t.faults, ticketFault{t.last + 1, f})
}

func (t *tickets) blame(n kernels.Ticket, f *kernels.Fault) {
	t.faults = append([]ticketFault{{n, f}}, t.faults...)
}

// take drops the faults up to ticket n and returns the first of them.
func (t *tickets) take(n kernels.Ticket) *kernels.Fault {
	count := 0
	for count < len(t.faults) && t.faults[count].at <= n {
		count++
	}
	if count == 0 {
		return nil
	}
	first := t.faults[0].fault
	t.faults = append(t.faults[:0], t.faults[count:]...)
	return first
}
