package kernels

// committed requires the arrays of a step behind its Commit; it reports the batch's tokens.
func (c *check) committed(p *Committed) (tokens int) {
	c.rows("Step", p.Step)
	c.rows("Prefill", p.Prefill)
	c.that(p.Step.Empty() || p.Step.T > 0, "Step", "packed rows")
	c.that(p.Prefill.T == 0, "Prefill", "padded rows")
	c.drafts(p.Slots)
	rows := p.Step.Count + p.Prefill.Count
	tokens = max(p.Step.First+p.Step.Tokens, p.Prefill.First+p.Prefill.Tokens)
	c.words("IDs", p.IDs, tokens)
	c.words("Pos", p.Pos, tokens)
	c.that(p.SampleFirst >= 0, "SampleFirst", "is negative")
	c.words("Sampled", p.Sampled, p.SampleFirst+p.Step.Tokens)
	c.words("Final", p.Final, p.Prefill.Count)
	c.words("Accepted", p.Accepted, rows)
	c.words("Want", p.Want, rows)
	return tokens
}

// drafts requires slots that drafts can be written to.
func (c *check) drafts(s Slots) {
	c.slots(s)
	c.that(s.DraftStride > 0, "Slots.DraftStride", "is 0")
	c.words("Slots.DraftCount", s.DraftCount, int(s.Active.Size/4))
}

// drafting requires an entry of each array a slot.
func (c *check) drafting(d Drafting, slots int) {
	c.words("Pairs", d.Pairs, slots)
	c.words("Base", d.Base, slots)
	c.words("Ahead", d.Ahead, slots)
}

// Validate requires an entry of every list a row, and of Next a token.
func (p DraftBegin) Validate() error {
	c := check{op: "DraftBegin"}
	tokens := c.committed(&p.Committed)
	c.drafting(p.Drafting, int(p.Slots.Active.Size/4))
	rows := p.Step.Count + p.Prefill.Count
	c.words("Following", p.Following, p.Prefill.Count)
	c.words("Next", p.Next, tokens)
	c.words("N", p.N, rows)
	c.words("Last", p.Last, rows)
	c.words("Left", p.Left, rows)
	return c.err
}

// Validate requires float32 logits and an entry of every list a row.
func (p DraftNext) Validate() error {
	c := check{op: "DraftNext"}
	c.layout("Logits", p.Logits)
	c.sameType("Logits", p.Logits, F32)
	c.drafts(p.Slots)
	c.drafting(p.Drafting, int(p.Slots.Active.Size/4))
	c.between("Index", p.Index, 0, p.Slots.DraftStride-1)
	rows := p.Logits.Rows
	c.words("Slot", p.Slot, rows)
	c.words("Last", p.Last, rows)
	c.words("Left", p.Left, rows)
	c.words("Pos", p.Pos, min(rows, 1))
	c.words("N", p.N, rows)
	c.words("Next", p.Next, rows)
	c.words("NextPos", p.NextPos, rows)
	return c.err
}

// Validate requires a history as long as the slots' sequences and a sensible range of lengths.
func (p DraftLookup) Validate() error {
	c := check{op: "DraftLookup"}
	c.committed(&p.Committed)
	c.that(p.HistoryStride > 0, "HistoryStride", "is not positive")
	c.words("History", p.History, int(p.Slots.Active.Size/4)*p.HistoryStride)
	c.between("MinMatch", p.MinMatch, 1, p.MaxMatch)
	return c.err
}
