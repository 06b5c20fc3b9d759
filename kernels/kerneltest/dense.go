package kerneltest

import (
	"fmt"

	"reprise/kernels"
)

var weightTypes = []kernels.DType{kernels.F32, kernels.F16, kernels.BF16, kernels.F8E4M3, kernels.F8E5M2}

// denseCases multiplies fewer rows one by one if short: every product is a launch.
func denseCases(short bool) []testcase {
	var list []testcase
	add := func(name string, run func(b *bench)) {
		list = append(list, testcase{name, run}, testcase{name + " wide", func(b *bench) { b.wide = true; run(b) }})
	}
	for _, n := range [][2]int{{0, 5}, {1, 1}, {2, 3}, {3, 63}, {5, 65}, {4, 127}, {33, 64}, {2, 1000}} {
		add(fmt.Sprintf("norm %dx%d", n[0], n[1]), func(b *bench) { normCase(b, n[0], n[1], false) })
		add(fmt.Sprintf("norm add %dx%d", n[0], n[1]), func(b *bench) { normCase(b, n[0], n[1], true) })
		add(fmt.Sprintf("activate %dx%d", n[0], n[1]), func(b *bench) { activateCase(b, n[0], n[1]) })
		add(fmt.Sprintf("gather %dx%d", n[0], n[1]), func(b *bench) { gatherCase(b, n[0], n[1]) })
		add(fmt.Sprintf("add gated %dx%d", n[0], n[1]), func(b *bench) { addGatedCase(b, n[0], n[1]) })
	}
	for _, n := range [][2]int{{1025, 24}, {1024, 1048}} { // prompts
		add(fmt.Sprintf("norm %dx%d", n[0], n[1]), func(b *bench) { normCase(b, n[0], n[1], false) })
		add(fmt.Sprintf("norm add %dx%d", n[0], n[1]), func(b *bench) { normCase(b, n[0], n[1], true) })
		add(fmt.Sprintf("activate %dx%d", n[0], n[1]), func(b *bench) { activateCase(b, n[0], n[1]) })
	}
	many := 1<<16 + 1 // a device may count blocks in 16 bits
	add(fmt.Sprintf("activate %dx3", many), func(b *bench) { activateCase(b, many, 3) })
	add(fmt.Sprintf("add gated %dx3", many), func(b *bench) { addGatedCase(b, many, 3) })
	for _, t := range weightTypes {
		for _, n := range [][3]int{{0, 4, 4}, {1, 1, 1}, {2, 3, 5}, {3, 63, 65}, {5, 127, 33}, {17, 130, 50}, {4, 256, 64}, {64, 96, 40}, {1, 515, 7}, {70, 320, 130}, {97, 520, 50}, {128, 264, 170}, {300, 136, 72}} {
			apart := n[0]
			if short {
				apart = min(apart, 24)
			}
			add(fmt.Sprintf("linear %s %dx%dx%d", t, n[0], n[1], n[2]), func(b *bench) { linearCase(b, t, n[0], n[1], n[2], apart) })
		}
		for _, n := range [][3]int{{0, 8, 8}, {1, 1, 1}, {3, 63, 37}, {8, 256, 40}, {9, 2560, 33}, {16, 520, 50}, {17, 128, 24}, {40, 192, 132}, {130, 264, 36}} {
			for _, kind := range []kernels.Activation{kernels.SiLUMul, kernels.ReLU2} {
				add(fmt.Sprintf("norm linear activate %d %s %dx%dx%d", kind, t, n[0], n[1], n[2]), func(b *bench) { fusedLinearCase(b, t, kind, n[0], n[1], n[2]) })
			}
		}
		add("linear top rows "+t.String(), func(b *bench) { topRowsCase(b, t) })
		add("embed "+t.String(), func(b *bench) { embedCase(b, t) })
	}
	return append(list, testcase{"embed outside", embedOutsideCase}, testcase{"all reduce", allReduceCase})
}

func normCase(b *bench, rows, cols int, withAdd bool) {
	v := b.normal(rows*cols, 0, 1)
	if rows > 2 { // a row of zeros has only eps to divide by
		clear(v[:cols])
	}
	x, add := b.matrix("x", rows, cols, v), b.input("add", rows, cols)
	y, w := b.output("y", rows, cols, 0, rows), b.floats("weight", b.normal(cols, 1, 0.3))
	if withAdd {
		x.allowRows(0, rows)
	}
	b.run(func(o kernels.Ops, s side) {
		p := kernels.Norm{X: x.on(s), Y: y.on(s), Weight: w.buf[s], Eps: 1e-5}
		if withAdd {
			p.Add = add.on(s)
		}
		o.Norm(p)
	})
	b.close("y", fewRoundings, y.all())
	b.close("x", fewRoundings, x.all())
}

