package cpu

import (
	"errors"
	"strings"
	"testing"
	"time"

	"reprise/kernels"
)

// open opens a device that the test closes.
func open(t testing.TB, threads int) *Device {
	t.Helper()
	d, err := Open(Options{Threads: threads})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// alloc is Alloc that must succeed.
func alloc(t testing.TB, d *Device, bytes int64) kernels.Buffer {
	t.Helper()
	b, err := d.Alloc(bytes)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// do runs f as a program and waits for it.
func do(t testing.TB, d *Device, f func(kernels.Ops)) {
	t.Helper()
	d.Submit(kernels.ProgramFunc(f))
	if err := d.Wait(d.Mark()); err != nil {
		t.Fatalf("%v\n%s", err, err.(*kernels.Fault).Stack)
	}
}

func TestOpenRefusesNegativeThreads(t *testing.T) {
	if _, err := Open(Options{Threads: -1}); err == nil {
		t.Error("no error")
	}
}

func TestAlloc(t *testing.T) {
	d := open(t, 1)
	for _, n := range []int64{1, 255, 4096, 1 << 20} {
		b := alloc(t, d, n)
		if b.Size != n || b.Addr%alignment != 0 {
			t.Errorf("alloc %d: %+v", n, b)
		}
		for i, v := range bytesOf(b) {
			if v != 0 {
				t.Fatalf("byte %d of %d is %d", i, n, v)
			}
		}
		d.Free(b)
	}
	if b := alloc(t, d, 0); !b.Nil() {
		t.Errorf("alloc 0: %+v", b)
	}
	if _, err := d.Alloc(-1); err == nil {
		t.Error("alloc -1: no error")
	}
	if _, err := d.Alloc(1 << 62); !errors.Is(err, kernels.ErrOutOfMemory) {
		t.Errorf("alloc 1<<62: %v", err)
	}
	if d.MemoryFree() <= 0 {
		t.Errorf("%d bytes free", d.MemoryFree())
	}
}

func TestStreamOrderAndTickets(t *testing.T) {
	d := open(t, 2)
	b := alloc(t, d, 4)
	if err := d.Wait(d.Mark()); err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	d.Submit(kernels.ProgramFunc(func(kernels.Ops) { <-release }))
	first := d.Mark()
	got := make([]byte, 4)
	d.Submit(kernels.ProgramFunc(func(o kernels.Ops) { o.Upload(b, []byte{1, 2, 3, 4}) }))
	d.Submit(kernels.ProgramFunc(func(o kernels.Ops) { o.Download(got, b) }))
	second := d.Mark()
	if second <= first {
		t.Errorf("tickets %d, %d", first, second)
	}
	go func() { time.Sleep(time.Millisecond); close(release) }()
	if err := d.Wait(second); err != nil {
		t.Fatal(err)
	}
	if string(got) != "\x01\x02\x03\x04" {
		t.Errorf("read %v", got)
	}
	if err := d.Wait(first); err != nil {
		t.Error(err)
	}
}

func TestFaults(t *testing.T) {
	d := open(t, 2)
	b := alloc(t, d, 8)
	ok := kernels.ProgramFunc(func(o kernels.Ops) { o.Zero(b) })
	bad := kernels.ProgramFunc(func(o kernels.Ops) { o.Copy(b, b.Slice(0, 4)) })
	d.Submit(ok)
	before := d.Mark()
	d.Submit(bad)
	d.Submit(bad)
	d.Submit(ok)
	after := d.Mark()
	if err := d.Wait(before); err != nil {
		t.Errorf("before the fault: %v", err)
	}
	err := d.Wait(after)
	var fault *kernels.Fault
	if !errors.As(err, &fault) {
		t.Fatalf("no fault but %v", err)
	}
	if fault.Op != "Copy" || fault.Sticky || !strings.Contains(fault.Stack, "Copy") {
		t.Errorf("fault %+v", fault)
	}
	if err := d.Wait(d.Mark()); err != nil {
		t.Errorf("reported twice: %v", err)
	}
	d.Submit(ok)
	if err := d.Wait(d.Mark()); err != nil {
		t.Errorf("after the fault: %v", err)
	}
}

func TestReplayRunsAgain(t *testing.T) {
	d := open(t, 1)
	runs := 0
	g, err := d.Capture(kernels.ProgramFunc(func(kernels.Ops) { runs++ }))
	if err != nil {
		t.Fatal(err)
	}
	d.Replay(g)
	d.Replay(g)
	if err := d.Wait(d.Mark()); err != nil {
		t.Fatal(err)
	}
	if runs != 2 || g.Bytes() != 0 {
		t.Errorf("%d runs, %d bytes", runs, g.Bytes())
	}
	if _, err := d.Capture(nil); err == nil {
		t.Error("capture of nil: no error")
	}
}

func TestCloseTwice(t *testing.T) {
	d, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	alloc(t, d, 1<<16)
	d.Submit(kernels.ProgramFunc(func(kernels.Ops) { time.Sleep(time.Millisecond) }))
	for range 2 {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestScatterSkipsNegativeIndices(t *testing.T) {
	d := open(t, 1)
	b := alloc(t, d, 4*10)
	at, values := i32(b.Slice(16, 12)), i32(b.Slice(28, 12))
	copy(at, []int32{2, -1, 0})
	copy(values, []int32{7, 8, 9})
	do(t, d, func(o kernels.Ops) {
		o.Scatter(kernels.Scatter{Dst: b.Slice(0, 16), Index: b.Slice(16, 12), Value: b.Slice(28, 12), Count: 3})
	})
	if got := i32(b.Slice(0, 16)); got[0] != 9 || got[1] != 0 || got[2] != 7 {
		t.Errorf("scattered %v", got)
	}
}

func TestStepDoesNotAllocate(t *testing.T) {
	d := open(t, 2)
	b := alloc(t, d, 1024)
	p := kernels.ProgramFunc(func(o kernels.Ops) { o.Zero(b) })
	n := testing.AllocsPerRun(100, func() {
		d.Submit(p)
		if err := d.Wait(d.Mark()); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations a program", n)
	}
}
