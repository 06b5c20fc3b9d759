package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"reprise/cmd/internal/cli"
	"reprise/engine"
	"reprise/kernels/kernelbench"
	"reprise/kernels/kerneltest"
	"reprise/sampler"
	"reprise/spec"
)

const engineUsage = `usage: bench engine [MODEL] [flags]

Decodes with different numbers of sequences at once, and computes a prompt, on one model. Made-up weights
(--load-format dummy) do for speed. The floor is the sum over operations of the
larger of bytes / read rate and flops / multiply-add rate.
`

// engineRow is one line. Times are medians over the repeats.
type engineRow struct {
	Mode         string  `json:"mode"` // decode, speculative or prefill, and what was made up
	Sequences    int     `json:"sequences"`
	Context      int     `json:"context"` // tokens before the last one, on average
	TokensSecond float64 `json:"tokens_per_second"`
	StepMillis   float64 `json:"step_ms"`
	FloorMillis  float64 `json:"floor_ms"`
	Ratio        float64 `json:"ratio"`
	TokensStep   float64 `json:"tokens_per_step"` // of a sequence; above 1 with speculation

	// With speculation: tokens a second over those of plain decoding, as measured and as the floors give it.
	Gain      float64 `json:"gain,omitempty"`
	FloorGain float64 `json:"floor_gain,omitempty"`
	// Idle is the share of a run in which the device ran no program, where the device can tell; else -1.
	Idle float64 `json:"idle"`
}

type engineFlags struct {
	model                            cli.Model
	batches                          []int
	prompt, output, prefill, prompts int
	context                          int
	tokens                           float64
	chances                          []float64
	repeats                          int
	json, unchecked                  bool
	breakdown                        bool

	synthetic *spec.Synthetic
}

func engineCommand(args []string) error {
	f := engineFlags{}
	fs := cli.NewFlags("bench engine", engineUsage)
	f.batches = []int{1, 32}
	fs.Var(counts{&f.batches, math.MaxInt32}, "batch", "numbers of sequences at once")
	fs.IntVar(&f.prompt, "prompt-len", 32, "tokens of a prompt")
	fs.IntVar(&f.output, "output-len", 128, "tokens that are generated")
	fs.IntVar(&f.prompts, "prefill-prompts", 1, "prompts of --prefill-len that are computed together")
	fs.IntVar(&f.prefill, "prefill-len", 2048, "tokens of the prompt whose computation is timed; 0 = none")
	fs.IntVar(&f.context, "context", 0, "prompts of so many tokens that are declared to be computed: the caches hold made-up numbers; 0 = computed prompts of --prompt-len")
	fs.Float64Var(&f.tokens, "accept-tokens", 0, "accept drafts by a seeded coin, so many tokens a step on average; 0 = as the model says")
	fs.Var((*chances)(&f.chances), "accept", "accept drafts by a seeded coin: the probability at each position, if those before were accepted")
	fs.IntVar(&f.repeats, "repeats", 5, "runs of each line; the median counts")
	fs.BoolVar(&f.json, "json", false, "one JSON object a row")
	fs.BoolVar(&f.breakdown, "breakdown", false, "instead of requests: what each kind of operation adds to a step")
	fs.BoolVar(&f.unchecked, "skip-check", false, "do not run the conformance suite first; the run is then marked unchecked")
	f.model.Register(fs)
	rest, err := cli.Parse(fs, args)
	if err != nil {
		return err
	}
	if err := f.model.Positional(rest); err != nil {
		return err
	}
	if err := f.check(fs.Changed); err != nil {
		return err
	}
	if f.context > 0 {
		f.prompt = f.context
	}
	f.model.Change = f.options
	return f.run()
}

// check refuses numbers and pairs of flags that make no sense, whatever the model.
func (f *engineFlags) check(given func(flag string) bool) error {
	for _, c := range []struct {
		flag     string
		n, least int
	}{
		{"prompt-len", f.prompt, 1}, {"output-len", f.output, 8}, {"prefill-len", f.prefill, 0}, {"prefill-prompts", f.prompts, 1},
		{"context", f.context, 0}, {"repeats", f.repeats, 1},
	} {
		if c.n < c.least {
			return cli.Usagef("--%s %d must be %d or more", c.flag, c.n, c.least)
		}
	}
	switch {
	case f.context > 0 && given("prompt-len"):
		return cli.Usagef("--context and --prompt-len: a declared context is the prompt; give one of them")
	case given("accept") && given("accept-tokens"):
		return cli.Usagef("--accept and --accept-tokens: give one of them")
	case f.tokens != 0 && !(f.tokens >= 1):
		return cli.Usagef("--accept-tokens %g must be 0 or from 1 to 1 more than the drafts", f.tokens)
	}
	return nil
}

