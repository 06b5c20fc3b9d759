// Package ref is the oracle of the operations: a kernels.Device whose every op computes in float64 by the most
// obvious algorithm, one file an op, on one goroutine, synchronously. The SSM ops are the conventional recurrence: the
// committed records of a slot are replayed token by token onto its checkpoint, which is what ReplaySSM must agree with.
//
// Values are rounded where the contract says that they are stored (matrices, states, rings, caches) and nowhere else.
// NewFloat32 is the same code in float32: the plain same-precision implementation from which kernels/kerneltest derives
// tolerances.
//
// Not here: speed, and any test (kernels/kerneltest compares devices with this one).
package ref
