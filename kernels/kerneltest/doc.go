// Package kerneltest is the one conformance suite of every kernels.Device: Run compares all operations with
// kernels/ref on the same hostile cases. Outputs are poisoned with NaN, every allocation lies between guard zones,
// bytes that an operation has no business with must not change, rows are ragged, slots are reused with garbage in them.
//
// Tolerances are not magic numbers: an error may be twice that of the oracle's own algorithm in float32 on the same
// data, plus a floor of a few units in the last place (see tolerance).
//
// Not here: the oracle (kernels/ref) and tests of one device's inner parts.
package kerneltest
