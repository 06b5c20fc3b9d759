package engine

import (
	"slices"
	"testing"

	"reprise/internal/golden"
	"reprise/kernels"
)

// capturing is a device that says it gains by graphs.
type capturing struct{ kernels.Device }

func (capturing) Graphs() bool { return true }

// TestCapturedSteps: steps padded to captured sizes give the goldens, with and without drafts.
func TestCapturedSteps(t *testing.T) {
	for _, name := range []string{"nemotron-latent-mtp", "qwen35-moe-mtp", "demo-qwen35"} {
		g := golden.Open(t, name)
		for _, drafts := range []int{0, 2} {
			e := openOn(t, capturing{device(t)}, g, Options{MaxSeqs: 12, MaxTokens: 64, Drafts: drafts, FixedDepth: true})
			checkGreedy(t, e, g)
			if e.Plan().Graphs.Bytes < 0 || len(e.Plan().Graphs.Rows) == 0 {
				t.Error("nothing was captured: the test shows nothing")
			}
		}
	}
}

func TestBuckets(t *testing.T) {
	for _, most := range []int{1, 2, 7, 8, 64, 100, 256, 512} {
		b := buckets(most)
		if !slices.IsSorted(b) || b[0] != 1 || b[len(b)-1] != most || len(slices.Compact(slices.Clone(b))) != len(b) {
			t.Errorf("buckets(%d) = %v", most, b)
		}
	}
}
