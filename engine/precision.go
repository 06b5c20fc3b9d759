package engine

import (
	"fmt"

	"reprise/kernels"
	"reprise/model"
)

// scratchBlocks are for prompts that a step leaves unfinished: there is one at most, beside one that the same step
// finishes, since a prompt is only begun when those before it got all their tokens.
const scratchBlocks = 2

// precision resolves --mamba-ssm-cache-dtype, --ssm-read-dtype and --ssm-rounding.
func precision(shape model.Spec, o Options) (kernels.Precision, error) {
	p := kernels.Precision{HP: shape.State, LP: kernels.StateF32, Rounding: o.Rounding}
	var err error
	if o.StateDType != "" && o.StateDType != "auto" {
		if p.HP, err = kernels.ParseStateFormat(o.StateDType); err != nil {
			return p, fmt.Errorf("--mamba-ssm-cache-dtype: %w", err)
		}
	}
	if o.ReadDType != "" && o.ReadDType != "same" {
		if p.LP, err = kernels.ParseStateFormat(o.ReadDType); err != nil {
			return p, fmt.Errorf("--ssm-read-dtype: %w", err)
		}
		if p.LP != p.HP && p.LP.Bits() >= p.HP.Bits() {
			return p, fmt.Errorf("--ssm-read-dtype %v: a copy to read must be smaller than the state, which is %v (--mamba-ssm-cache-dtype)", p.LP, p.HP)
		}
	}
	if p.Rounding == kernels.Stochastic && p.HP == kernels.StateF32 {
		return p, fmt.Errorf("--ssm-rounding stochastic: a float32 state is not rounded; choose a smaller --mamba-ssm-cache-dtype, or nearest")
	}
	return p, p.Validate()
}
