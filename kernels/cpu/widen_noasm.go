//go:build !amd64 || purego

package cpu

import "reprise/kernels"

// widenBlocks widens a leading part of src and returns its elements.
func widenBlocks([]float32, []byte, kernels.DType) int { return 0 }

func widenFourBits(dst []float32, src []byte, halves []float32) { widenFourBitsGo(dst, src, halves) }
