package ref

import "reprise/kernels"

// cache is an attention layer's pages.
type cache struct {
	kernels.KV
	pages []byte
	table ints
}

func (o ops[F]) cache(k kernels.KV) cache { return cache{k, o.bytes(k.Pages), o.ints(k.Table)} }

// page is the page that holds a token of a slot, and the token's place in it.
func (c cache) page(slot, token int) ([]byte, int) {
	id := c.table.at(slot*c.TableStride + token/c.PageTokens)
	from := int64(id) * c.PageStride
	return c.pages[from : from+c.PageBytes()], token % c.PageTokens
}

// entry is where the key (part 0) or value (part 1) of a token's head is stored, and its scale.
func (c cache) entry(slot, token, part, head int) (elements, scale values) {
	page, place := c.page(slot, token)
	line := (part*c.Heads+head)*c.PageTokens + place
	size := c.HeadDim * c.DType.Size()
	elements = values{c.DType, page[line*size : (line+1)*size]}
	if c.DType == kernels.F8E4M3 {
		at := c.ScaleOffset() + int64(line)*4
		scale = values{kernels.F32, page[at : at+4]}
	}
	return elements, scale
}

// read is a stored key or value times its scale.
func read[F real](c cache, slot, token, part, head int) []F {
	elements, scale := c.entry(slot, token, part, head)
	x := row[F]{elements}.load(c.HeadDim)
	if scale.data != nil {
		for i := range x {
			x[i] *= F(scale.at(0))
		}
	}
	return x
}

// write stores a key or value; fixed is the checkpoint's scale, or 0 for that of the largest element.
func write[F real](c cache, slot, token, part, head int, x []F, fixed float32) {
	elements, scale := c.entry(slot, token, part, head)
	if scale.data == nil {
		row[F]{elements}.store(x)
		return
	}
	s := F(fixed)
	if s == 0 {
		s = largest(x) / 448
	}
	if s == 0 {
		s = 1
	}
	scale.set(0, float64(s))
	s = F(scale.at(0))
	for i, v := range x {
		elements.set(i, float64(v/s))
	}
}

func largest[F real](x []F) F {
	var most F
	for _, v := range x {
		most = max(most, v, -v)
	}
	return most
}
