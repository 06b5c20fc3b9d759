package kerneltest

import "reprise/kernels"

// walkBatch is a step as the host sends it.
type walkBatch struct {
	step, prefill                                               kernels.Rows
	slot, want, drafts, pslot, pn, start, given, sampled, final []int
}

// layOut places step rows (a null row first, idle sequences too) and packed prefill rows.
func (x *walk) layOut() *walkBatch {
	k, t := &walkBatch{slot: []int{0}, want: []int{1}, drafts: make([]int, (1+walkers)*x.window.T)}, x.window.T
	k.sampled = make([]int, t)
	for _, s := range x.seqs {
		if s.chunk {
			continue
		}
		s.first = len(k.slot) * t
		k.slot, k.want = append(k.slot, s.slot), append(k.want, len(s.ids))
		row := make([]int, t)
		copy(row, s.samples)
		k.sampled = append(k.sampled, row...)
		if len(s.ids) > 0 {
			copy(k.drafts[s.slot*t:(s.slot+1)*t], s.ids[1:])
		}
	}
	tokens := len(k.slot) * t
	for _, s := range x.seqs {
		if !s.chunk {
			continue
		}
		s.first = tokens + len(k.given)
		k.pslot, k.pn, k.start = append(k.pslot, s.slot), append(k.pn, len(s.ids)), append(k.start, s.first)
		k.given = append(k.given, s.ids...)
		k.final, k.sampled = append(k.final, len(k.sampled)), append(k.sampled, s.samples[0])
	}
	at := func(name string) kernels.Buffer { return x.memory[name].buf[device] }
	k.step = kernels.Rows{Count: len(k.slot), Tokens: tokens, T: t, MaxLen: t, Slot: at("slot"), N: at("n")}
	if len(k.pslot) > 0 {
		k.prefill = kernels.Rows{Count: len(k.pslot), First: tokens, Tokens: len(k.given), MaxLen: walkChunk, Slot: at("pslot"), N: at("pn"), Start: at("start")}
	}
	return k
}

// upload writes the first elements of an i32 array.
func upload(o kernels.Ops, s side, a *array, v []int) {
	o.Upload(a.buf[s].Slice(0, int64(4*len(v))), intBytes(v))
}

// onDevice runs one step and returns the outputs of the tokens that count.
func (x *walk) onDevice() []float64 {
	k := x.layOut()
	tokens := k.step.Tokens + k.prefill.Tokens
	out := make([]byte, len(x.out.before))
	at := func(name string) kernels.Buffer { return x.memory[name].buf[device] }
	x.b.do(device, func(o kernels.Ops) {
		for name, v := range map[string][]int{"slot": k.slot, "want": k.want, "pslot": k.pslot, "pn": k.pn, "start": k.start, "given": k.given, "sampled": k.sampled, "final": k.final} {
			upload(o, device, x.memory[name], v)
		}
		upload(o, device, x.slots.drafts, k.drafts)
		slots, cursors := x.slots.slots(device), x.slots.cursors(device)
		o.Begin(kernels.Begin{Step: k.step, Prefill: k.prefill, Want: at("want"), PrefillIDs: at("given"), Cursors: cursors, Slots: slots, IDs: at("ids"), Pos: at("pos")})
		c := call{cursors: cursors, state: x.pool.state(device), out: x.out.on(device)}
		for i, m := range x.in {
			o.GatherRows(kernels.GatherRows{X: x.table[i].on(device), Y: m.on(device).RowRange(0, tokens), Index: at("ids")})
			c.in = append(c.in, m.on(device))
		}
		c.rows = k.step
		x.kind.launch(o, device, step, c)
		c.rows = k.prefill
		x.kind.launch(o, device, fold, c)
		x.kind.launch(o, device, scan, c)
		o.Commit(kernels.Commit{Step: k.step, Prefill: k.prefill, Cursors: cursors, Slots: slots, Tables: x.slots.tables(device), Window: x.window,
			Pos: at("pos"), Sampled: at("sampled"), Final: at("final"), Accepted: at("accepted"), Finish: at("finish")})
		o.Download(out, x.out.buf[device])
	})
	x.check()
	x.out.after[device] = out
	return x.collect(device, x.out)
}

// collect is the outputs of the tokens that count.
func (x *walk) collect(s side, m matrix) []float64 {
	var v []float64
	for _, q := range x.seqs {
		for i := range q.ids {
			v = append(v, m.row(s, q.first+i)...)
		}
	}
	return v
}

// scan is the conventional recurrence on one of the reference devices: all tokens of the step from the main states into
// scratch blocks, which gives the outputs, then the accepted ones into the main states.
func (x *walk) scan(s side) []float64 {
	var v []float64
	for _, q := range x.seqs {
		if len(q.ids) == 0 {
			continue
		}
		v = append(v, x.scanTokens(s, q, len(q.ids), walkers+q.slot)...)
		x.scanTokens(s, q, q.accept, q.slot)
	}
	return v
}

// scanTokens scans n of a sequence's tokens into a block. The sequence has been committed already.
func (x *walk) scanTokens(s side, q *walker, n, dst int) []float64 {
	out := make([]byte, len(x.out.before))
	at := func(name string) kernels.Buffer { return x.memory[name].buf[s] }
	x.b.do(s, func(o kernels.Ops) {
		for i, v := range []int{q.tokens - q.accept, 0, q.slot, dst} {
			o.Upload(x.oracle.cursor[i].buf[s].Slice(int64(4*q.slot), 4), intBytes([]int{v}))
		}
		upload(o, s, x.memory["plain ids"], q.ids)
		upload(o, s, x.memory["plain slot"], []int{q.slot})
		upload(o, s, x.memory["plain n"], []int{n})
		upload(o, s, x.memory["plain start"], []int{0})
		c := call{cursors: x.oracle.cursors(s), state: x.oracle.state(s), out: x.out.on(s)}
		c.rows = kernels.Rows{Count: 1, Tokens: n, MaxLen: n, Slot: at("plain slot"), N: at("plain n"), Start: at("plain start")}
		for i, m := range x.in {
			o.GatherRows(kernels.GatherRows{X: x.table[i].on(s), Y: m.on(s).RowRange(0, n), Index: at("plain ids")})
			c.in = append(c.in, m.on(s))
		}
		x.kind.launch(o, s, scan, c)
		o.Download(out, x.out.buf[s])
	})
	x.out.after[s] = out
	var v []float64
	for i := range n {
		v = append(v, x.out.row(s, i)...)
	}
	return v
}
