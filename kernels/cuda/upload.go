//go:build cuda

package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"reprise/kernels/cuda/driver"
)

const (
	pieceBytes  = 1 << 20 // of pinned memory that is filled and copied as one
	mostWorkers = 16      // goroutines that fill pieces: about what saturates a PCIe 5 link
)

// packer copies weights to the device: workers read pieces side by side, and the device copies a worker's piece while
// the worker fills its other one.
type packer struct {
	gpu     *driver.GPU
	stream  driver.Stream
	workers []packWorker
}

// packWorker has two pieces of pinned memory. sent is when the device has copied what was last in them.
type packWorker struct {
	pinned [2][]byte
	sent   [2]driver.Event
	turn   int
}

// piece is equal rows of host memory and where they go, stride bytes apart. They fit pieceBytes.
type piece struct {
	dst    uintptr
	stride int64
	rows   int
	data   []byte
}

// pieces cuts rows that lie one behind the other into pieces; stride <= pieceBytes.
func pieces(list []piece, dst uintptr, stride int64, data []byte, rows int) []piece {
	size, most := len(data)/rows, int(pieceBytes/stride)
	for rows > 0 {
		n := min(rows, most)
		list = append(list, piece{dst, stride, n, data[:n*size]})
		dst, data, rows = dst+uintptr(int64(n)*stride), data[n*size:], rows-n
	}
	return list
}

// fill writes the rows to b as the device gets them, padded with zeros, and returns that part of b.
func (p *piece) fill(b []byte) []byte {
	b = b[:int64(p.rows)*p.stride]
	size := int64(len(p.data) / p.rows)
	if size == p.stride {
		copy(b, p.data)
		return b
	}
	for i := range int64(p.rows) {
		row := b[i*p.stride : (i+1)*p.stride]
		clear(row[copy(row, p.data[i*size:(i+1)*size]):])
	}
	return b
}

// copy enqueues the copies of all pieces. Host memory has been read when it returns.
func (k *packer) copy(list []piece) error {
	n := min(len(list), mostWorkers, runtime.GOMAXPROCS(0))
	for len(k.workers) < n {
		w := packWorker{}
		err := w.open()
		k.workers = append(k.workers, w) // to be closed, whatever it lacks
		if err != nil {
			return err
		}
	}
	var next atomic.Int64
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = k.workers[i].work(k, list, &next) })
	}
	all.Wait()
	return cmp.Or(errs...) // one of them: a file that ends early fails them all
}

// work takes pieces until none is left. A mapped file that has become shorter is an error.
func (w *packWorker) work(k *packer, list []piece, next *atomic.Int64) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("the file cannot be read to its end; was it changed? (%v)", fault)
		}
	}()
	if err := k.gpu.Use(); err != nil {
		return err
	}
	for i := next.Add(1) - 1; i < int64(len(list)); i = next.Add(1) - 1 {
		at := w.turn
		w.turn = 1 - at
		if err := w.sent[at].Synchronize(); err != nil {
			return err
		}
		p := &list[i]
		resident(p.data)
		if err := k.stream.Upload(p.dst, p.fill(w.pinned[at])); err != nil {
			return err
		}
		if err := k.stream.Record(w.sent[at]); err != nil {
			return err
		}
	}
	return nil
}

// resident has the whole pages of b read and mapped by one call, where the kernel can (from 5.14): a disk then sees large
// reads instead of a fault every few pages, which was a fifth to a quarter faster with cold files.
func resident(b []byte) {
	page := os.Getpagesize()
	skip := int(-address(b) & uintptr(page-1))
	if n := (len(b) - skip) &^ (page - 1); n > 0 {
		_ = unix.Madvise(b[skip:skip+n], unix.MADV_POPULATE_READ)
	}
}

func (w *packWorker) open() (err error) {
	for i := range w.pinned {
		if w.pinned[i], err = driver.AllocHost(pieceBytes); err != nil {
			return err
		}
		if w.sent[i], err = driver.NewEvent(false); err != nil {
			return err
		}
	}
	return nil
}

// taken is the bytes of pinned memory.
func (k *packer) taken() (bytes int64) {
	for _, w := range k.workers {
		for _, b := range w.pinned {
			bytes += int64(len(b))
		}
	}
	return bytes
}

// close frees what the workers took, which a later copy takes again; the stream has nothing to do any more.
func (k *packer) close() error {
	var list []error
	for _, w := range k.workers {
		for i := range w.pinned {
			if w.pinned[i] != nil {
				list = append(list, driver.FreeHost(w.pinned[i]))
			}
			if w.sent[i] != (driver.Event{}) {
				list = append(list, w.sent[i].Destroy())
			}
		}
	}
	k.workers = nil
	return errors.Join(list...)
}
