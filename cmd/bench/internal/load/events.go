package load

import (
	"bytes"
	"fmt"
	"io"
	"time"
)

// maxEvent bounds a line of a stream.
const maxEvent = 4 << 20

// events reads server-sent events, each of one data line as all OpenAI servers send them. Comments and other fields are
// passed over.
type events struct {
	from io.Reader
	now  func() time.Time
	buf  []byte
	// buf[start:end] is read and not yet given out; buf[start:searched] has no line end
	start, searched, end int
	at                   time.Time // when the read returned that brought the event
	failed               error     // what the last read said
}

// reset begins a new stream and keeps the buffer.
func (e *events) reset(from io.Reader) {
	*e = events{from: from, now: e.now, buf: e.buf}
	if e.buf == nil {
		e.buf = make([]byte, 4<<10)
	}
}

var dataField = []byte("data:")

// next returns the data of the next event; it is valid until the call after. io.EOF at the end of the stream.
func (e *events) next() ([]byte, error) {
	for {
		line, err := e.line()
		if err != nil {
			return nil, err
		}
		if data, ok := bytes.CutPrefix(line, dataField); ok {
			return bytes.TrimSpace(data), nil
		}
	}
}

func (e *events) line() ([]byte, error) {
	for {
		if i := bytes.IndexByte(e.buf[e.searched:e.end], '\n'); i >= 0 {
			line := e.buf[e.start : e.searched+i]
			e.start = e.searched + i + 1
			e.searched = e.start
			return line, nil
		}
		e.searched = e.end
		if e.failed != nil {
			return e.rest()
		}
		if err := e.fill(); err != nil {
			return nil, err
		}
	}
}

// rest is a last line without an end, then the error.
func (e *events) rest() ([]byte, error) {
	if line := e.buf[e.start:e.end]; len(line) > 0 && e.failed == io.EOF {
		e.start, e.searched = e.end, e.end
		return line, nil
	}
	return nil, e.failed
}

func (e *events) fill() error {
	if e.start > 0 {
		copy(e.buf, e.buf[e.start:e.end])
		e.searched, e.end, e.start = e.searched-e.start, e.end-e.start, 0
	}
	if e.end == len(e.buf) {
		if len(e.buf) >= maxEvent {
			return &badStream{fmt.Sprintf("an event of more than %d bytes", maxEvent)}
		}
		e.buf = append(e.buf, make([]byte, len(e.buf))...)
	}
	n, err := e.from.Read(e.buf[e.end:])
	e.at = e.now()
	e.end += n
	e.failed = err
	return nil
}

// badStream is an answer that breaks the protocol.
type badStream struct{ problem string }

func (b *badStream) Error() string { return b.problem }
