package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"reprise/cmd/internal/cli"
	"reprise/engine"
	"reprise/kernels/kerneltest"
	"reprise/sampler"
)

const engineUsage = `usage: bench engine [MODEL] [flags]

Decodes with different numbers of sequences at once, and computes a prompt, on one model. Made-up weights
(--load-format dummy) do for speed. The floor is the larger of bytes / read rate and flops / multiply-add rate.
`

// engineRow is one line. Times are medians over the repeats.
type engineRow struct {
	Mode         string  `json:"mode"` // decode or prefill
	Sequences    int     `json:"sequences"`
	TokensSecond float64 `json:"tokens_per_second"`
	StepMillis   float64 `json:"step_ms"`
	FloorMillis  float64 `json:"floor_ms"`
	Ratio        float64 `json:"ratio"`
	TokensStep   float64 `json:"tokens_per_step"` // of a sequence; above 1 with speculation
}

type engineFlags struct {
	model                   cli.Model
	batches                 []int
	prompt, output, prefill int
	repeats                 int
	json, unchecked         bool
}

func engineCommand(args []string) error {
	f := engineFlags{}
	fs := cli.NewFlags("bench engine", engineUsage)
	fs.IntSliceVar(&f.batches, "batch", []int{1, 32}, "numbers of sequences at once")
	fs.IntVar(&f.prompt, "prompt-len", 32, "tokens of a prompt")
	fs.IntVar(&f.output, "output-len", 128, "tokens that are generated")
	fs.IntVar(&f.prefill, "prefill-len", 2048, "tokens of the prompt whose computation is timed; 0 = none")
	fs.IntVar(&f.repeats, "repeats", 5, "runs of each line; the median counts")
	fs.BoolVar(&f.json, "json", false, "one JSON object a row")
	fs.BoolVar(&f.unchecked, "skip-check", false, "do not run the conformance suite first; the run is then marked unchecked")
	f.model.Register(fs)
	rest, err := cli.Parse(fs, args)
	if err != nil {
		return err
	}
	if err := f.model.Positional(rest); err != nil {
		return err
	}
	if f.output < 8 || f.prompt < 1 || f.repeats < 1 || f.prefill < 0 || slices.Min(f.batches) < 1 {
		return cli.Usagef("--output-len must be 8 or more, --prompt-len, --repeats and --batch 1 or more")
	}
	return f.run()
}

func (f *engineFlags) run() error {
	loaded, err := f.model.Load(nil)
	if err != nil {
		return err
	}
	defer loaded.Close()
	for _, w := range loaded.Warnings {
		fmt.Fprintln(os.Stderr, w)
	}
	if !f.unchecked {
		fmt.Fprintln(os.Stderr, "conformance suite ...")
		if failures := kerneltest.Failures(loaded.Device); len(failures) > 0 {
			return fmt.Errorf("the device computes wrong, so no figures: %d failures, first: %s", len(failures), failures[0])
		}
	}
	rates, err := measure(loaded.Device)
	if err != nil {
		return err
	}
	e := loaded.Engine
	c := coster{spec: e.Spec(), want: e.Tensors(), plan: e.Plan(), act: loaded.Device.Activations()}
	t := newTable(f.json, "mode\tsequences\ttokens/s\tstep ms\tfloor ms\tratio\ttokens/step\t")
	t.note("%s, %s, %d threads, %s; read %.1f GB/s, multiply-add %.1f GFLOP/s", f.model.Model, loaded.Device.Name(), runtime.GOMAXPROCS(0), runtime.Version(), rates.Read/1e9, rates.Flops/1e9)
	t.note("%s", e.Plan())
	for _, n := range f.batches {
		r, err := f.decode(e.Engine, n)
		if err != nil {
			return err
		}
		r.FloorMillis = 1e3 * c.step(n, f.prompt+f.output/2).floor(rates)
		r.Ratio = r.StepMillis / r.FloorMillis
		printRow(t, r)
	}
	if f.prefill > 0 {
		r, err := f.timePrefill(e.Engine)
		if err != nil {
			return err
		}
		r.FloorMillis = 1e3 * c.prefill(f.prefill).floor(rates)
		r.Ratio = r.StepMillis / r.FloorMillis
		printRow(t, r)
	}
	t.flush()
	return nil
}

