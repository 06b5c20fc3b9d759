package kerneltest

import (
	"bytes"
	"errors"

	"reprise/kernels"
)

func memoryCases() []testcase {
	return []testcase{
		{"alloc", allocCase},
		{"copies", copyCase},
		{"order", orderCase},
		{"graph", graphCase},
		{"fault", faultCase},
		{"broken parameters", brokenCase},
		{"scatter", scatterCase},
		{"pack refuses", packCase},
	}
}

func allocCase(b *bench) {
	dev := b.devices[device]
	if dev.Name() == "" || !dev.Activations().Float() || dev.MemoryFree() <= 0 {
		b.Errorf("name %q, activations %s, %d bytes free", dev.Name(), dev.Activations(), dev.MemoryFree())
	}
	for _, size := range []int64{1, 255, 256, 257, 100_000} {
		for range 2 { // memory of the first round comes back dirty
			buf, err := dev.Alloc(size)
			if err != nil {
				b.Fatalf("%d bytes: %v", size, err)
			}
			got := bytes.Repeat([]byte{1}, int(size))
			b.do(device, func(o kernels.Ops) { o.Download(got, buf) })
			if buf.Size != size || buf.Addr%256 != 0 || len(bytes.Trim(got, "\x00")) > 0 {
				b.Errorf("%d bytes: got %d at %#x, or they are not zero", size, buf.Size, buf.Addr)
			}
			b.do(device, func(o kernels.Ops) { o.Upload(buf, bytes.Repeat([]byte{0xff}, int(size))) })
			dev.Free(buf)
		}
	}
	if _, err := dev.Alloc(1 << 55); !errors.Is(err, kernels.ErrOutOfMemory) {
		b.Errorf("2^55 bytes: %v", err)
	}
	if host, err := dev.AllocHost(1000); err != nil || len(host) != 1000 {
		b.Errorf("host memory: %d bytes, %v", len(host), err)
	}
}

// letters is an array of n different bytes.
func (b *bench) letters(name string, n int) *array {
	b.Helper()
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(b.IntN(255) + 1)
	}
	return b.array(name, data)
}

func copyCase(b *bench) {
	for _, n := range []int{1, 3, 64, 65, 4099} {
		src, dst, zeroed := b.letters("src", n+7), b.letters("dst", n+9), b.letters("zeroed", n+5)
		dst.allow(5, n)
		zeroed.allow(3, n)
		b.run(func(o kernels.Ops, s side) {
			o.Copy(dst.buf[s].Slice(5, int64(n)), src.buf[s].Slice(2, int64(n)))
			o.Zero(zeroed.buf[s].Slice(3, int64(n)))
		})
		b.same(dst, zeroed)
		if !bytes.Equal(dst.after[device][5:5+n], src.before[2:2+n]) || bytes.Count(zeroed.after[device], []byte{0}) != n {
			b.Errorf("%d bytes: not copied or not cleared", n)
		}
	}
}

// Programs run in the order of their submission, and see what those before them wrote.
func orderCase(b *bench) {
	dev, a := b.devices[device], b.ints("a", 0)
	a.allow(0, 4)
	host := make([][]byte, 50)
	programs := make([]kernels.Program, len(host))
	got := make([]byte, 4*len(host))
	for i := range host {
		host[i] = intBytes([]int{i})
		programs[i] = kernels.ProgramFunc(func(o kernels.Ops) {
			o.Upload(a.buf[device], host[i])
			o.Download(got[4*i:4*i+4], a.buf[device])
		})
		dev.Submit(programs[i])
	}
	first := dev.Mark()
	last := dev.Mark()
	if last <= first {
		b.Errorf("tickets %d, then %d", first, last)
	}
	if err := errors.Join(dev.Wait(last), dev.Wait(first)); err != nil {
		b.Fatal(err)
	}
	for i := range host {
		if !bytes.Equal(got[4*i:4*i+4], host[i]) {
			b.Fatalf("program %d read %v", i, got[4*i:4*i+4])
		}
	}
}

