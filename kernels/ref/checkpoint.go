package ref

import "reprise/kernels"

// share is the layer's part of a block.
func (l layer[F]) share(block int32) []byte { return l.blocks[int64(block)*l.BlockStride:] }

// load widens one copy of the state in a block.
func (l layer[F]) load(a kernels.StateArray, block int32) []F {
	head := make([]float32, a.Rows*a.Cols)
	var state []F
	for h := range a.Heads {
		a.DecodeRows(head, l.share(block), h, 0)
		for _, v := range head {
			state = append(state, F(v))
		}
	}
	return state
}

// carried is the state that flushes, folds and scans start from; read is what the outputs of a step are computed from.
func (l layer[F]) carried(s sequence) []F { return l.load(l.checkpoint.HP, s.Src) }

func (l layer[F]) read(s sequence) []F {
	if s.flushes(l.Window) {
		return l.carried(s)
	}
	return l.load(l.checkpoint.LP, s.Src)
}

// store rounds the state after position tokens into both copies of a block.
func (l layer[F]) store(block int32, state []F, position int) {
	l.encode(l.checkpoint.HP, block, state, l.Precision.Noise(l.Layer, int32(position)))
	if l.Precision.Two() {
		l.encode(l.checkpoint.LP, block, state, kernels.StateNoise{})
	}
}

func (l layer[F]) encode(a kernels.StateArray, block int32, state []F, n kernels.StateNoise) {
	head := make([]float32, a.Rows*a.Cols)
	for h := range a.Heads {
		for i := range head {
			head[i] = float32(state[h*len(head)+i])
		}
		a.EncodeHead(l.share(block), h, head, n)
	}
}

// scratchState is the float32 state in a scratch block.
func (l layer[F]) scratchState(block int) row[F] {
	return row[F]{values{kernels.F32, l.scratch[int64(block)*l.ScratchStride:]}}
}

// start is the state that a scan starts from.
func (l layer[F]) start(s sequence) []F {
	a := l.checkpoint.HP
	switch {
	case s.scratch >= 0 && (s.H > 0 || s.stage&kernels.Resume != 0):
		return l.scratchState(s.scratch).load(a.Heads * a.Rows * a.Cols)
	case s.scratch < 0 && s.H > 0:
		return l.load(a, s.Dst)
	}
	return l.carried(s)
}

// keepFolded stores the state that a fold has made.
func (l layer[F]) keepFolded(s sequence, state []F) {
	if s.scratch >= 0 {
		l.scratchState(s.scratch).store(state)
		return
	}
	l.store(s.Dst, state, s.position())
}

// keepScanned stores the state that a scan has made.
func (l layer[F]) keepScanned(s sequence, state []F) {
	if s.scratch >= 0 && s.stage&kernels.Publish == 0 {
		l.scratchState(s.scratch).store(state)
		return
	}
	l.store(s.Dst, state, s.position()+s.n)
}
