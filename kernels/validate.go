package kernels

import "fmt"

// check collects the first violation of one parameter struct. Its methods take concrete types and compare only, so a
// struct without a violation costs no allocation.
type check struct {
	op  string
	err error
}

func (c *check) fail(field, format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("kernels: %s: %s: %s", c.op, field, fmt.Sprintf(format, args...))
	}
}

// that records that the field breaks the stated rule.
func (c *check) that(ok bool, field, rule string) {
	if !ok {
		c.fail(field, "%s", rule)
	}
}

// between requires low <= n <= high.
func (c *check) between(field string, n, low, high int) {
	if n < low || n > high {
		c.fail(field, "is %d, want %d..%d", n, low, high)
	}
}

// buffer requires at least n elements of size bytes each, aligned to their size.
func (c *check) buffer(field string, b Buffer, n, size int) {
	if b.Size < int64(n)*int64(size) {
		c.fail(field, "has %d bytes, want %d elements of %d bytes", b.Size, n, size)
	}
	if n > 0 && size > 0 && int(b.Addr)%min(size, 8) != 0 {
		c.fail(field, "address %#x is not aligned to %d bytes", b.Addr, min(size, 8))
	}
}

// words requires at least n four-byte elements.
func (c *check) words(field string, b Buffer, n int) { c.buffer(field, b, n, 4) }

// optional is words for a buffer that may be absent.
func (c *check) optional(field string, b Buffer, n int) {
	if !b.Nil() {
		c.words(field, b, n)
	}
}

// mat requires at least rows rows of exactly cols floating-point columns that lie inside the buffer.
func (c *check) mat(field string, m Mat, rows, cols int) {
	if m.Rows < rows || m.Cols != cols {
		c.fail(field, "is [%d, %d], want [>=%d, %d]", m.Rows, m.Cols, rows, cols)
		return
	}
	c.layout(field, m)
}

// exact is mat with the number of rows given exactly.
func (c *check) exact(field string, m Mat, rows, cols int) {
	if m.Rows != rows {
		c.fail(field, "is [%d, %d], want [%d, %d]", m.Rows, m.Cols, rows, cols)
		return
	}
	c.mat(field, m, rows, cols)
}

// layout requires that m is a float matrix inside its buffer.
func (c *check) layout(field string, m Mat) {
	if !m.DType.Float() {
		c.fail(field, "holds %s, want a floating-point type", m.DType)
		return
	}
	if m.Rows < 0 || m.Cols <= 0 {
		c.fail(field, "is [%d, %d]", m.Rows, m.Cols)
		return
	}
	if m.Rows == 0 {
		return
	}
	if m.Stride < m.Cols {
		c.fail(field, "stride %d of %d columns", m.Stride, m.Cols)
		return
	}
	c.buffer(field, m.Buf, (m.Rows-1)*m.Stride+m.Cols, m.DType.Size())
}

// sameType requires that two matrices hold the same type.
func (c *check) sameType(field string, m Mat, t DType) {
	if m.DType != t {
		c.fail(field, "holds %s, want %s", m.DType, t)
	}
}

// weight requires a packed weight of the given shape.
func (c *check) weight(field string, w Weight, experts, rows, cols int) {
	if w == nil {
		c.fail(field, "is nil")
		return
	}
	if e, r, k := w.Shape(); e != experts || r != rows || k != cols {
		c.fail(field, "is [%d, %d, %d], want [%d, %d, %d]", e, r, k, experts, rows, cols)
	}
}

// rows requires well-formed rows.
func (c *check) rows(field string, r Rows) {
	if r.Count < 0 || r.First < 0 || r.Tokens < 0 || r.T < 0 {
		c.fail(field, "Count %d, First %d, Tokens %d, T %d: negative", r.Count, r.First, r.Tokens, r.T)
		return
	}
	if r.Empty() {
		c.that(r.Tokens == 0, field, "no rows but tokens")
		return
	}
	if r.T > 0 && (r.Tokens != r.Count*r.T || r.MaxLen != r.T) {
		c.fail(field, "Tokens %d, MaxLen %d of %d step rows of T %d", r.Tokens, r.MaxLen, r.Count, r.T)
	}
	if r.T == 0 {
		c.that(r.MaxLen >= 0, "Rows.MaxLen", "is negative")
		c.words("Rows.Start", r.Start, r.Count)
	}
	c.words("Rows.Slot", r.Slot, r.Count)
	c.words("Rows.N", r.N, r.Count)
}

// cursors requires four arrays of one length.
func (c *check) cursors(s Cursors) {
	n := int(s.Origin.Size / 4)
	c.that(n > 0, "Cursors.Origin", "is empty")
	c.words("Cursors.Origin", s.Origin, n)
	c.words("Cursors.H", s.H, n)
	c.words("Cursors.Src", s.Src, n)
	c.words("Cursors.Dst", s.Dst, n)
}

// window requires 1 <= T <= L and that step rows of t tokens fit.
func (c *check) window(w Window, t int) {
	if w.T < 1 || w.T > w.L {
		c.fail("Window", "T %d, L %d: want 1 <= T <= L", w.T, w.L)
		return
	}
	if t > w.T {
		c.fail("Rows.T", "is %d, the window takes %d a step", t, w.T)
	}
}

// slots requires per-slot arrays of one length.
func (c *check) slots(s Slots) {
	n := int(s.Active.Size / 4)
	c.that(n > 0, "Slots.Active", "is empty")
	c.that(s.DraftStride >= 0 && s.MaxStops >= 0, "Slots", "negative DraftStride or MaxStops")
	c.words("Slots.Active", s.Active, n)
	c.words("Slots.Last", s.Last, n)
	c.words("Slots.Drafts", s.Drafts, n*s.DraftStride)
	c.optional("Slots.DraftCount", s.DraftCount, n)
	c.buffer("Slots.Params", s.Params, n, SlotParamsBytes)
	c.words("Slots.Stops", s.Stops, n*s.MaxStops)
}

// tables requires that the sampler's tables that are present hold n slots.
func (c *check) tables(t SlotTables, n int) {
	c.that(t.Vocab > 0 && t.MaxBias >= 0, "Tables", "Vocab <= 0 or negative MaxBias")
	c.optional("Tables.Counts", t.Counts, n*t.Vocab)
	c.optional("Tables.Seen", t.Seen, n*t.MaskWords())
	c.optional("Tables.Allowed", t.Allowed, n*t.MaskWords())
	c.optional("Tables.BiasID", t.BiasID, n*t.MaxBias)
	c.optional("Tables.Bias", t.Bias, n*t.MaxBias)
}
