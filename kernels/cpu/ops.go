package cpu

import "reprise/kernels"

// ops implements kernels.Ops. It is used by the stream goroutine alone. Each operation has its task as a field, so
// that handing it to the pool does not allocate; scratch memory grows on first use and is kept.
type ops struct {
	pool    *pool
	current string    // operation that runs, for faults
	scratch []scratch // by worker

	products   products
	mixture    mixture
	byRow      rowTask
	embedding  embedding
	norm       norm
	activation activation
	gathering  gathering
	gatedSum   gatedSum
	routing    routing
	committing committing
	writing    writing
	attention  attention
	sampling   sampling
	drafting   draftNext
	looking    draftLookup
	ssm        ssmTasks

	attendTile    attendTile
	attendSegment attendSegment
	attendMerge   attendMerge

	// Methods of the above, bound once.
	embedRow, normRow, activatePiece, gatherRow, addRow, routeRow, combineRow, writeRow, sampleRow, draftRow, lookupRow func(i, worker int)
}

var _ kernels.Ops = (*ops)(nil)

func newOps(p *pool) *ops {
	o := &ops{pool: p, scratch: make([]scratch, p.size())}
	o.products.task.scratch, o.attention.scratch = o.scratch, o.scratch
	o.embedRow, o.normRow, o.activatePiece = o.embedding.row, o.norm.row, o.activation.piece
	o.gatherRow, o.addRow, o.routeRow, o.combineRow = o.gathering.row, o.gatedSum.row, o.routing.row, o.mixture.row
	o.writeRow, o.sampleRow = o.writing.row, o.sampling.row
	o.draftRow, o.lookupRow = o.drafting.row, o.looking.row
	o.attendTile, o.attendSegment, o.attendMerge = attendTile{&o.attention}, attendSegment{&o.attention}, attendMerge{&o.attention}
	return o
}

// enter names the operation that starts.
func (o *ops) enter(op string) { o.current = op }

// scratch is one worker's memory; what is in it is undefined when a task starts.
type scratch struct {
	floats []float32
	tile   dotTile
	lines  lines
}

// take returns n floats of undefined content.
func (s *scratch) take(n int) []float32 {
	s.floats = grow(s.floats, n)
	return s.floats
}

// share cuts n items into parts of at least least items for the workers: the number of parts and items a part.
func (o *ops) share(n, least int) (parts, each int) {
	if n <= 0 {
		return 0, 0
	}
	each = max(least, (n+4*o.pool.size()-1)/(4*o.pool.size()))
	return (n + each - 1) / each, each
}
