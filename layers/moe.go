package layers

import "reprise/kernels"

// MoE is a router, its routed experts and a shared expert.
//
//	y = up(sum over chosen e of w_e * expert_e(down(x))) + g * shared(x)
//
// where down and up are the latent projections (or the identity) and g is sigmoid(gate . x) or 1.
type MoE struct {
	// Router is [experts, hidden], with a second part [1, hidden] where the shared expert is gated. Logits are f32.
	Router Linear
	Route  kernels.Route // what does not change: Bias, Score, TopK, Groups, TopGroups, Normalize, Scale
	Up     kernels.Weight
	Down   kernels.Weight
	Act    kernels.Activation

	LatentDown, LatentUp Linear // [latent, hidden] and [hidden, latent], or nil
	Shared               MLP    // or nil
}

// Forward is y = moe(x), summed over the devices of a tensor-parallel group.
func (m *MoE) Forward(o kernels.Ops, s *Scratch, x, y kernels.Mat) {
	defer s.Release(s.Mark())
	logits := s.MatF32(x.Rows, m.Router.Rows())
	m.Router.Forward(o, Ready(x), logits)
	m.routed(o, s, m.Router.Part(logits, 0), x, y)
	switch {
	case m.Shared.Nil():
	case len(m.Router.parts) == 1:
		m.Shared.run(o, s, Ready(x), y, true)
	default:
		shared := s.Mat(x.Rows, y.Cols)
		m.Shared.run(o, s, Ready(x), shared, false)
		o.AddGated(kernels.AddGated{Gate: m.Router.Part(logits, 1), X: shared, Y: y})
	}
	o.AllReduce(y)
}

// routed is y = the weighted sum of the chosen experts.
func (m *MoE) routed(o kernels.Ops, s *Scratch, logits, x, y kernels.Mat) {
	defer s.Release(s.Mark())
	r := m.Route
	r.Logits = logits
	r.IDs = s.Buffer(int64(x.Rows) * int64(r.TopK) * 4)
	r.Weights = s.Buffer(int64(x.Rows) * int64(r.TopK) * 4)
	o.Route(r)
	e := kernels.Experts{X: x, Out: y, Up: m.Up, Down: m.Down, Act: m.Act, IDs: r.IDs, Weights: r.Weights, TopK: r.TopK}
	if m.LatentDown.Nil() {
		o.Experts(e)
		return
	}
	e.X, e.Out = s.Mat(x.Rows, m.LatentDown.Rows()), s.Mat(x.Rows, m.LatentDown.Rows())
	m.LatentDown.Forward(o, Ready(x), e.X)
	o.Experts(e)
	m.LatentUp.Forward(o, Ready(e.Out), y)
}
