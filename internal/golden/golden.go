// Package golden gives tests checkpoints and what an exact engine must answer for them: six tiny models of both families
// and the two demo models, made by an independent PyTorch implementation that agrees with transformers. Not for programs.
package golden

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"reprise/demo"
	"reprise/weights"
)

// LogitTolerance is the allowed difference of float32 logits, relative to the largest: ten times what two float32
// implementations that sum in different orders differ by, and a fifth of the smallest margin of a greedy choice.
const LogitTolerance = 2e-4

// Golden is a checkpoint and its cases.
type Golden struct {
	Name   string
	Folder *weights.Folder
	Cases  []Case
}

// Case is a prompt and the answers to it.
type Case struct {
	Prompt []int32
	Greedy []int32     // greedy continuation, end-of-sequence ids ignored
	Drafts [][]int32   // greedy MTP drafts after each of the first 8 greedy tokens, if the model has the head
	Logits [][]float32 // of the last positions of the prompt
	BF16   float64     // error of a plain bfloat16 run, relative to the largest logit
}

// Names are all goldens, the tiny ones first.
func Names() []string {
	return []string{
		"nemotron-dense", "nemotron-moe", "nemotron-latent-mtp", "qwen35-dense", "qwen35-dense-tied-mtp", "qwen35-moe-mtp",
		"demo-nemotron", "demo-qwen35",
	}
}

// Open reads a golden.
func Open(t testing.TB, name string) *Golden {
	t.Helper()
	dir := filepath.Join(root(), name)
	g := &Golden{Name: name}
	var file struct{ Cases []Case }
	text, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	check(t, err)
	check(t, json.Unmarshal(text, &file))
	logits := unpack(t, filepath.Join(dir, "golden.safetensors.zst"))
	for i, c := range file.Cases {
		c.Logits = rows(t, logits, fmt.Sprintf("logits.%d", i))
		g.Cases = append(g.Cases, c)
	}
	if strings.HasPrefix(name, "demo-") {
		g.Folder, err = demo.OpenFrom(os.DirFS(filepath.Join(Repository(), "demo")), name)
	} else {
		files := only{os.DirFS(dir), "config.json"}
		g.Folder, err = weights.NewFolder(name, files, func() (*weights.Checkpoint, error) {
			return unpack(t, filepath.Join(dir, "model.safetensors.zst")), nil
		})
	}
	check(t, err)
	return g
}

// Repository is the folder of the project, whichever package is under test: where this file was compiled or, for a test
// program that was carried to another machine, the folder of a go.mod above the working directory.
func Repository() string {
	_, file, _, _ := runtime.Caller(0)
	compiled := filepath.Join(filepath.Dir(file), "..", "..")
	here, err := os.Getwd()
	for dir := here; err == nil && !isProject(compiled); dir = filepath.Dir(dir) {
		if isProject(dir) {
			return dir
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	return compiled
}

func isProject(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

// root is where the data lies.
func root() string { return filepath.Join(Repository(), "model", "testdata", "goldens") }

// only hides all files but one.
type only struct {
	fs.FS
	name string
}

func (o only) Open(name string) (fs.File, error) {
	if name != o.name {
		return nil, fs.ErrNotExist
	}
	return o.FS.Open(name)
}

func unpack(t testing.TB, path string) *weights.Checkpoint {
	t.Helper()
	d, err := zstd.NewReader(nil)
	check(t, err)
	defer d.Close()
	packed, err := os.ReadFile(path)
	check(t, err)
	content, err := d.DecodeAll(packed, nil)
	check(t, err)
	c, err := weights.OpenBytes(path, content)
	check(t, err)
	return c
}

func rows(t testing.TB, c *weights.Checkpoint, name string) [][]float32 {
	t.Helper()
	tensor, err := c.Raw(name)
	check(t, err)
	n, cols := tensor.Shape[0], tensor.Shape[1]
	out := make([][]float32, n)
	for i := range out {
		out[i] = make([]float32, cols)
		for j := range out[i] {
			out[i][j] = math.Float32frombits(binary.LittleEndian.Uint32(tensor.Data[4*(i*cols+j):]))
		}
	}
	return out
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// LogProbs are the log probabilities of a row of logits.
func LogProbs(logits []float32) []float64 {
	high := math.Inf(-1)
	for _, v := range logits {
		high = max(high, float64(v))
	}
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v) - high)
	}
	out := make([]float64, len(logits))
	for i, v := range logits {
		out[i] = float64(v) - high - math.Log(sum)
	}
	return out
}

// Scale is the largest logit, which tolerances are relative to.
func (c *Case) Scale() float64 {
	m := 0.0
	for _, row := range c.Logits {
		for _, v := range row {
			m = max(m, math.Abs(float64(v)))
		}
	}
	return m
}
