package engine

import (
	"fmt"
	"unsafe"

	"reprise/engine/sched"
	"reprise/engine/states"
	"reprise/kernels"
	"reprise/model"
	"reprise/sampler"
	"reprise/spec"
)

// geometry is what the memory of steps is sized by.
type geometry struct {
	seqs   int // step rows, and prefill rows
	tokens int // of a step, padding included
	rows   int // sampled rows
	coins  int // 0, or rows
	top    int // log probabilities a sampled row
}

// shared is the device memory that steps use one after another: the stream orders them.
type shared struct {
	in, out         kernels.Buffer // i32 blocks, same layout as the lanes' host blocks
	ids, pos, stepN kernels.Buffer
}

// lane is the host side of one step. There are two, used in turn: while the device works on one, the host reads or fills
// the other. A lane is written only when its ticket is done.
type lane struct {
	plan sched.Plan
	work *states.Work

	in   inputs
	out  outputs
	rows sampler.Rows

	batch  model.Batch
	begin  kernels.Begin
	commit kernels.Commit

	steps, prefills []row
	ticket          kernels.Ticket
	busy            bool
	upload          kernels.Program
	forward         kernels.Program
	finish          kernels.Program
	download        kernels.Program
	hidden          kernels.Mat // set by forward, on the device's goroutine
	omit            *omitting   // operations of a step that was captured without some; nil = all
	source          *lane       // whose forward computes this step: its own, or a captured one

	step    spec.Step // for the drafter, if it is to see this step
	drafts  bool
	shallow bool // one draft a row at most: memory is short
	depth   int  // most drafts a row proposes
	queued  bool // it was launched before the step before was done
	draft   kernels.Program
}

// row remembers which sequence a row of a lane was computed for.
type row struct {
	seq    *seq
	start  int // prefill: first token of the chunk
	n      int
	sample int // first sampled row
	scored int // prefill: sampled rows that score prompt tokens
	final  bool
}

// inputs is the block that the host fills and a step uploads whole.
type inputs struct {
	block []byte
	dev   kernels.Buffer

	stepSlot, want                         field // [seqs]
	prefSlot, prefN, prefStart, final      field // [seqs]
	prefScratch, prefStage                 field // [seqs], where states need scratch blocks
	prefIDs                                field // [tokens]
	following                              field // [seqs]
	draftSlot, draftWant                   field // [seqs] by row, step rows first
	rowToken, rowSlot, rowTarget, rowDepth field // [rows]
	coin                                   field // [coins] where a coin accepts the draft behind the row, the row; else -1
}

// outputs is where a step's results arrive.
type outputs struct {
	block              []byte
	accepted, finish   field   // [2*seqs]
	n                  []int32 // [seqs] tokens that step rows had
	token, rank, topID []int32
	logProb, topProb   []float32
}

// field is one i32 array of a block: the host's view and its place on the device.
type field struct {
	host []int32
	dev  kernels.Buffer
}

// part is the first n entries on the device.
func (f field) part(n int) kernels.Buffer { return f.dev.Slice(0, int64(n)*4) }

func (g geometry) inputWords() int  { return 11*g.seqs + g.tokens + 4*g.rows + g.coins }
func (g geometry) outputWords() int { return 5*g.seqs + 3*g.rows + 2*g.rows*g.top }

func newShared(dev kernels.Device, g geometry) (*shared, error) {
	s := &shared{}
	for _, a := range []struct {
		dst   *kernels.Buffer
		words int
	}{{&s.in, g.inputWords()}, {&s.out, 4 * g.seqs}, {&s.ids, g.tokens}, {&s.pos, g.tokens}, {&s.stepN, g.seqs}} {
		b, err := dev.Alloc(int64(a.words) * 4)
		if err != nil {
			return nil, fmt.Errorf("step buffers: %w", err)
		}
		*a.dst = b
	}
	return s, nil
}

func newLane(dev kernels.Device, g geometry, sh *shared) (*lane, error) {
	l := &lane{}
	var err error
	if l.in.block, err = dev.AllocHost(int64(g.inputWords()) * 4); err != nil {
		return nil, err
	}
	if l.out.block, err = dev.AllocHost(int64(g.outputWords()) * 4); err != nil {
		return nil, err
	}
	l.in.cut(g, sh.in)
	l.out.cut(g, sh.out)
	return l, nil
}

func (in *inputs) cut(g geometry, dev kernels.Buffer) {
	in.dev = dev
	c := cutter{host: words(in.block), dev: dev}
	for _, f := range []*field{&in.stepSlot, &in.want, &in.prefSlot, &in.prefN, &in.prefStart, &in.final, &in.prefScratch, &in.prefStage} {
		*f = c.cut(g.seqs)
	}
	in.prefIDs = c.cut(g.tokens)
	in.following, in.draftSlot, in.draftWant = c.cut(g.seqs), c.cut(g.seqs), c.cut(g.seqs)
	for _, f := range []*field{&in.rowToken, &in.rowSlot, &in.rowTarget, &in.rowDepth} {
		*f = c.cut(g.rows)
	}
	in.coin = c.cut(g.coins)
}

func (out *outputs) cut(g geometry, dev kernels.Buffer) {
	c := cutter{host: words(out.block), dev: dev}
	out.accepted, out.finish = c.cut(2*g.seqs), c.cut(2*g.seqs)
	out.n = c.host32(g.seqs)
	out.token, out.rank, out.topID = c.host32(g.rows), c.host32(g.rows), c.host32(g.rows*g.top)
	out.logProb, out.topProb = floats(c.host32(g.rows)), floats(c.host32(g.rows*g.top))
}

// cutter hands out consecutive parts of a block.
type cutter struct {
	host []int32
	dev  kernels.Buffer
	at   int
}

func (c *cutter) cut(n int) field {
	f := field{dev: c.dev.Slice(int64(c.at)*4, int64(n)*4)}
	f.host = c.host32(n)
	return f
}

func (c *cutter) host32(n int) []int32 {
	h := c.host[c.at : c.at+n : c.at+n]
	c.at += n
	return h
}

func words(b []byte) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func floats(w []int32) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(w))), len(w))
}

func bytesOf[T int32 | float32](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*4)
}