// A graph reads device memory anew each time.
func graphCase(b *bench) {
	dev := b.devices[device]
	index, value, dst := b.ints("index", 2), b.ints("value", 41), b.ints("dst", 0, 0, 0, 0)
	dst.allow(0, 16)
	g, err := dev.Capture(kernels.ProgramFunc(func(o kernels.Ops) {
		o.Scatter(kernels.Scatter{Dst: dst.buf[device], Index: index.buf[device], Value: value.buf[device], Count: 1})
	}))
	if err != nil {
		b.Fatal(err)
	}
	dev.Replay(g)
	b.do(device, func(o kernels.Ops) { o.Upload(index.buf[device], intBytes([]int{1})) })
	dev.Replay(g)
	index.before = intBytes([]int{1})
	b.fetch(dst, device)
	b.fetch(index, device)
	if got := dst.intsOf(device); got[0] != 0 || got[1] != 41 || got[2] != 41 || got[3] != 0 {
		b.Errorf("after two replays: %v", got)
	}
}

func faultCase(b *bench) {
	dev, a := b.devices[device], b.ints("a", 7)
	a.allow(0, 4)
	dev.Submit(kernels.ProgramFunc(func(o kernels.Ops) {
		o.Scatter(kernels.Scatter{Dst: a.buf[device], Index: a.buf[device], Value: a.buf[device], Count: 2})
		o.Zero(a.buf[device])
	}))
	dev.Submit(kernels.ProgramFunc(func(o kernels.Ops) { o.Upload(a.buf[device], intBytes([]int{9})) }))
	err := dev.Wait(dev.Mark())
	var fault *kernels.Fault
	if !errors.As(err, &fault) || fault.Sticky {
		b.Fatalf("broken parameters: %v, want a fault that passes", err)
	}
	if err := dev.Wait(dev.Mark()); err != nil {
		b.Errorf("the fault was reported twice: %v", err)
	}
	b.fetch(a, device)
	if got := a.intsOf(device)[0]; got != 9 {
		b.Errorf("the program after the fault left %d", got)
	}
}

// brokenCase gives every operation parameters that its Validate refuses.
func brokenCase(b *bench) {
	buf := b.ints("buffer", 1, 2, 3).buf[device]
	rows := kernels.Rows{Count: 1, Tokens: 1, T: 1, MaxLen: 1}
	for name, program := range map[string]kernels.ProgramFunc{
		"upload":      func(o kernels.Ops) { o.Upload(buf, make([]byte, 4)) },
		"download":    func(o kernels.Ops) { o.Download(make([]byte, 16), buf) },
		"copy":        func(o kernels.Ops) { o.Copy(buf.Slice(0, 4), buf.Slice(4, 8)) },
		"scatter":     func(o kernels.Ops) { o.Scatter(kernels.Scatter{Dst: buf, Count: 1}) },
		"begin":       func(o kernels.Ops) { o.Begin(kernels.Begin{Step: rows}) },
		"embed":       func(o kernels.Ops) { o.Embed(kernels.Embed{}) },
		"norm":        func(o kernels.Ops) { o.Norm(kernels.Norm{}) },
		"linear":      func(o kernels.Ops) { o.Linear(kernels.Linear{}) },
		"activate":    func(o kernels.Ops) { o.Activate(kernels.Activate{}) },
		"gather":      func(o kernels.Ops) { o.GatherRows(kernels.GatherRows{}) },
		"write":       func(o kernels.Ops) { o.WriteKV(kernels.WriteKV{Rows: rows}) },
		"attend":      func(o kernels.Ops) { o.Attend(kernels.Attend{Rows: rows}) },
		"mamba2 step": func(o kernels.Ops) { o.Mamba2Step(kernels.Mamba2{Rows: rows}) },
		"mamba2 scan": func(o kernels.Ops) { o.Mamba2Scan(kernels.Mamba2{Rows: rows}) },
		"mamba2 fold": func(o kernels.Ops) { o.Mamba2Fold(kernels.Mamba2{Rows: rows}) },
		"delta step":  func(o kernels.Ops) { o.DeltaStep(kernels.Delta{Rows: rows}) },
		"delta scan":  func(o kernels.Ops) { o.DeltaScan(kernels.Delta{Rows: rows}) },
		"delta fold":  func(o kernels.Ops) { o.DeltaFold(kernels.Delta{Rows: rows}) },
		"route":       func(o kernels.Ops) { o.Route(kernels.Route{}) },
		"experts":     func(o kernels.Ops) { o.Experts(kernels.Experts{}) },
		"add gated":   func(o kernels.Ops) { o.AddGated(kernels.AddGated{}) },
		"sample":      func(o kernels.Ops) { o.Sample(kernels.Sample{}) },
		"commit":      func(o kernels.Ops) { o.Commit(kernels.Commit{Step: rows}) },
	} {
		b.refused(name, program)
	}
}

