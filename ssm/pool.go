package ssm

import (
	"fmt"

	"reprise/kernels"
)

// Pool is the recurrent state of all sequences on one device. It moves bytes and knows where they lie; which slot and
// which block belong to whom is its caller's business. Its methods that take an Ops enqueue device work and are
// called from inside programs, in stream order.
type Pool struct {
	config PoolConfig
	layout

	blocks, scratch, rings kernels.Buffer
	states                 []kernels.State
	cursors                kernels.Cursors
	staging                staging
}

// NewPool allocates a pool, zeroed. A state precision that dev does not take is kernels.ErrUnsupported.
func NewPool(dev kernels.Device, c PoolConfig) (*Pool, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := dev.StateSupport(c.State); err != nil {
		return nil, fmt.Errorf("ssm: --mamba-ssm-cache-dtype, --ssm-read-dtype: %w", err)
	}
	p := &Pool{config: c, layout: c.layout()}
	var err error
	if p.blocks, err = dev.Alloc(p.blockBytes * int64(c.Blocks)); err != nil {
		return nil, fmt.Errorf("ssm: %d state blocks: %w", c.Blocks, err)
	}
	if c.Scratch > 0 {
		if p.scratch, err = dev.Alloc(p.scratchBytes * int64(c.Scratch)); err != nil {
			return nil, fmt.Errorf("ssm: %d scratch blocks: %w", c.Scratch, err)
		}
	}
	if p.rings, err = dev.Alloc(p.slotBytes * int64(c.Slots)); err != nil {
		return nil, fmt.Errorf("ssm: replay buffers of %d slots: %w", c.Slots, err)
	}
	if err := p.allocCursors(dev); err != nil {
		return nil, fmt.Errorf("ssm: cursors of %d slots: %w", c.Slots, err)
	}
	for i, l := range p.layers {
		p.states = append(p.states, p.state(i, l))
	}
	return p, nil
}

func (p *Pool) allocCursors(dev kernels.Device) error {
	size := int64(p.config.Slots) * 4
	all, err := dev.Alloc(4 * size)
	if err != nil {
		return err
	}
	p.cursors = kernels.Cursors{
		Origin: all.Slice(0, size), H: all.Slice(size, size), Src: all.Slice(2*size, size), Dst: all.Slice(3*size, size),
	}
	p.staging, err = newStaging(dev, p.config.Slots)
	return err
}

func (p *Pool) state(i int, l layer) kernels.State {
	s := kernels.State{
		Blocks:      p.blocks.Slice(l.block, p.blocks.Size-l.block),
		BlockStride: p.blockBytes,
		Rings:       p.rings.Slice(l.slot, p.rings.Size-l.slot),
		RingStride:  p.slotBytes,
		Layout:      l.ring,
		Window:      p.config.Window,
		Precision:   p.config.State,
		Layer:       i,
	}
	if p.config.Scratch > 0 {
		s.Scratch, s.ScratchStride = p.scratch.Slice(l.scratch, p.scratch.Size-l.scratch), p.scratchBytes
	}
	return s
}

// Layers is the state of every SSM layer, in model order.
func (p *Pool) Layers() []kernels.State { return p.states }

// Cursors is the device arrays of all slots.
func (p *Pool) Cursors() kernels.Cursors { return p.cursors }

// BlockBytes is the size of one block, for SaveBlock and LoadBlock.
func (p *Pool) BlockBytes() int64 { return p.blockBytes }

func (p *Pool) block(b int) kernels.Buffer {
	if b < 0 || b >= p.config.Blocks {
		panic(fmt.Sprintf("ssm: state block %d of %d", b, p.config.Blocks))
	}
	return p.blocks.Slice(int64(b)*p.blockBytes, p.blockBytes)
}

// ZeroBlock makes a block the state before any token.
func (p *Pool) ZeroBlock(o kernels.Ops, block int) { o.Zero(p.block(block)) }

// SaveBlock copies a block to the host; dst has BlockBytes.
func (p *Pool) SaveBlock(o kernels.Ops, block int, dst []byte) { o.Download(dst, p.block(block)) }

// LoadBlock is the inverse of SaveBlock; src must not change until the copy is done.
func (p *Pool) LoadBlock(o kernels.Ops, src []byte, block int) { o.Upload(p.block(block), src) }

// CopyBlock copies block src to block dst.
func (p *Pool) CopyBlock(o kernels.Ops, src, dst int) { o.Copy(p.block(dst), p.block(src)) }

func (p *Pool) scratchBlock(b int) kernels.Buffer {
	if b < 0 || b >= p.config.Scratch {
		panic(fmt.Sprintf("ssm: scratch block %d of %d", b, p.config.Scratch))
	}
	return p.scratch.Slice(int64(b)*p.scratchBytes, p.scratchBytes)
}

// ScratchBytes is the size of one scratch block, for SaveScratch and LoadScratch.
func (p *Pool) ScratchBytes() int64 { return p.scratchBytes }

// SaveScratch copies a scratch block, the state of an unfinished prefill, to the host; dst has ScratchBytes.
func (p *Pool) SaveScratch(o kernels.Ops, block int, dst []byte) {
	o.Download(dst, p.scratchBlock(block))
}

// LoadScratch is the inverse of SaveScratch; src must not change until the copy is done.
func (p *Pool) LoadScratch(o kernels.Ops, src []byte, block int) {
	o.Upload(p.scratchBlock(block), src)
}