func activateCase(b *bench, rows, cols int) {
	for _, kind := range []kernels.Activation{kernels.SiLUMul, kernels.ReLU2} {
		v := b.normal(rows*kind.InWidth(cols), 0, 3)
		for i := range v {
			if i%7 == 0 {
				v[i] *= 30 // exp(90) and exp(-90) are out of float32's comfort
			}
		}
		x, y := b.matrix("x", rows, kind.InWidth(cols), v), b.output("y", rows, cols, 0, rows)
		b.run(func(o kernels.Ops, s side) { o.Activate(kernels.Activate{Kind: kind, X: x.on(s), Y: y.on(s)}) })
		b.close("y", fewRoundings, y.all())
	}
}

func gatherCase(b *bench, rows, cols int) {
	index := make([]int, 2*rows+1)
	for i := range index {
		index[i] = b.IntN(rows+1) - 1
	}
	x, y, ids := b.input("x", rows, cols), b.output("y", len(index), cols, 0, len(index)), b.ints("index", index...)
	b.run(func(o kernels.Ops, s side) {
		o.GatherRows(kernels.GatherRows{X: x.on(s), Y: y.on(s), Index: ids.buf[s]})
	})
	b.close("y", exactly, y.all())
}

func addGatedCase(b *bench, rows, cols int) {
	gate, x, y, z := b.input("gate", rows, 1), b.input("x", rows, cols), b.inout("y", rows, cols), b.inout("z", rows, cols)
	b.run(func(o kernels.Ops, s side) {
		o.AddGated(kernels.AddGated{Gate: gate.on(s), X: x.on(s), Y: y.on(s)})
		o.AddGated(kernels.AddGated{X: x.on(s), Y: z.on(s)})
	})
	b.close("y", fewRoundings, y.all())
	b.close("z", fewRoundings, z.all())
}

// parts cuts n rows into tensors that a device stacks again.
func (b *bench) parts(t kernels.DType, rows, cols int) []kernels.HostTensor {
	var list []kernels.HostTensor
	for rows > 0 {
		n := 1 + b.IntN(rows)
		list = append(list, b.tensor(t, n, cols))
		rows -= n
	}
	return list
}

// linearCase also multiplies the first rows one by one and in unequal groups. With float32 activations the bits must be the
// same; with fewer bits a device may change to another product where there are more rows.
func linearCase(b *bench, t kernels.DType, rows, k, n, apart int) {
	w := b.pack(kernels.WeightSpec{Name: "w", Parts: b.parts(t, n, k)})
	b.checkWeight(w, t, 1, n, k)
	x, y, sum := b.input("x", rows, k), b.output("y", rows, n, 0, rows), b.inout("sum", rows, n)
	single, group := b.output("single", rows, n, 0, apart), b.output("group", rows, n, 0, apart)
	b.run(func(o kernels.Ops, s side) {
		o.Linear(kernels.Linear{X: x.on(s), Y: y.on(s), W: w[s]})
		o.Linear(kernels.Linear{X: x.on(s), Y: sum.on(s), W: w[s], Add: true})
		for i := range apart {
			o.Linear(kernels.Linear{X: x.on(s).RowRange(i, 1), Y: single.on(s).RowRange(i, 1), W: w[s]})
		}
		for i, size := 0, 2; i < apart; size++ {
			size = min(size, apart-i)
			o.Linear(kernels.Linear{X: x.on(s).RowRange(i, size), Y: group.on(s).RowRange(i, size), W: w[s]})
			i += size
		}
	})
	b.close("y", fewRoundings, y.all())
	b.close("sum", fewRoundings, sum.all())
	if b.devices[device].Activations() != kernels.F32 {
		b.close("single", fewRoundings, single.part(0, apart))
		b.close("group", fewRoundings, group.part(0, apart))
		return
	}
	b.twins("batch and singles", y.part(0, apart), single.part(0, apart))
	b.twins("batch and groups", y.part(0, apart), group.part(0, apart))
}

