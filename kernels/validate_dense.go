package kernels

// Validate requires Count entries of both lists.
func (p Scatter) Validate() error {
	c := check{op: "Scatter"}
	c.that(p.Count >= 0, "Count", "is negative")
	c.words("Index", p.Index, p.Count)
	c.words("Value", p.Value, p.Count)
	return c.err
}

// Validate requires drafts for T-1 tokens and outputs for every token of the batch.
func (p Begin) Validate() error {
	c := check{op: "Begin"}
	c.rows("Step", p.Step)
	c.rows("Prefill", p.Prefill)
	tokens := max(p.Step.First+p.Step.Tokens, p.Prefill.First+p.Prefill.Tokens)
	c.words("IDs", p.IDs, tokens)
	c.words("Pos", p.Pos, tokens)
	c.words("Want", p.Want, p.Step.Count)
	c.words("PrefillIDs", p.PrefillIDs, p.Prefill.Tokens)
	if p.Step.Empty() && p.Prefill.Empty() {
		return c.err
	}
	c.that(p.Step.Empty() || p.Step.T > 0, "Step", "packed rows")
	c.that(p.Prefill.T == 0, "Prefill", "padded rows")
	c.cursors(p.Cursors)
	c.slots(p.Slots)
	c.that(p.Step.T <= p.Slots.DraftStride+1, "Slots.DraftStride", "is below T-1")
	return c.err
}

// Validate requires Out as wide as the table and an id a row.
func (p Embed) Validate() error {
	c := check{op: "Embed"}
	c.layout("Out", p.Out)
	c.words("IDs", p.IDs, p.Out.Rows)
	if p.Table == nil {
		c.fail("Table", "is nil")
		return c.err
	}
	experts, _, cols := p.Table.Shape()
	c.that(experts == 1, "Table", "is a group of experts")
	c.mat("Out", p.Out, 0, cols)
	return c.err
}

// Validate requires X, Y and Add of one shape.
func (p Norm) Validate() error {
	c := check{op: "Norm"}
	c.layout("X", p.X)
	c.exact("Y", p.Y, p.X.Rows, p.X.Cols)
	if !p.Add.Nil() {
		c.exact("Add", p.Add, p.X.Rows, p.X.Cols)
	}
	c.words("Weight", p.Weight, p.X.Cols)
	c.that(p.Eps >= 0, "Eps", "is negative or NaN")
	return c.err
}

// Validate requires X [m, cols], Y [m, rows] for a weight [rows, cols].
func (p Linear) Validate() error {
	c := check{op: "Linear"}
	c.layout("X", p.X)
	c.layout("Y", p.Y)
	c.that(p.Y.Rows == p.X.Rows, "Y", "and X differ in rows")
	rows := p.Y.Cols
	if p.Activates() {
		rows = p.Kind.InWidth(rows)
		c.that(p.Kind <= ReLU2, "Kind", "is unknown")
		c.that(!p.Add, "Add", "is not possible with an activation")
		c.exact("Raw", p.Raw, p.X.Rows, rows)
	}
	if !p.NormW.Nil() {
		c.words("NormW", p.NormW, p.X.Cols)
		c.that(p.Eps >= 0, "Eps", "is negative or NaN")
		c.exact("Normed", p.Normed, p.X.Rows, p.X.Cols)
	}
	c.weight("W", p.W, 1, rows, p.X.Cols)
	return c.err
}

// Validate requires X as wide as the kind wants for Y.
func (p Activate) Validate() error {
	c := check{op: "Activate"}
	c.that(p.Kind <= ReLU2, "Kind", "is unknown")
	c.layout("Y", p.Y)
	c.exact("X", p.X, p.Y.Rows, p.Kind.InWidth(p.Y.Cols))
	return c.err
}

// Validate requires rows of one width and type and an index each.
func (p GatherRows) Validate() error {
	c := check{op: "GatherRows"}
	c.layout("X", p.X)
	c.mat("Y", p.Y, 0, p.X.Cols)
	c.sameType("Y", p.Y, p.X.DType)
	c.words("Index", p.Index, p.Y.Rows)
	return c.err
}

// Validate requires logits in float32, a possible choice of TopK and room for it.
func (p Route) Validate() error {
	c := check{op: "Route"}
	c.layout("Logits", p.Logits)
	c.sameType("Logits", p.Logits, F32)
	experts := p.Logits.Cols
	c.that(p.Score <= Sigmoid, "Score", "is unknown")
	if p.Groups > 1 {
		c.that(experts%p.Groups == 0, "Groups", "do not divide the experts")
		c.between("TopGroups", p.TopGroups, 1, p.Groups)
	}
	c.between("TopK", p.TopK, 1, p.eligible())
	c.optional("Bias", p.Bias, experts)
	c.words("IDs", p.IDs, p.Logits.Rows*p.TopK)
	c.words("Weights", p.Weights, p.Logits.Rows*p.TopK)
	return c.err
}

// eligible is the number of experts that the chosen groups have together.
func (p Route) eligible() int {
	if p.Groups <= 1 {
		return p.Logits.Cols
	}
	return p.Logits.Cols / p.Groups * p.TopGroups
}

// Validate requires up and down weights of the same experts that fit X, Out and each other.
func (p Experts) Validate() error {
	c := check{op: "Experts"}
	c.that(p.Act <= ReLU2, "Act", "is unknown")
	c.layout("X", p.X)
	c.layout("Out", p.Out)
	c.that(p.X.Rows == p.Out.Rows, "Out", "and X differ in rows")
	if p.Up == nil || p.Down == nil {
		c.fail("Up", "or Down is nil")
		return c.err
	}
	experts, _, inner := p.Down.Shape()
	c.weight("Down", p.Down, experts, p.Out.Cols, inner)
	c.weight("Up", p.Up, experts, p.Act.InWidth(inner), p.X.Cols)
	c.between("TopK", p.TopK, 1, experts)
	c.words("IDs", p.IDs, p.X.Rows*p.TopK)
	c.words("Weights", p.Weights, p.X.Rows*p.TopK)
	return c.err
}

// Validate requires X and Y of one shape and a gate of one column.
func (p AddGated) Validate() error {
	c := check{op: "AddGated"}
	c.layout("X", p.X)
	c.exact("Y", p.Y, p.X.Rows, p.X.Cols)
	if !p.Gate.Nil() {
		c.exact("Gate", p.Gate, p.X.Rows, 1)
	}
	return c.err
}
