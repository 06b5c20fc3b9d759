package qwen35

import (
	"reprise/attention"
	"reprise/model/configjson"
)

// parseRope reads rope_parameters; mrope_section says nothing about text, where all three positions are equal.
func parseRope(o *configjson.Object, headDim int) *attention.Rope {
	p := o.Object("rope_parameters", "rope_scaling")
	if p == nil {
		p = o
	}
	share := p.FloatOr(o.FloatOr(0.25, 0, 1, "partial_rotary_factor"), 0, 1, "partial_rotary_factor")
	r := &attention.Rope{
		Rotary: int(share*float64(headDim)) &^ 1,
		Theta:  p.FloatOr(o.FloatOr(1e7, 1.001, 1e12, "rope_theta"), 1.001, 1e12, "rope_theta"),
	}
	if r.Rotary < 2 {
		o.Fail("partial_rotary_factor", "%g of a head of %d rotates nothing", share, headDim)
	}
	key := "rope_type"
	if !p.Has(key) {
		key = "type"
	}
	if p != o && p.OneOf(key, "default", "yarn") == "yarn" {
		r.Yarn = parseYarn(p)
	}
	return r
}

func parseYarn(o *configjson.Object) *attention.Yarn {
	o.Require("factor")
	y := &attention.Yarn{
		Factor:          o.FloatOr(1, 1, 1024, "factor"),
		OriginalMaxLen:  o.Int(16, maxLen, "original_max_position_embeddings"),
		BetaFast:        o.FloatOr(32, 1e-3, 1e6, "beta_fast"),
		BetaSlow:        o.FloatOr(1, 1e-3, 1e6, "beta_slow"),
		AttentionFactor: o.FloatOr(0, 1e-3, 1e3, "attention_factor"),
		Exact:           !o.BoolOr(true, "truncate"),
	}
	for _, key := range []string{"mscale", "mscale_all_dim"} {
		if o.Has(key) {
			o.Fail(key, "is not supported")
		}
	}
	if y.BetaFast <= y.BetaSlow {
		o.Fail("beta_fast", "%g is not above beta_slow %g", y.BetaFast, y.BetaSlow)
	}
	return y
}
