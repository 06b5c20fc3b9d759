package cpu

import (
	"fmt"
	"testing"

	"reprise/kernels"
	"reprise/kernels/kerneltest"
)

// TestConformance runs at the levels with assembly; without any, the generic one.
func TestConformance(t *testing.T) {
	for l := min(avx2, bestLevel()); l <= avx512; l++ {
		t.Run(l.String(), func(t *testing.T) { atLevel(t, l, testConformance) })
	}
}

func testConformance(t *testing.T) {
	for _, threads := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d threads", threads), func(t *testing.T) {
			if threads > 1 && testing.Short() {
				t.Skip("one device is enough for -short; TestThreadsDoNotChangeResults covers the other")
			}
			kerneltest.Run(t, func(t testing.TB) kernels.Device {
				d, err := Open(Options{Threads: threads})
				if err != nil {
					t.Fatal(err)
				}
				return d
			})
		})
	}
}
