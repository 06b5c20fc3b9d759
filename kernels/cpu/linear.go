package cpu

import (
	"fmt"

	"reprise/kernels"
)

// products is the matmul task with the memory around it.
type products struct {
	task    matmul
	pack    packTask
	single  [2]int32 // starts of one group
	zero    [1]int32 // experts of one group
	packed  []float32
	address []uintptr
}

// packTask copies rows of X to rows a stride apart, swizzled or padded with zeros.
type packTask struct {
	x       rows
	dst     []float32
	length  int
	stride  int
	swizzle bool
	each    int // rows a task
}

func (p *packTask) do(i, _ int) {
	for r := i * p.each; r < min((i+1)*p.each, p.x.count); r++ {
		dst := p.dst[r*p.stride:][:p.length]
		if p.swizzle {
			swizzle(dst, p.x.row(r))
			continue
		}
		clear(dst[copy(dst, p.x.row(r)):])
	}
}

// Linear multiplies by a weight.
func (o *ops) Linear(l kernels.Linear) {
	o.enter("Linear")
	must(l.Validate())
	if !l.Whole() {
		l.Apart(o)
		return
	}
	x, y, w := rowsOf(l.X), rowsOf(l.Y), l.W.(*weight)
	if x.count == 0 {
		return
	}
	p := &o.products
	p.single[1] = int32(x.count)
	m := &p.task
	m.starts, m.experts = p.single[:], p.zero[:]
	m.y, m.add = y, l.Add
	m.prepare(w, o.pool.size(), x.count)
	m.x = o.rowsFor(w, x)
	o.pool.parallel(m.tasks(), m)
}

// rowsFor returns the addresses of the rows of x as tiles of w want them: swizzled, padded to whole lanes and, where
// many tokens share a tile, spaced for the cache. They are valid until the next call.
func (o *ops) rowsFor(w *weight, x rows) []uintptr {
	p := &o.products
	data, stride, length := x.data, x.stride, paddedLength(x.cols)
	swizzled := w.direct() && w.dtype == kernels.BF16
	if swizzled || length != x.cols || x.count > fewTokens {
		stride = rowStride(length)
		p.packed = grow(p.packed, x.count*stride)
		data = p.packed
		parts, each := o.share(x.count, 1+elementsATask/x.cols)
		p.pack = packTask{x, data, length, stride, swizzled, each}
		o.pool.parallel(parts, &p.pack)
	}
	p.address = grow(p.address, x.count)
	for i := range p.address {
		p.address[i] = address(data) + uintptr(4*stride*i)
	}
	return p.address
}

// grow is s with length n and undefined content.
func grow[E any](s []E, n int) []E {
	if cap(s) < n {
		return make([]E, n)
	}
	return s[:n]
}

// must raises a violation of an operation's contract.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// fail raises a broken invariant. It is called behind its condition: arguments are boxed only then.
func fail(format string, args ...any) { panic(fmt.Sprintf("cpu: "+format, args...)) }
