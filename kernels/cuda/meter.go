//go:build cuda

package cuda

import (
	"runtime"
	"sync"
	"time"

	"reprise/kernels/cuda/driver"
)

// meter adds up the time between the events around each program. The events are read when they have long happened.
type meter struct {
	sync.Mutex
	on      bool
	spans   [512][2]driver.Event // in turn
	next    int                  // spans begun
	counted int                  // of these added up
	busy    time.Duration
}

// Meter starts or stops counting, from any goroutine.
func (d *Device) Meter(on bool) error {
	d.use()
	defer runtime.UnlockOSThread()
	m := &d.meter
	m.Lock()
	defer m.Unlock()
	m.on, m.busy, m.counted = on, 0, m.next
	for i := range m.spans {
		for j := range m.spans[i] {
			if e := &m.spans[i][j]; on && *e == (driver.Event{}) {
				var err error
				if *e, err = driver.NewEvent(true); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Busy waits for the stream and returns the sum of the times that programs took since the last call of Meter.
func (d *Device) Busy() (time.Duration, error) {
	d.use()
	defer runtime.UnlockOSThread()
	d.meter.Lock()
	defer d.meter.Unlock()
	for d.meter.counted < d.meter.next {
		if err := d.meter.count(); err != nil {
			return 0, err
		}
	}
	return d.meter.busy, nil
}

// count adds the oldest span.
func (m *meter) count() error {
	s := &m.spans[m.counted%len(m.spans)]
	m.counted++
	if err := s[1].Synchronize(); err != nil {
		return err
	}
	ms, err := s[0].Milliseconds(s[1])
	m.busy += time.Duration(ms * float64(time.Millisecond))
	return err
}

// metered enqueues f's work, between two events if the meter is on.
func (d *Device) metered(f func() error) error {
	m := &d.meter
	m.Lock()
	defer m.Unlock()
	if !m.on {
		return f()
	}
	if m.next-m.counted == len(m.spans) {
		if err := m.count(); err != nil {
			return err
		}
	}
	s := &m.spans[m.next%len(m.spans)]
	if err := d.stream.Record(s[0]); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	m.next++
	return d.stream.Record(s[1])
}

func (m *meter) close() (err error) {
	for i := range m.spans {
		for _, e := range m.spans[i] {
			if e != (driver.Event{}) {
				if failed := e.Destroy(); err == nil {
					err = failed
				}
			}
		}
	}
	return err
}