// options are those that only a measurement may have.
func (f *engineFlags) options(o *engine.Options) error {
	o.Declared = f.context > 0
	switch {
	case f.tokens > 0:
		chance, err := spec.Even(f.tokens, o.Drafts)
		if err != nil {
			return cli.Usagef("--accept-tokens: %v", err)
		}
		f.synthetic = &spec.Synthetic{Chance: chance, Seed: 1}
	case len(f.chances) > o.Drafts:
		return cli.Usagef("--accept: %d probabilities for %d drafts a step (--speculative-config)", len(f.chances), o.Drafts)
	case len(f.chances) > 0:
		f.synthetic = &spec.Synthetic{Chance: f.chances, Seed: 1}
		if err := f.synthetic.Check(); err != nil {
			return cli.Usagef("--accept: %v", err)
		}
	}
	if f.synthetic != nil && !f.model.Dummy() {
		return cli.Usagef("--accept-tokens and --accept need --load-format dummy: drafts that a trained model accepts come on top of the coin's")
	}
	o.Synthetic = f.synthetic
	return nil
}

// mode names a row, with everything that is made up.
func (f *engineFlags) mode(name string) string {
	if f.context > 0 {
		name += ", declared context"
	}
	if f.synthetic != nil && strings.HasPrefix(name, "spec") {
		name += ", synthetic acceptance"
	}
	return name
}

func (f *engineFlags) run() error {
	loaded, err := f.model.Load(nil)
	if err != nil {
		return err
	}
	defer loaded.Close()
	if err := f.fits(loaded); err != nil {
		return err
	}
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
	r := engineRun{
		engineFlags: f, engine: e.Engine, rates: rates,
		cost: coster{spec: e.Spec(), want: e.Tensors(), plan: e.Plan(), act: loaded.Device.Activations()},
	}
	r.meter, _ = loaded.Device.(kernelbench.Meter)
	r.table = newTable(f.json, "mode\tsequences\tcontext\ttokens/s\tstep ms\tfloor ms\tratio\ttokens/step\tgain\tfloor's gain\tidle\t")
	r.table.note("%s, %s, %d threads, %s; read %.1f GB/s, multiply-add %.1f GFLOP/s", f.model.Model, loaded.Device.Name(), runtime.GOMAXPROCS(0), runtime.Version(), rates.Read/1e9, rates.Flops/1e9)
	r.table.note("%s", e.Plan())
	if f.breakdown {
		return r.breakdown()
	}
	if err := r.rows(); err != nil {
		return err
	}
	r.table.flush()
	return nil
}

// fits refuses what this engine cannot measure.
func (f *engineFlags) fits(loaded *cli.Loaded) error {
	plan := loaded.Engine.Plan()
	most := min(plan.MaxSeqs, plan.SSM.Blocks-1)
	switch n := slices.Max(f.batches); {
	case n > most:
		return cli.Usagef("--batch %d: %d sequences run at once (--max-num-seqs, --num-state-blocks)", n, most)
	case f.prefill > 0 && f.prompts > most:
		return cli.Usagef("--prefill-prompts %d: %d sequences run at once (--max-num-seqs, --num-state-blocks)", f.prompts, most)
	case f.breakdown && !loaded.Device.Graphs():
		return cli.Usagef("--breakdown needs a GPU: %s captures no steps", loaded.Device.Name())
	}
	return nil
}

// engineRun is an engine being measured.
type engineRun struct {
	*engineFlags
	engine *engine.Engine
	rates  kernelbench.Rates
	cost   coster
	meter  kernelbench.Meter // nil where the device has none
	table  *table
}

// rows measures and prints all lines.
func (r *engineRun) rows() error {
	drafts := r.cost.plan.Window.T - 1
	for _, n := range r.batches {
		plain, err := r.decode("decode", n, true)
		if err != nil {
			return err
		}
		context := plain.Context
		floor := r.cost.step(n, 1, context).floor(r.rates)
		r.print(plain, floor)
		if drafts == 0 {
			continue
		}
		row, err := r.decode("speculative", n, false)
		if err != nil {
			return err
		}
		verify := r.cost.step(n, 1+drafts, context).floor(r.rates) + r.cost.draft(n, 1+drafts, drafts, context).floor(r.rates)
		row.Gain, row.FloorGain = row.TokensSecond/plain.TokensSecond, row.TokensStep*floor/verify
		r.print(row, verify)
	}
	if r.prefill == 0 {
		return nil
	}
	row, err := r.timePrefill()
	if err == nil {
		r.print(row, r.cost.prefill(r.prompts, r.prefill).floor(r.rates))
	}
	return err
}

