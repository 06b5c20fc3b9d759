package kerneltest

import (
	"fmt"
	"slices"
	"strings"
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

// families is the table; short leaves the long runs out, and long ways through others.
func families(short bool) []family {
	return []family{
		{"memory", memoryCases()},
		{"dense", denseCases(short)},
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

// Part is every Count-th case of each family, from case Index on; all indices below Count together are the whole table.
type Part struct{ Index, Count int }

// ParsePart reads INDEX/COUNT.
func ParsePart(text string) (p Part, err error) {
	n, err := fmt.Sscanf(text, "%d/%d", &p.Index, &p.Count)
	if err != nil || n != 2 || p.Index < 0 || p.Index >= p.Count {
		return p, fmt.Errorf("%q is no part: want INDEX/COUNT with 0 <= INDEX < COUNT", text)
	}
	return p, nil
}

// RunPart runs one part of what Run runs, all of it on one device: under tools that take long to open one.
func RunPart(t *testing.T, p Part, open func(t testing.TB) kernels.Device) {
	dev := open(t)
	for _, f := range families(testing.Short()) {
		t.Run(f.name, func(t *testing.T) { runCases(t, p.of(f.cases), dev) })
	}
	closed(t, dev)
}

func (p Part) of(all []testcase) (some []testcase) {
	for i := p.Index; i < len(all); i += p.Count {
		some = append(some, all[i])
	}
	return some
}

// RunFamily runs one family of operations, as Run does.
func RunFamily(t *testing.T, name string, open func(t testing.TB) kernels.Device) {
	RunCases(t, name, "", open)
}

// RunCases runs those cases of a family whose names contain a word.
func RunCases(t *testing.T, name, word string, open func(t testing.TB) kernels.Device) {
	list := slices.DeleteFunc(families(testing.Short()), func(f family) bool { return f.name != name })
	for i := range list {
		list[i].cases = slices.DeleteFunc(list[i].cases, func(c testcase) bool { return !strings.Contains(c.name, word) })
	}
	runTable(t, list, open)
}

func runTable(t *testing.T, table []family, open func(t testing.TB) kernels.Device) {
	for _, f := range table {
		t.Run(f.name, func(t *testing.T) {
			dev := open(t)
			runCases(t, f.cases, dev)
			closed(t, dev)
		})
	}
}

// runCases runs some cases of a family.
func runCases(t *testing.T, some []testcase, dev kernels.Device) {
	for _, c := range some {
		t.Run(c.name, func(t *testing.T) { c.on(t, dev) })
	}
}

func closed(t *testing.T, dev kernels.Device) {
	if err := dev.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// on runs one case.
func (c testcase) on(tb testing.TB, dev kernels.Device) {
	b := newBench(tb, dev, c.name)
	defer b.free()
	c.run(b)
}
