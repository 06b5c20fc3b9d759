//go:build cuda

package engine

import (
	"flag"
	"testing"
	"time"

	"reprise/kernels"
)

var (
	loadDir = flag.String("load.dir", "", "TestCUDALoading: folder in memory (tmpfs) for its checkpoint; without one it is skipped")
	loadGB  = flag.Float64("load.gb", 40, "TestCUDALoading: size of the checkpoint")
)

// TestCUDALoading writes a checkpoint of the Qwen3.5-27B shape with fewer layers to a folder in memory and loads it at 70 % or more
// of the rate at which the same files can be read, by all processors through pinned memory, and copied to the device:
//
//	engine.test -test.v -test.run TestCUDALoading -load.dir /dev/shm
//
// It needs that much memory for the files and on the device.
func TestCUDALoading(t *testing.T) {
	if *loadDir == "" {
		t.Skip("no -load.dir")
	}
	if err := gpu(t, kernels.BF16).Close(); err != nil { // before gigabytes are written for it
		t.Fatal(err)
	}
	begin := time.Now()
	c := writeCheckpoint(t, *loadDir, largeShape(t, *loadGB*1e9))
	t.Logf("%.1f GB in %d files written in %.1f s", float64(c.total)/1e9, len(c.files), time.Since(begin).Seconds())
	plain, load := c.times(t, func() kernels.Device { return gpu(t, kernels.BF16) }, 2)
	rate := func(d time.Duration) float64 { return float64(c.total) / 1e9 / d.Seconds() }
	t.Logf("plain parallel read and copy: %.2f s, %.1f GB/s; load: %.2f s, %.1f GB/s, %.0f %% of it",
		plain.Seconds(), rate(plain), load.Seconds(), rate(load), 100*rate(load)/rate(plain))
	if rate(load) < 0.7*rate(plain) {
		t.Errorf("loading reaches %.0f %% of a plain read, want 70 %%", 100*rate(load)/rate(plain))
	}
}
