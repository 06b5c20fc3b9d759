package model_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"reprise/demo"
	"reprise/model"
	"reprise/model/nemotron"
	"reprise/model/qwen35"
	"reprise/weights"
)

// A golden is a checkpoint and what an exact engine must answer (made by an independent PyTorch implementation that
// agrees with transformers).
type golden struct {
	name   string
	config model.Config
	source *weights.Checkpoint
	cases  []goldenCase
}

type goldenCase struct {
	Prompt []int32
	Greedy []int32
	Drafts [][]int32   // after each of the first tokens
	last   [][]float32 // logits of the prompt's last positions
}

// scale is the largest logit, which tolerances are relative to.
func (c goldenCase) scale() float64 {
	var m float64
	for _, row := range c.last {
		for _, v := range row {
			m = max(m, math.Abs(float64(v)))
		}
	}
	return m
}

// expect is the golden logits of a position of the prompt, or nil.
func (c goldenCase) expect(position int) []float32 {
	i := position - (len(c.Prompt) - len(c.last))
	if i < 0 || i >= len(c.last) {
		return nil
	}
	return c.last[i]
}

var goldenNames = []string{
	"nemotron-dense", "nemotron-moe", "nemotron-latent-mtp", "qwen35-dense", "qwen35-dense-tied-mtp", "qwen35-moe-mtp",
	"demo-nemotron", "demo-qwen35",
}

// parseConfig is the family's Parse.
func parseConfig(name string, text []byte) (model.Config, error) {
	if strings.Contains(name, "nemotron") {
		return nemotron.Parse(text, nil)
	}
	return qwen35.Parse(text, nil)
}

func openGolden(t testing.TB, name string) *golden {
	t.Helper()
	dir := filepath.Join("testdata", "goldens", name)
	var text []byte
	var source *weights.Checkpoint
	if strings.HasPrefix(name, "demo-") {
		folder := must(demo.Open(name))(t)
		text, source = folder.Config, must(folder.Tensors())(t)
	} else {
		text = must(os.ReadFile(filepath.Join(dir, "config.json")))(t)
		source = unpack(t, filepath.Join(dir, "model.safetensors.zst"))
	}
	t.Cleanup(func() { source.Close() })
	g := &golden{name: name, config: must(parseConfig(name, text))(t), source: source}
	var file struct{ Cases []goldenCase }
	if err := json.Unmarshal(must(os.ReadFile(filepath.Join(dir, "golden.json")))(t), &file); err != nil {
		t.Fatal(err)
	}
	logits := unpack(t, filepath.Join(dir, "golden.safetensors.zst"))
	for i, c := range file.Cases {
		c.last = rowsOf(t, logits, fmt.Sprintf("logits.%d", i))
		g.cases = append(g.cases, c)
	}
	return g
}

func unpack(t testing.TB, path string) *weights.Checkpoint {
	t.Helper()
	d := must(zstd.NewReader(nil))(t)
	defer d.Close()
	content := must(d.DecodeAll(must(os.ReadFile(path))(t), nil))(t)
	return must(weights.OpenBytes(path, content))(t)
}

// rowsOf is a float32 matrix of a checkpoint.
func rowsOf(t testing.TB, c *weights.Checkpoint, name string) [][]float32 {
	t.Helper()
	tensor := must(c.Raw(name))(t)
	rows := make([][]float32, tensor.Shape[0])
	for i := range rows {
		rows[i] = floats(tensor.Data[i*4*tensor.Shape[1]:][:4*tensor.Shape[1]])
	}
	return rows
}

func floats(b []byte) []float32 {
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

func argmax(x []float32) int32 {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return int32(best)
}

func maxDiff(a, b []float32) float64 {
	var m float64
	for i := range a {
		d := math.Abs(float64(a[i]) - float64(b[i]))
		if !(d <= m) { // NaN too
			m = d
		}
	}
	return m
}

// must makes a failure of a two-valued call fatal.
func must[V any](v V, err error) func(testing.TB) V {
	return func(t testing.TB) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
