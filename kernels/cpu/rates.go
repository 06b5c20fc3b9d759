package cpu

import (
	"time"

	"reprise/kernels"
)

// Sizes of the probe: memory far beyond any cache, and arithmetic for some tens of milliseconds a worker.
const (
	probeBytes = 1 << 30
	probeBlock = 1 << 20 // bytes of one task
	probeLoops = 1 << 14 // of fmaLoop a task
	probeTasks = 64      // a worker
)

// MeasuredRates is what all cores reach together: bytes a second of a read-only sum over 1 GB, and floating-point
// operations a second (a multiply-add is two) of a loop of independent multiply-adds in registers. Best of three.
func (d *Device) MeasuredRates() (read, flops float64, err error) {
	b, err := d.Alloc(probeBytes)
	if err != nil {
		return 0, 0, err
	}
	defer d.Free(b)
	p := &probe{memory: f32(b), sums: make([]float32, 64*(len(d.pool.helpers)+1))}
	d.Submit(kernels.ProgramFunc(func(kernels.Ops) {
		for i := range p.memory {
			p.memory[i] = float32(i & 7) // resident, and not zeros
		}
		tasks := probeTasks * (len(d.pool.helpers) + 1)
		for range 3 {
			p.kind = probeRead
			read = max(read, probeBytes/p.timed(d.pool, probeBytes/probeBlock))
			p.kind = probeFMA
			flops = max(flops, float64(tasks*probeLoops*fmaLoopFlops())/p.timed(d.pool, tasks))
		}
	}))
	return read, flops, d.Wait(d.Mark())
}

type probeKind int

const (
	probeRead probeKind = iota
	probeFMA
)

// probe is the task behind MeasuredRates; sums keeps results alive, a cache line a worker.
type probe struct {
	kind   probeKind
	memory []float32
	sums   []float32
}

func (p *probe) timed(pool *pool, n int) float64 {
	begin := time.Now()
	pool.parallel(n, p)
	return time.Since(begin).Seconds()
}

func (p *probe) do(i, worker int) {
	if p.kind == probeFMA {
		p.sums[64*worker] += fmaLoop(probeLoops)
		return
	}
	const n = probeBlock / 4
	p.sums[64*worker] += sum(p.memory[i*n : (i+1)*n])
}
