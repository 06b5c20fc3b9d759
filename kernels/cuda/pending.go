//go:build cuda

package cuda

import "reprise/kernels"

// pending are operations without kernels yet.
type pending struct{}

func (pending) Mamba2Step(kernels.Mamba2) { panic("cuda: Mamba2Step has no kernel") }
func (pending) Mamba2Scan(kernels.Mamba2) { panic("cuda: Mamba2Scan has no kernel") }
func (pending) Mamba2Fold(kernels.Mamba2) { panic("cuda: Mamba2Fold has no kernel") }
func (pending) DeltaStep(kernels.Delta)   { panic("cuda: DeltaStep has no kernel") }
func (pending) DeltaScan(kernels.Delta)   { panic("cuda: DeltaScan has no kernel") }
func (pending) DeltaFold(kernels.Delta)   { panic("cuda: DeltaFold has no kernel") }

func (pending) DraftBegin(kernels.DraftBegin)   { panic("cuda: DraftBegin has no kernel") }
func (pending) DraftNext(kernels.DraftNext)     { panic("cuda: DraftNext has no kernel") }
func (pending) DraftLookup(kernels.DraftLookup) { panic("cuda: DraftLookup has no kernel") }