// refused requires that the device reports a fault that passes.
func (b *bench) refused(name string, program kernels.ProgramFunc) {
	b.Helper()
	dev := b.devices[device]
	dev.Submit(program)
	var fault *kernels.Fault
	if err := dev.Wait(dev.Mark()); !errors.As(err, &fault) || fault.Sticky {
		b.Errorf("%s: got %v, want a fault", name, err)
	}
}

func scatterCase(b *bench) {
	for _, n := range []int{0, 1, 65, 300} {
		order := b.Perm(2*n + 1)[:n]
		for i := range order {
			if i%5 == 3 {
				order[i] = -1
			}
		}
		dst, index, value := b.outInts("dst", 2*n+1), b.ints("index", order...), b.ints("value", b.Perm(n)...)
		b.run(func(o kernels.Ops, s side) {
			o.Scatter(kernels.Scatter{Dst: dst.buf[s], Index: index.buf[s], Value: value.buf[s], Count: n})
		})
		b.same(dst)
	}
}

func packCase(b *bench) {
	f := kernels.F32
	bad := b.tensor(f, 4, 6)
	bad.Data = bad.Data[:len(bad.Data)-4]
	for name, spec := range map[string]kernels.WeightSpec{
		"no parts":        {},
		"short data":      {Parts: []kernels.HostTensor{bad}},
		"cols differ":     {Parts: []kernels.HostTensor{b.tensor(f, 4, 6), b.tensor(f, 4, 5)}},
		"types differ":    {Parts: []kernels.HostTensor{b.tensor(f, 4, 6), b.tensor(kernels.BF16, 4, 6)}},
		"a vector":        {Parts: []kernels.HostTensor{b.tensor(f, 4)}},
		"missing experts": {Experts: 3, Parts: []kernels.HostTensor{b.tensor(f, 4, 6), b.tensor(f, 4, 6)}},
		"wrong experts":   {Experts: 3, Parts: []kernels.HostTensor{b.tensor(f, 2, 4, 6)}},
		"rows differ":     {Experts: 2, Parts: []kernels.HostTensor{b.tensor(f, 4, 6), b.tensor(f, 5, 6)}},
		"integers":        {Parts: []kernels.HostTensor{{DType: kernels.U8, Shape: []int{2, 2}, Data: make([]byte, 4)}}},
	} {
		if _, err := b.devices[device].Pack(spec); err == nil {
			b.Errorf("%s: packed", name)
		}
	}
	spec := kernels.WeightSpec{Format: 200, Parts: []kernels.HostTensor{b.tensor(f, 4, 6)}}
	if _, err := b.devices[device].Pack(spec); !errors.Is(err, kernels.ErrUnsupported) {
		b.Errorf("unknown format: %v", err)
	}
}