// topRowsCase multiplies by the first rows of a weight, which are those of the weight.
func topRowsCase(b *bench, t kernels.DType) {
	const n, k = 70, 33
	w := b.pack(kernels.WeightSpec{Name: "w", Parts: b.parts(t, n, k)})
	for _, rows := range []int{1, 3, 20} {
		for _, first := range []int{1, 17, 64, n} {
			var top weight
			for s := range w {
				top[s] = w[s].Top(first)
			}
			b.checkWeight(top, t, 1, first, k)
			x, y := b.input("x", rows, k), b.output("y", rows, first, 0, rows)
			b.run(func(o kernels.Ops, s side) { o.Linear(kernels.Linear{X: x.on(s), Y: y.on(s), W: top[s]}) })
			b.close("y", fewRoundings, y.all())
		}
	}
}

// fusedLinearCase multiplies with a norm before, with an activation behind, with both, and adds with a norm before.
func fusedLinearCase(b *bench, t kernels.DType, kind kernels.Activation, rows, k, n int) {
	wide := kind.InWidth(n)
	w := b.pack(kernels.WeightSpec{Name: "w", Parts: b.parts(t, wide, k)})
	v := b.normal(rows*k, 0, 3)
	if rows > 2 { // a row of zeros has only eps to divide by
		clear(v[:k])
	}
	x, factor := b.matrix("x", rows, k, v), b.floats("factor", b.normal(k, 1, 0.3))
	normed, raw := b.output("normed", rows, k, 0, rows), b.output("raw", rows, wide, 0, rows)
	before, behind, both := b.output("norm before", rows, wide, 0, rows), b.output("act behind", rows, n, 0, rows), b.output("both", rows, n, 0, rows)
	sum := b.inout("sum", rows, wide)
	b.run(func(o kernels.Ops, s side) {
		plain := kernels.Linear{X: x.on(s), W: w[s]}
		with := plain
		with.NormW, with.Eps, with.Normed = factor.buf[s], 1e-5, normed.on(s)
		act := func(p kernels.Linear, y matrix) kernels.Linear {
			p.Y, p.Raw, p.Kind = y.on(s), raw.on(s), kind
			return p
		}
		o.Linear(act(plain, behind))
		o.Linear(act(with, both))
		with.Y = before.on(s)
		o.Linear(with)
		with.Y, with.Add = sum.on(s), true
		o.Linear(with)
	})
	b.close("norm before", fewRoundings, before.all())
	b.close("sum", fewRoundings, sum.all())
	through := 2 * fewRoundings // the square of relu2 doubles what the product is off,
	if act := b.devices[device].Activations(); act != kernels.F32 {
		through = rounded(through, act) // and the product may have been rounded before it, or not
	}
	b.close("activation behind", through, behind.all())
	b.close("both", through, both.all())
}

func (b *bench) checkWeight(w weight, t kernels.DType, experts, rows, cols int) {
	b.Helper()
	p := w[device]
	if e, r, c := p.Shape(); e != experts || r != rows || c != cols || p.DType() != t || p.Bytes() <= 0 {
		b.Errorf("packed as [%d, %d, %d] %s in %d bytes, want [%d, %d, %d] %s", e, r, c, p.DType(), p.Bytes(), experts, rows, cols, t)
	}
}

func embedCase(b *bench, t kernels.DType) {
	const vocab, hidden = 37, 65
	w := b.pack(kernels.WeightSpec{Name: "table", Parts: b.parts(t, vocab, hidden)})
	ids := b.ints("ids", 0, 36, 5, 5, 17, 0, 36)
	out := b.output("out", 9, hidden, 0, 7)
	b.run(func(o kernels.Ops, s side) {
		o.Embed(kernels.Embed{Table: w[s], IDs: ids.buf[s], Out: out.on(s).RowRange(0, 7)})
	})
	b.close("out", exactly, out.part(0, 7))
}

func embedOutsideCase(b *bench) {
	w := b.pack(kernels.WeightSpec{Name: "table", Parts: []kernels.HostTensor{b.tensor(kernels.F32, 4, 3)}})
	for _, id := range []int{-1, 4, 1 << 30} {
		ids, out := b.ints("ids", id), b.output("out", 1, 3, 0, 1)
		dev := b.devices[device]
		dev.Submit(kernels.ProgramFunc(func(o kernels.Ops) {
			o.Embed(kernels.Embed{Table: w[device], IDs: ids.buf[device], Out: out.on(device)})
		}))
		if err := dev.Wait(dev.Mark()); err == nil {
			b.Errorf("token %d of a table of 4: no fault", id)
		}
	}
}

func allReduceCase(b *bench) {
	x := b.inout("x", 3, 7)
	b.run(func(o kernels.Ops, s side) { o.AllReduce(x.on(s)) })
	b.close("x", exactly, x.all())
}
