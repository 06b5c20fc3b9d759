package layers

import "reprise/kernels"

// Discard are operations that do nothing: to measure what a forward pass takes.
type Discard struct{}

var _ kernels.Ops = Discard{}

// The operations of kernels.Ops, none of which does anything.
func (Discard) Upload(kernels.Buffer, []byte)       {}
func (Discard) Download([]byte, kernels.Buffer)     {}
func (Discard) Copy(kernels.Buffer, kernels.Buffer) {}
func (Discard) Zero(kernels.Buffer)                 {}
func (Discard) Scatter(kernels.Scatter)             {}
func (Discard) Begin(kernels.Begin)                 {}
func (Discard) Embed(kernels.Embed)                 {}
func (Discard) Norm(kernels.Norm)                   {}
func (Discard) Linear(kernels.Linear)               {}
func (Discard) Activate(kernels.Activate)           {}
func (Discard) GatherRows(kernels.GatherRows)       {}
func (Discard) WriteKV(kernels.WriteKV)             {}
func (Discard) Attend(kernels.Attend)               {}
func (Discard) Mamba2Step(kernels.Mamba2)           {}
func (Discard) Mamba2Scan(kernels.Mamba2)           {}
func (Discard) Mamba2Fold(kernels.Mamba2)           {}
func (Discard) DeltaStep(kernels.Delta)             {}
func (Discard) DeltaScan(kernels.Delta)             {}
func (Discard) DeltaFold(kernels.Delta)             {}
func (Discard) Route(kernels.Route)                 {}
func (Discard) Experts(kernels.Experts)             {}
func (Discard) AddGated(kernels.AddGated)           {}
func (Discard) Sample(kernels.Sample)               {}
func (Discard) Commit(kernels.Commit)               {}
func (Discard) DraftBegin(kernels.DraftBegin)       {}
func (Discard) DraftNext(kernels.DraftNext)         {}
func (Discard) DraftLookup(kernels.DraftLookup)     {}
func (Discard) AllReduce(kernels.Mat)               {}
