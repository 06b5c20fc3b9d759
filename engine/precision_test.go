package engine

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"reprise/internal/golden"
	"reprise/kernels"
	"reprise/kernels/ref"
	"reprise/model"
	"reprise/ssm"
	"reprise/weights"
)

// TestPrecisionFlags: what the three flags mean together, or one line about the flag that is wrong.
func TestPrecisionFlags(t *testing.T) {
	const f32, f16, bf16, f8, f4 = kernels.StateF32, kernels.StateF16, kernels.StateBF16, kernels.StateF8, kernels.StateNVFP4
	sr := kernels.Stochastic
	for _, c := range []struct {
		model       kernels.StateFormat
		state, read string
		rounding    kernels.Rounding
		want        kernels.Precision
		words       string // of the error
	}{
		{model: f32, want: kernels.Precision{}},
		{model: bf16, state: "auto", read: "same", want: kernels.Precision{HP: bf16}},
		{model: f16, state: "float32", want: kernels.Precision{}},
		{model: f32, read: "bfloat16", want: kernels.Precision{LP: bf16}},
		{model: f16, read: "nvfp4", rounding: sr, want: kernels.Precision{HP: f16, LP: f4, Rounding: sr}},
		{model: f32, state: "fp8", read: "nvfp4", rounding: sr, want: kernels.Precision{HP: f8, LP: f4, Rounding: sr}},
		{model: f32, state: "fp8", read: "fp8", want: kernels.Precision{HP: f8, LP: f8}},
		{model: f32, state: "fp8", read: "float16", words: "--ssm-read-dtype float16"},
		{model: f32, state: "float16", read: "bfloat16", words: "--ssm-read-dtype bfloat16"},
		{model: bf16, read: "float16", words: "which is bfloat16"},
		{model: f32, state: "fp8", read: "float32", words: "--ssm-read-dtype float32"},
		{model: f32, rounding: sr, words: "--ssm-rounding stochastic"},
		{model: f16, state: "float32", read: "fp8", rounding: sr, words: "--ssm-rounding stochastic"},
		{model: f32, state: "int8", words: "--mamba-ssm-cache-dtype"},
		{model: f32, read: "int8", words: "--ssm-read-dtype"},
	} {
		got, err := precision(model.Spec{State: c.model}, Options{StateDType: c.state, ReadDType: c.read, Rounding: c.rounding})
		switch {
		case c.words == "" && (err != nil || got != c.want):
			t.Errorf("%+v: %+v, %v", c, got, err)
		case c.words != "" && (err == nil || !strings.Contains(err.Error(), c.words) || strings.Contains(err.Error(), "\n")):
			t.Errorf("%+v: error %v, want a line with %q", c, err, c.words)
		}
	}
}

// refusing takes float32 states only.
type refusing struct{ kernels.Device }

func (refusing) StateSupport(p kernels.Precision) error {
	if p != (kernels.Precision{}) {
		return kernels.ErrUnsupported
	}
	return nil
}

