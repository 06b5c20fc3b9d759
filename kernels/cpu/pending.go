package cpu

import "reprise/kernels"

func (o *ops) Begin(kernels.Begin)           { panic("not yet") }
func (o *ops) Embed(kernels.Embed)           { panic("not yet") }
func (o *ops) Norm(kernels.Norm)             { panic("not yet") }
func (o *ops) Activate(kernels.Activate)     { panic("not yet") }
func (o *ops) GatherRows(kernels.GatherRows) { panic("not yet") }
func (o *ops) WriteKV(kernels.WriteKV)       { panic("not yet") }
func (o *ops) Attend(kernels.Attend)         { panic("not yet") }
func (o *ops) Route(kernels.Route)           { panic("not yet") }
func (o *ops) Experts(kernels.Experts)       { panic("not yet") }
func (o *ops) AddGated(kernels.AddGated)     { panic("not yet") }
func (o *ops) Sample(kernels.Sample)         { panic("not yet") }
func (o *ops) Commit(kernels.Commit)         { panic("not yet") }
