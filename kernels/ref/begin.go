package ref

import "reprise/kernels"

func (o ops[F]) Begin(p kernels.Begin) {
	o.begin("Begin", p.Validate())
	if !p.Step.Empty() {
		o.beginStep(p)
	}
	if !p.Prefill.Empty() {
		o.beginPrefill(p)
	}
}

func (o ops[F]) beginStep(p kernels.Begin) {
	s, ids, pos := o.slots(p.Slots), o.ints(p.IDs), o.ints(p.Pos)
	want, n, slot := o.ints(p.Want), o.ints(p.Step.N), o.ints(p.Step.Slot)
	for r := range p.Step.Count {
		at := slot.at(r)
		c := o.cursor(p.Cursors, at)
		position, count := int(c.Origin)+int(c.H), 0
		if s.active.at(at) != 0 {
			room := int(s.param(at).MaxLen) - position - 1
			count = max(0, min(want.at(r), room, p.Step.T, 1+s.drafted(at)))
		}
		n.set(r, count)
		for j := range p.Step.T {
			id, place := 0, -1
			if j < count {
				id, place = s.last.at(at), position+j
			}
			if j > 0 && j < count {
				id = s.draft(at, j-1)
			}
			ids.set(p.Step.First+r*p.Step.T+j, id)
			pos.set(p.Step.First+r*p.Step.T+j, place)
		}
	}
}

func (o ops[F]) beginPrefill(p kernels.Begin) {
	ids, pos, given := o.ints(p.IDs), o.ints(p.Pos), o.ints(p.PrefillIDs)
	for i := range p.Prefill.Tokens {
		ids.set(p.Prefill.First+i, given.at(i))
	}
	for _, s := range o.sequences(p.Prefill, p.Cursors) {
		for j := range s.n {
			pos.set(s.first+j, s.position()+j)
		}
	}
}
