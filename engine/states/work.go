package states

import (
	"encoding/binary"

	"reprise/kernels"
)

// kind of a command.
type kind uint8

const (
	zeroBlock kind = iota
	clearTable
	setCursor
	saveBlock
	loadBlock
	saveScratch
	loadScratch
	saveTail
	loadTail
	saveExtra
	loadExtra
	savePage
	loadPage
	copyPage
	scatterTable // a: index in chunks
	scatterDst
)

const (
	tableTarget = scatterTable
	dstTarget   = scatterDst
)

// scatterMax is the entries of one scatter; a chunk of its host memory holds as many indices, then as many values.
const (
	scatterMax   = 256
	scatterBytes = 2 * scatterMax * 4
)

// command is one piece of recorded device work.
type command struct {
	kind   kind
	a, b   int32 // slot, block, scratch block or page; copyPage: from, to; scatters: chunk, count
	cursor kernels.Cursor
	host   []byte
}

// Work is recorded device work: a program. After Submit it must not be recorded into or Reset until a later ticket is
// done, so that an engine keeps one for each step in flight and one more.
type Work struct {
	states   *States
	commands []command
	chunks   [][]byte // AllocHost memory for scatters
	used     int      // chunks
}

var _ kernels.Program = (*Work)(nil)

// NewWork makes an empty Work.
func (s *States) NewWork() *Work { return &Work{states: s} }

// Empty reports whether there is nothing to do.
func (w *Work) Empty() bool { return len(w.commands) == 0 }

// Reset empties w for recording anew.
func (w *Work) Reset() {
	clear(w.commands) // host memory must not be kept alive
	w.commands, w.used = w.commands[:0], 0
}

func (w *Work) add(c command) { w.commands = append(w.commands, c) }

// scatter records one table entry. Entries of one scatter never name the same place twice: a row only grows until it is
// cleared, and clearing ends the scatter.
func (w *Work) scatter(target kind, index, value int32) {
	last := len(w.commands) - 1
	if last < 0 || w.commands[last].kind != target || w.commands[last].b == scatterMax {
		w.add(command{kind: target, a: int32(w.chunk())})
		last++
	}
	c := &w.commands[last]
	b := w.chunks[c.a]
	binary.LittleEndian.PutUint32(b[4*c.b:], uint32(index))
	binary.LittleEndian.PutUint32(b[4*(scatterMax+c.b):], uint32(value))
	c.b++
}

// chunk is the next unused piece of scatter memory.
func (w *Work) chunk() int {
	if w.used == len(w.chunks) {
		b, err := w.states.dev.AllocHost(scatterBytes)
		if err != nil {
			panic(err) // 2 KB of host memory
		}
		w.chunks = append(w.chunks, b)
	}
	w.used++
	return w.used - 1
}

// Run enqueues the work in the order of recording.
func (w *Work) Run(o kernels.Ops) {
	for i := range w.commands {
		w.states.run(o, w, &w.commands[i])
	}
}

func (s *States) run(o kernels.Ops, w *Work, c *command) {
	a, b := int(c.a), int(c.b)
	switch c.kind {
	case zeroBlock:
		s.ssm.ZeroBlock(o, a)
	case clearTable:
		size := int64(s.stride) * 4
		o.Zero(s.kv.Table().Slice(int64(a)*size, size))
	case setCursor:
		s.ssm.SetCursor(o, a, c.cursor)
	case saveBlock:
		s.ssm.SaveBlock(o, a, c.host)
	case loadBlock:
		s.ssm.LoadBlock(o, c.host, a)
	case saveScratch:
		s.ssm.SaveScratch(o, a, c.host)
	case loadScratch:
		s.ssm.LoadScratch(o, c.host, a)
	case saveTail:
		s.ssm.SaveTail(o, a, c.cursor, c.host)
	case loadTail:
		s.ssm.LoadTail(o, a, c.cursor, c.host)
	case saveExtra:
		s.extra.Save(o, a, c.host)
	case loadExtra:
		s.extra.Load(o, a, c.host)
	case savePage:
		s.kv.SavePage(o, a, c.host)
	case loadPage:
		s.kv.LoadPage(o, c.host, a)
	case copyPage:
		s.kv.CopyPage(o, a, b)
	case scatterTable:
		s.scatter(o, s.kv.Table(), w.chunks[a], b)
	case scatterDst:
		s.scatter(o, s.ssm.Cursors().Dst, w.chunks[a], b)
	}
}

func (s *States) scatter(o kernels.Ops, dst kernels.Buffer, chunk []byte, count int) {
	o.Upload(s.staging, chunk)
	size := 4 * int64(count)
	o.Scatter(kernels.Scatter{Dst: dst, Index: s.staging.Slice(0, size), Value: s.staging.Slice(scatterBytes/2, size), Count: count})
}
