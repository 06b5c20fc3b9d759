package layers

import "reprise/kernels"

// Residual is the stream of rows that layers add to: at once, or, what Later hands out, with the norm of the next layer.
type Residual struct {
	X         kernels.Mat
	normed, y kernels.Mat
	add       bool // y is to be added
}

// Residual makes the stream of x, with memory of its own.
func (s *Scratch) Residual(x kernels.Mat) Residual {
	return Residual{X: x, normed: s.Mat(x.Rows, x.Cols), y: s.Mat(x.Rows, x.Cols)}
}

// Input is what the next layer reads.
func (r *Residual) Input(o kernels.Ops, n Norm) Input {
	if !r.add {
		return Input{X: r.X, Norm: n, Normed: r.normed}
	}
	r.add = false
	n.Forward(o, r.X, r.y, r.normed)
	return Ready(r.normed)
}

// Later is a matrix to write what will be added.
func (r *Residual) Later() kernels.Mat {
	r.add = true
	return r.y
}

// End writes the normed stream to out.
func (r *Residual) End(o kernels.Ops, n Norm, out kernels.Mat) {
	var add kernels.Mat
	if r.add {
		add = r.y
	}
	n.Forward(o, r.X, add, out)
}
