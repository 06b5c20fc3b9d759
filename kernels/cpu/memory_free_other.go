//go:build !linux

package cpu

func memoryFree() int64 { return memoryUnknown }
