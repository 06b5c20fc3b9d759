package cpu

import (
	"fmt"
	"testing"

	"reprise/kernels"
	"reprise/kernels/kerneltest"
)

func TestConformance(t *testing.T) {
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
