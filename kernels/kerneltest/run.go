package kerneltest

import (
	"testing"

	"reprise/kernels"
)

// testcase is one entry of the table; its name seeds its random numbers.
type testcase struct {
	name string
	run  func(b *bench)
}

// family is the cases of related operations, on one device each.
type family struct {
	name  string
	cases []testcase
}

// families is the table; short leaves the long runs out.
func families(short bool) []family {
	return []family{
		{"memory", memoryCases()},
		{"dense", denseCases()},
		{"moe", moeCases()},
		{"ssm", ssmCases(short)},
		{"walk", walkCases(short)},
		{"precision", precisionCases(short)},
		{"attention", attentionCases(short)},
		{"sample", sampleCases(short)},
		{"commit", commitCases()},
		{"draft", draftCases()},
	}
}

// Run runs every operation of the device that open returns. It opens one a family of operations and closes it.
func Run(t *testing.T, open func(t testing.TB) kernels.Device) {
	runTable(t, families(testing.Short()), open)
}

func runTable(t *testing.T, table []family, open func(t testing.TB) kernels.Device) {
	for _, f := range table {
		t.Run(f.name, func(t *testing.T) {
			dev := open(t)
			for _, c := range f.cases {
				t.Run(c.name, func(t *testing.T) { c.on(t, dev) })
			}
			if err := dev.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
}

// on runs one case.
func (c testcase) on(tb testing.TB, dev kernels.Device) {
	b := newBench(tb, dev, c.name)
	defer b.free()
	c.run(b)
}
