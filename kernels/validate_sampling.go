package kernels

// SlotParamsBytes is the size of SlotParams on a device.
const SlotParamsBytes = 96

// Validate requires float32 logits as wide as the vocabulary and an entry of every list a row.
func (p Sample) Validate() error {
	c := check{op: "Sample"}
	c.layout("Logits", p.Logits)
	c.sameType("Logits", p.Logits, F32)
	c.slots(p.Slots)
	c.tables(p.Tables, int(p.Slots.Active.Size/4))
	rows := p.Logits.Rows
	c.that(p.Logits.Cols == p.Tables.Vocab, "Logits", "is not as wide as Tables.Vocab")
	c.between("TopN", p.TopN, 0, p.Logits.Cols)
	c.words("Token", p.Token, rows)
	c.words("Slot", p.Slot, rows)
	c.words("Target", p.Target, rows)
	c.words("Depth", p.Depth, rows)
	c.words("Out", p.Out, rows)
	c.words("IDs", p.IDs, min(rows, 1))
	c.words("Pos", p.Pos, min(rows, 1))
	if p.TopN > 0 {
		c.words("LogProb", p.LogProb, rows)
		c.words("Rank", p.Rank, rows)
		c.words("TopID", p.TopID, rows*p.TopN)
		c.words("TopProb", p.TopProb, rows*p.TopN)
	}
	return c.err
}

// Validate requires a sample for every token of the step rows and outputs for every row.
func (p Commit) Validate() error {
	c := check{op: "Commit"}
	c.rows("Step", p.Step)
	c.rows("Prefill", p.Prefill)
	c.words("Accepted", p.Accepted, p.Step.Count+p.Prefill.Count)
	c.words("Finish", p.Finish, p.Step.Count+p.Prefill.Count)
	if p.Step.Empty() && p.Prefill.Empty() {
		return c.err
	}
	c.that(p.Step.Empty() || p.Step.T > 0, "Step", "packed rows")
	c.that(p.Prefill.T == 0, "Prefill", "padded rows")
	c.window(p.Window, p.Step.T)
	c.cursors(p.Cursors)
	c.slots(p.Slots)
	c.tables(p.Tables, int(p.Slots.Active.Size/4))
	c.that(p.Step.T <= p.Slots.DraftStride+1, "Slots.DraftStride", "is below T-1")
	c.that(p.SampleFirst >= 0, "SampleFirst", "is negative")
	c.words("Sampled", p.Sampled, p.SampleFirst+p.Step.Tokens)
	c.words("Final", p.Final, p.Prefill.Count)
	c.words("Pos", p.Pos, max(p.Step.First+p.Step.Tokens, p.Prefill.First+p.Prefill.Tokens))
	return c.err
}