// TestUnsupportedPrecision is refused before the weights are read, the checkpoint's own format too.
func TestUnsupportedPrecision(t *testing.T) {
	g := golden.Open(t, "nemotron-dense")
	half := *g.Folder
	half.Config = bytes.Replace(half.Config, []byte(`"mamba_ssm_cache_dtype": "float32"`), []byte(`"mamba_ssm_cache_dtype": "float16"`), 1)
	for _, c := range []struct {
		source Source
		o      Options
	}{{Source{Folder: g.Folder}, Options{StateDType: "fp8"}}, {Source{Folder: g.Folder}, Options{ReadDType: "nvfp4"}}, {Source{Folder: &half}, Options{}}} {
		dev := refusing{device(t)}
		e, err := Open(dev, c.source, c.o)
		if err == nil {
			e.Close()
		}
		if !errors.Is(err, kernels.ErrUnsupported) || !strings.HasPrefix(err.Error(), "--mamba-ssm-cache-dtype") {
			t.Errorf("%+v: %v", c.o, err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
}

// counting adds up what is allocated.
type counting struct {
	kernels.Device
	bytes int64
}

func (c *counting) Alloc(n int64) (kernels.Buffer, error) {
	c.bytes += n
	return c.Device.Alloc(n)
}

// TestPlanIsWhatIsAllocated: the pool of states takes the bytes that the plan counts and prints, in every format, and a
// sequence takes what the metrics say. A smaller format leaves room for more sequences.
func TestPlanIsWhatIsAllocated(t *testing.T) {
	most := map[string]int{}
	for _, name := range []string{"nemotron-dense", "qwen35-dense"} {
		config, err := ParseConfig(golden.Open(t, name).Folder)
		if err != nil {
			t.Fatal(err)
		}
		dev := ref.NewFloat32() // takes every format
		for _, f := range formats {
			o := f.options(Options{MaxLen: 64, MaxSeqs: 4096}).withDefaults(dev, config.Spec().Vocab)
			p, err := makePlan(config, o, kernels.F32, 200<<20)
			if err != nil {
				t.Fatal(err)
			}
			c := &counting{Device: dev}
			if _, err := ssm.NewPool(c, p.SSM); err != nil {
				t.Fatal(err)
			}
			if want := p.StateBytes + p.ScratchBytes + p.RingBytes; c.bytes != want {
				t.Errorf("%s, %v: %d bytes allocated, %d planned", name, f, c.bytes, want)
			}
			if n := p.Footprint(); int64(p.SSM.Blocks)*n.State != p.StateBytes || int64(p.SSM.Slots)*n.Replay != p.RingBytes {
				t.Errorf("%s, %v: %+v", name, f, n)
			}
			if (p.ScratchBytes > 0) != (f.state != "float32") || !strings.Contains(p.String(), p.SSM.State.String()) {
				t.Errorf("%s, %v: %d bytes of scratch\n%s", name, f, p.ScratchBytes, p)
			}
			most[f.state+"/"+f.read] = max(most[f.state+"/"+f.read], p.MaxSeqs)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Log("sequences in the same memory:", most)
	if m := most; !(m["float32/same"] < m["float16/same"] && m["float16/same"] < m["fp8/same"] && m["fp8/same"] < m["nvfp4/same"] && m["fp8/nvfp4"] < m["fp8/same"]) {
		t.Errorf("%v", most)
	}
}

// TestConcurrencyByFormat finds how many sequences of 8,192 tokens the plan runs at once in the memory of an H200, by
// state format: the table of docs/benchmarks.md. Fewer bits never give fewer sequences.
func TestConcurrencyByFormat(t *testing.T) {
	const free, context = 139 << 30, 8192
	for _, file := range []string{"nemotron/testdata/nano-4b", "nemotron/testdata/nano-30b", "qwen35/testdata/qwen3.5-27b", "qwen35/testdata/qwen3.5-35b"} {
		text, err := os.ReadFile(filepath.Join(golden.Repository(), "model", file+".json"))
		if err != nil {
			t.Fatal(err)
		}
		config, err := ParseConfig(&weights.Folder{Name: file, Config: text})
		if err != nil {
			t.Fatal(err)
		}
		if testing.Short() && !strings.Contains(file, "4b") {
			continue // listing thousands of tensors for each plan takes its time
		}
		most := map[format]int{}
		for _, f := range formats {
			if f.rounding == kernels.Stochastic && f.read == "same" {
				continue // as large as rounded to nearest
			}
			var p *Plan
			most[f] = sort.Search(largestSeqs, func(n int) bool {
				o := f.options(Options{MaxLen: context, MaxSeqs: n + 1, MaxTokens: 2048, PageTokens: 16, MemoryFraction: 0.9})
				tried, err := makePlan(config, o, kernels.BF16, free)
				if err == nil && tried.longest() == n+1 {
					p = tried
					return false
				}
				return true
			})
			at := p.Footprint()
			t.Logf("%-28s %-16v state %6.1f MB, replay %5.1f MB, KV %6.1f MB: %4d sequences", file, p.SSM.State,
				float64(at.State)/1e6, float64(at.Replay)/1e6, float64(at.Token*context)/1e6, most[f])
		}
		at := func(state, read string) int { return most[format{state, read, kernels.Nearest}] }
		if !(at("float32", "same") < at("float16", "same") && at("float16", "same") < at("fp8", "same") && at("fp8", "same") < at("nvfp4", "same") && at("fp8", "nvfp4") > at("float16", "same")) {
			t.Errorf("%s: %v", file, most)
		}
	}
}
