package cpu

import "reprise/kernels"

type ssmTasks struct{}

func (o *ops) Mamba2Step(kernels.Mamba2) { panic("not yet") }
func (o *ops) Mamba2Scan(kernels.Mamba2) { panic("not yet") }
func (o *ops) Mamba2Fold(kernels.Mamba2) { panic("not yet") }
func (o *ops) DeltaStep(kernels.Delta)   { panic("not yet") }
func (o *ops) DeltaScan(kernels.Delta)   { panic("not yet") }
func (o *ops) DeltaFold(kernels.Delta)   { panic("not yet") }