// print prints a row beside its floor, in seconds.
func (r *engineRun) print(row engineRow, floor float64) {
	row.FloorMillis = 1e3 * floor
	row.Ratio = row.StepMillis / row.FloorMillis
	optional := func(v float64, format string) string {
		if v <= 0 {
			return "-"
		}
		return fmt.Sprintf(format, v)
	}
	idle := "-"
	if row.Idle >= 0 {
		idle = fmt.Sprintf("%.1f %%", 100*row.Idle)
	}
	r.table.row(row, "%s\t%d\t%d\t%.1f\t%.2f\t%.2f\t%.2f\t%.2f\t%s\t%s\t%s\t", row.Mode, row.Sequences, row.Context, row.TokensSecond, row.StepMillis, row.FloorMillis, row.Ratio, row.TokensStep,
		optional(row.Gain, "%.2f"), optional(row.FloorGain, "%.2f"), idle)
}

// decode times n sequences at once, from when all have begun to when the first ends.
func (r *engineRun) decode(name string, n int, plain bool) (engineRow, error) {
	row := engineRow{Mode: r.mode(name), Sequences: n, Context: r.prompt + r.output/2, Idle: -1}
	var rates, steps []float64
	for i := range r.repeats + 1 { // the first warms up
		tokens, seconds, perStep, err := r.once(n, uint64(i), plain)
		if err != nil {
			return row, err
		}
		if i > 0 {
			rates, steps = append(rates, tokens/seconds), append(steps, perStep)
		}
	}
	row.TokensSecond, row.TokensStep = median(rates), median(steps)
	row.StepMillis = 1e3 * float64(n) * row.TokensStep / row.TokensSecond
	var err error
	if r.meter != nil {
		row.Idle, err = r.idle(n, plain)
	}
	return row, err
}

// idle is the share of one more run, prompts included, in which the device ran nothing.
func (r *engineRun) idle(n int, plain bool) (float64, error) {
	if err := r.meter.Meter(true); err != nil {
		return 0, err
	}
	begin := time.Now()
	if _, _, _, err := r.once(n, uint64(r.repeats+1), plain); err != nil {
		return 0, err
	}
	wall := time.Since(begin)
	busy, err := r.meter.Busy()
	if err != nil {
		return 0, err
	}
	return max(0, 1-busy.Seconds()/wall.Seconds()), r.meter.Meter(false)
}

// once runs n sequences and returns the tokens in the window, its length, and the tokens a sequence gets a step.
func (r *engineRun) once(n int, seed uint64, plain bool) (tokens, seconds, perStep float64, err error) {
	e := r.engine
	arrivals := make([][]time.Time, n) // of every token
	errs := make([]error, n)
	before := e.Stats()
	var readers sync.WaitGroup
	for i := range n {
		q := request(e, r.prompt, r.output, seed<<16+uint64(i))
		q.NoDrafts = plain
		if r.context > 0 {
			q.Declared = r.prompt - 1
		}
		s, err := e.Submit(q)
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
	switch {
	case after.Preemptions > before.Preemptions:
		return 0, 0, 0, fmt.Errorf("--batch %d: KV pages for %d sequences at once ran out (--num-kv-blocks, --prompt-len, --output-len)", n, n)
	case tokens == 0:
		return 0, 0, 0, fmt.Errorf("--batch %d: some sequences ended before all had begun; a longer --output-len or larger --max-num-batched-tokens", n)
	}
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

// timePrefill times prompts that come at once to an idle engine, until each has its first token.
func (r *engineRun) timePrefill() (engineRow, error) {
	e, row := r.engine, engineRow{Mode: "prefill", Sequences: r.prompts, Context: r.prefill / 2, TokensStep: 1, Idle: -1}
	var times []float64
	for i := range r.repeats + 1 {
		begin := time.Now()
		sequences := make([]*engine.Sequence, r.prompts)
		for n := range sequences {
			var err error
			if sequences[n], err = e.Submit(request(e, r.prefill, 1, uint64(i*r.prompts+n))); err != nil {
				return row, err
			}
		}
		for _, s := range sequences {
			if _, err := listen(s); err != nil {
				return row, err
			}
		}
		if i > 0 {
			times = append(times, time.Since(begin).Seconds())
		}
	}
	seconds := median(times)
	row.TokensSecond, row.StepMillis = float64(r.prompts*r.prefill)/seconds, 1e3*seconds
	return row, nil
}

func median(x []float64) float64 {
	x = slices.Clone(x)
	slices.Sort(x)
	return x[len(x)/2]
}