func printRow(t *table, r engineRow) {
	t.row(r, "%s\t%d\t%.1f\t%.2f\t%.2f\t%.2f\t%.2f\t", r.Mode, r.Sequences, r.TokensSecond, r.StepMillis, r.FloorMillis, r.Ratio, r.TokensStep)
}

// decode times n sequences at once, from when all have begun to when the first ends.
func (f *engineFlags) decode(e *engine.Engine, n int) (engineRow, error) {
	row := engineRow{Mode: "decode", Sequences: n}
	var rates, steps []float64
	for i := range f.repeats + 1 { // the first warms up
		tokens, seconds, perStep, err := f.once(e, n, uint64(i))
		if err != nil {
			return row, err
		}
		if i > 0 {
			rates, steps = append(rates, tokens/seconds), append(steps, perStep)
		}
	}
	row.TokensSecond, row.TokensStep = median(rates), median(steps)
	row.StepMillis = 1e3 * float64(n) * row.TokensStep / row.TokensSecond
	return row, nil
}

// once runs n sequences and returns the tokens in the window, its length, and the tokens a sequence gets a step.
func (f *engineFlags) once(e *engine.Engine, n int, seed uint64) (tokens, seconds, perStep float64, err error) {
	arrivals := make([][]time.Time, n) // of every token
	errs := make([]error, n)
	before := e.Stats()
	var readers sync.WaitGroup
	for i := range n {
		s, err := e.Submit(request(e, f.prompt, f.output, seed<<16+uint64(i)))
		if err != nil {
			return 0, 0, 0, err
		}
		readers.Go(func() { arrivals[i], errs[i] = listen(s) })
	}
	readers.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, 0, 0, err
		}
	}
	begin, end := time.Time{}, arrivals[0][len(arrivals[0])-1]
	for _, a := range arrivals {
		if a[0].After(begin) {
			begin = a[0]
		}
		if last := a[len(a)-1]; last.Before(end) {
			end = last
		}
	}
	for _, a := range arrivals {
		for _, at := range a {
			if at.After(begin) && !at.After(end) {
				tokens++
			}
		}
	}
	after := e.Stats()
	perStep = 1
	if rows := after.StepRows - before.StepRows; rows > 0 {
		perStep = float64(after.StepTokens-before.StepTokens) / float64(rows)
	}
	return tokens, end.Sub(begin).Seconds(), perStep, nil
}

func request(e *engine.Engine, prompt, output int, seed uint64) engine.Request {
	r := rand.New(rand.NewPCG(seed, 7))
	ids := make([]int32, prompt)
	for i := range ids {
		ids[i] = int32(r.IntN(e.Limits().Vocab))
	}
	p := sampler.Default()
	p.Temperature = 0
	return engine.Request{Prompt: ids, MaxTokens: output, IgnoreEOS: true, Sampling: p, LogProbs: -1, PromptLogProbs: -1}
}

func listen(s *engine.Sequence) ([]time.Time, error) {
	var out []time.Time
	for {
		u, err := s.Next(context.Background())
		if err != nil {
			return nil, err
		}
		now := time.Now()
		for range u.Tokens {
			out = append(out, now)
		}
		if u.Err != nil {
			return nil, u.Err
		}
		if u.Done() {
			return out, nil
		}
	}
}

// timePrefill times one prompt on an idle engine, to its first token.
func (f *engineFlags) timePrefill(e *engine.Engine) (engineRow, error) {
	row := engineRow{Mode: "prefill", Sequences: 1, TokensStep: 1}
	var times []float64
	for i := range f.repeats + 1 {
		begin := time.Now()
		s, err := e.Submit(request(e, f.prefill, 1, uint64(i)))
		if err != nil {
			return row, err
		}
		if _, err := listen(s); err != nil {
			return row, err
		}
		if i > 0 {
			times = append(times, time.Since(begin).Seconds())
		}
	}
	seconds := median(times)
	row.TokensSecond, row.StepMillis = float64(f.prefill)/seconds, 1e3*seconds
	return row, nil
}

func median(x []float64) float64 {
	x = slices.Clone(x)
	slices.Sort(x)
	return x[len(x)/2]
}
