package attention

import (
	"fmt"
	"math"
	"math/rand/v2"

	"reprise/kernels"
)

// PoolConfig sizes a pool. Slots and Pages include the null one.
type PoolConfig struct {
	Layers, MTPLayers int
	KVHeads, HeadDim  int
	DType             kernels.DType // F32, BF16 or F8E4M3
	PageTokens, Pages int
	Slots             int
	MaxLen            int // tokens of the longest sequence
}

// Validate reports settings that no pool can have.
func (c PoolConfig) Validate() error {
	switch {
	case c.Layers < 0 || c.MTPLayers < 0:
		return fmt.Errorf("attention pool: %d layers, %d MTP layers", c.Layers, c.MTPLayers)
	case c.Layers+c.MTPLayers > 0 && (c.KVHeads < 1 || c.HeadDim < 1):
		return fmt.Errorf("attention pool: %d heads of %d", c.KVHeads, c.HeadDim)
	case c.DType != kernels.F32 && c.DType != kernels.BF16 && c.DType != kernels.F8E4M3:
		return fmt.Errorf("attention pool: a cache of %v is not supported", c.DType)
	case c.PageTokens < 1 || c.MaxLen < 1:
		return fmt.Errorf("attention pool: pages of %d tokens, sequences of %d", c.PageTokens, c.MaxLen)
	case c.Slots < 2 || c.Pages < 2:
		return fmt.Errorf("attention pool: %d slots and %d pages, of which one each is null", c.Slots, c.Pages)
	case int64(c.Slots)*int64(c.TableStride()) > math.MaxInt32: // its entries are written by 32-bit indices
		return fmt.Errorf("attention pool: a table of %d slots x %d pages has more than 2^31 - 1 entries: take larger pages, shorter or fewer sequences", c.Slots, c.TableStride())
	}
	return nil
}

// TableStride is the pages of the longest sequence.
func (c PoolConfig) TableStride() int { return (c.MaxLen + c.PageTokens - 1) / c.PageTokens }

// PageBytes is one page of all layers.
func (c PoolConfig) PageBytes() int64 { return int64(c.Layers+c.MTPLayers) * c.layer().PageBytes() }

// Bytes is the memory of the whole pool.
func (c PoolConfig) Bytes() int64 {
	return int64(c.Pages)*c.PageBytes() + int64(c.Slots)*int64(c.TableStride())*4
}

func (c PoolConfig) layer() kernels.KV {
	return kernels.KV{PageTokens: c.PageTokens, Heads: c.KVHeads, HeadDim: c.HeadDim, DType: c.DType, TableStride: c.TableStride()}
}

// Pool holds the pages of all attention layers and the table that maps a slot's tokens to them.
type Pool struct {
	config PoolConfig
	pages  kernels.Buffer
	table  kernels.Buffer
	layers []kernels.KV
}

// NewPool allocates zeroed pages and a table of null pages.
func NewPool(dev kernels.Device, c PoolConfig) (*Pool, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	p := &Pool{config: c}
	var err error
	if n := int64(c.Pages) * c.PageBytes(); n > 0 {
		if p.pages, err = dev.Alloc(n); err != nil {
			return nil, fmt.Errorf("attention pool: %d KV pages (--num-kv-blocks): %w", c.Pages, err)
		}
	}
	if p.table, err = dev.Alloc(int64(c.Slots) * int64(c.TableStride()) * 4); err != nil {
		return nil, fmt.Errorf("attention pool: page table: %w", err)
	}
	for i := range c.Layers + c.MTPLayers {
		p.layers = append(p.layers, p.layer(i))
	}
	return p, nil
}

func (p *Pool) layer(i int) kernels.KV {
	kv := p.config.layer()
	from := int64(i) * kv.PageBytes()
	kv.Pages = p.pages.Slice(from, p.pages.Size-from)
	kv.PageStride = p.config.PageBytes()
	kv.Table = p.table
	return kv
}

// Config is what the pool was made from.
func (p *Pool) Config() PoolConfig { return p.config }

// Layers is the cache by attention layer of the model.
func (p *Pool) Layers() []kernels.KV { return p.layers[:p.config.Layers] }

// MTPLayers is the cache by attention layer of the MTP head.
func (p *Pool) MTPLayers() []kernels.KV { return p.layers[p.config.Layers:] }

// Table is i32 [Slots, TableStride]: the page of each PageTokens tokens of a slot.
func (p *Pool) Table() kernels.Buffer { return p.table }

// TableStride is the row length of Table.
func (p *Pool) TableStride() int { return p.config.TableStride() }

func (p *Pool) page(i int) kernels.Buffer {
	if i < 1 || i >= p.config.Pages {
		panic(fmt.Sprintf("attention: page %d of %d", i, p.config.Pages))
	}
	n := p.config.PageBytes()
	return p.pages.Slice(int64(i)*n, n)
}

// SavePage copies a page of all layers to dst, PageBytes long, which must stay until a later ticket.
func (p *Pool) SavePage(o kernels.Ops, page int, dst []byte) { o.Download(dst, p.page(page)) }

// LoadPage is the reverse.
func (p *Pool) LoadPage(o kernels.Ops, src []byte, page int) { o.Upload(p.page(page), src) }

// Noise fills all pages with small finite numbers, as elements and as scales of every type, and waits for it.
func (p *Pool) Noise(dev kernels.Device) error {
	if p.pages.Nil() {
		return nil
	}
	block, random := make([]byte, min(p.pages.Size, 1<<20)), rand.New(rand.NewPCG(1, 2))
	for i := range block {
		block[i] = byte(random.Uint32()) & 0x37
	}
	dev.Submit(kernels.ProgramFunc(func(o kernels.Ops) {
		o.Upload(p.pages.Slice(0, int64(len(block))), block)
		for at := int64(len(block)); at < p.pages.Size; {
			n := min(at, p.pages.Size-at)
			o.Copy(p.pages.Slice(at, n), p.pages.Slice(0, n))
			at += n
		}
	}))
	return dev.Wait(dev.Mark())
}

// CopyPage copies page src to page dst.
func (p *Pool) CopyPage(o kernels.Ops, src, dst int) { o.Copy(p.page(dst), p.page(src)) }
