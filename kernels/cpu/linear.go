package cpu

import "reprise/kernels"

// products is the matmul task with the memory around it.
type products struct {
	task    matmul
	pack    packTask
	single  [2]int32 // starts of one group
	zero    [1]int32 // experts of one group
	packed  []float32
	address []uintptr
}

// packTask copies rows of X, padded with zeros, to rows a stride apart.
type packTask struct {
	x      rows
	dst    []float32
	length int
	stride int
	each   int // rows a task
}

func (p *packTask) do(i, _ int) {
	for r := i * p.each; r < min((i+1)*p.each, p.x.count); r++ {
		dst := p.dst[r*p.stride:][:p.length]
		clear(dst[copy(dst, p.x.row(r)):])
	}
}

// Linear multiplies by a weight.
func (o *ops) Linear(l kernels.Linear) {
	o.enter("Linear")
	must(l.Validate())
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
	m.x = p.rows(o, x, x.count >= wideTokens)
	o.pool.parallel(m.tasks(), m)
}

// rows returns the addresses of the rows of x, packed where the tiles need it.
func (p *products) rows(o *ops, x rows, wide bool) []uintptr {
	p.address = grow(p.address, x.count)
	data, stride := x.data, x.stride
	if length := paddedLength(x.cols); wide || length != x.cols {
		stride = rowStride(length)
		p.packed = grow(p.packed, x.count*stride)
		data = p.packed
		parts, each := o.share(x.count, 1+(1<<14)/x.cols)
		p.pack = packTask{x, data, length, stride, each}
		o.pool.parallel(parts, &p.pack)
	}
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
