package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"syscall"

	"reprise/cmd/internal/cli"
	"reprise/cmd/internal/kl"
	"reprise/engine"
	"reprise/spec"
	"reprise/tokenizer"
)

const klUsage = `usage: bench kl [MODEL] --text FILE [flags]

How far a setting moves the model's next-token distributions: texts are read token by token, as if they were being
generated, once with each --setting and once with --reference, side by side; reported is the Kullback-Leibler divergence
from the reference by position (tokens read), in nats: the mean over texts and positions, median and maximum over the
texts, apart for the positions up to each --split and beyond.

A setting is a list of words: state=DTYPE read=DTYPE rounding=R kv=DTYPE window=L, which stand for --mamba-ssm-cache-dtype,
--ssm-read-dtype, --ssm-rounding, --kv-cache-dtype and --replayssm-buffer-len. What it does not name is as the other flags
say. A value may be a list: state=fp8,nvfp4 window=16,32 are four settings. "paper" are the states of the ReplaySSM paper.

  bench kl demo-qwen35 --text book.txt --setting "kv=bfloat16,fp8" --setting "state=float16 read=nvfp4" --plot kl.png
`

// mostPerStep bounds --tokens-per-step.
const mostPerStep = 1 + spec.MaxDepth

// mostText is the bytes that are read of one file.
const mostText = 256 << 20

type klFlags struct {
	model           cli.Model
	files, settings []string
	reference       string
	texts, length   int
	prompt, tokens  int
	splits          []int
	csv, plot       string
	json            bool
}

func klCommand(args []string) error {
	f := klFlags{}
	fs := cli.NewFlags("bench kl", klUsage)
	fs.StringArrayVar(&f.files, "text", nil, "text file to read, may be .gz or .zst; may be given several times")
	fs.StringArrayVar(&f.settings, "setting", []string{"paper"}, "setting to measure, or list of them; may be given several times")
	fs.StringVar(&f.reference, "reference", "state=float32 read=same rounding=nearest", "setting to measure against")
	fs.IntVar(&f.texts, "texts", 8, "excerpts that are read at once, spread over the files")
	fs.IntVar(&f.length, "length", 1536, "tokens of an excerpt")
	fs.IntVar(&f.prompt, "prompt-len", 1, "tokens of an excerpt that are computed as its prompt; the rest is decoded and measured")
	fs.IntVar(&f.tokens, "tokens-per-step", 1, fmt.Sprintf("tokens of a text that a step reads, 1 to %d; more than one verifies them as drafts", mostPerStep))
	f.splits = []int{1024}
	fs.Var(counts{&f.splits, math.MaxInt32}, "split", "positions up to each of these are reported apart")
	fs.StringVar(&f.csv, "csv", "", "file for a line a setting and position")
	fs.StringVar(&f.plot, "plot", "", "file for a PNG picture of divergence over position")
	fs.BoolVar(&f.json, "json", false, "one JSON object a row")
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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends at once
	defer stop()
	return f.run(ctx)
}

// elsewhere are flags of a model whose values follow from the texts here.
var elsewhere = []string{"speculative-config", "num-kv-blocks", "num-state-blocks", "max-num-seqs", "max-num-batched-tokens"}

// check refuses what makes no sense, before anything is loaded.
func (f *klFlags) check(given func(flag string) bool) error {
	if i := slices.IndexFunc(elsewhere, given); i >= 0 {
		return cli.Usagef("--%s means nothing here: counts follow from --texts, --length and --tokens-per-step", elsewhere[i])
	}
	switch {
	case len(f.files) == 0:
		return cli.Usagef("--text is needed: a file to read")
	case f.texts < 1 || f.texts > 1<<12:
		return cli.Usagef("--texts %d must be from 1 to %d", f.texts, 1<<12)
	case f.prompt < 1 || f.length <= f.prompt:
		return cli.Usagef("--prompt-len %d must be 1 or more, and --length %d above it", f.prompt, f.length)
	case f.tokens < 1 || f.tokens > mostPerStep:
		return cli.Usagef("--tokens-per-step %d must be from 1 to %d", f.tokens, mostPerStep)
	case sameFile(f.csv, f.plot):
		return cli.Usagef("--csv and --plot name the same file, %s", f.csv)
	}
	return cmp.Or(writable("csv", f.csv), writable("plot", f.plot))
}

// errInterrupted is what a signal ends a comparison with, at whatever stage.
var errInterrupted = errors.New("interrupted: nothing is reported, no file is written")

// run loads, compares and reports; it ends early when ctx does.
func (f *klFlags) run(ctx context.Context) error {
	loading := make(chan error, 1)
	var l klLoaded
	go func() { loading <- f.load(&l) }()
	select {
	case err := <-loading:
		defer l.close()
		if err != nil {
			return err
		}
	case <-ctx.Done(): // loading cannot be stopped, but nobody waits for it
		go func() { <-loading; l.close() }()
		return errInterrupted
	}
	c := newComparison(l.runs, l.settings, f)
	if err := c.run(ctx); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%s, %s, %d threads, %s; %d texts of %d tokens, prompts of %d, %d a step; reference %s, KV %s, window %d\n", f.model.Model, l.model.Device.Name(),
		runtime.GOMAXPROCS(0), runtime.Version(), f.texts, f.length, f.prompt, f.tokens, l.reference.Name, l.runs[0].Plan().KV.DType, l.runs[0].Plan().Window.L)
	return f.report(c.series)
}

// klLoaded is what a comparison needs.
type klLoaded struct {
	settings  []kl.Setting
	reference kl.Setting
	model     *cli.Loaded
	forced    *engine.Forced
	runs      []*engine.ForcedRun // the reference first
}

// close closes what load opened, however far it came.
func (l *klLoaded) close() {
	if l.forced != nil {
		l.forced.Close()
	}
	if l.model != nil {
		l.model.Close()
	}
}

// load opens model, texts and a run for the reference and each setting.
func (f *klFlags) load(l *klLoaded) (err error) {
	if l.settings, err = kl.ParseSettings(f.settings); err != nil {
		return cli.Usagef("--setting: %v", err)
	}
	if l.reference, err = kl.ParseSetting(f.reference); err != nil {
		return cli.Usagef("--reference: %v", err)
	}
	if l.model, err = f.model.Prepare(nil); err != nil {
		return err
	}
	if n := l.model.Options.MaxLen; n > 0 && n < f.length {
		return cli.Usagef("--max-model-len %d is less than the --length %d of the texts", n, f.length)
	}
	for _, w := range l.model.Warnings {
		fmt.Fprintln(os.Stderr, w)
	}
	texts, err := f.excerpts(l.model)
	if err != nil {
		return err
	}
	l.forced, err = engine.OpenForced(l.model.Device, l.model.Source, engine.Texts{IDs: texts, Prompt: f.prompt, Tokens: f.tokens}, l.model.Options.Seed)
	if err != nil {
		return err
	}
	l.runs, err = f.openAll(l.forced, l.reference, l.settings)
	return err
}

// openAll opens the runs of the reference and of the settings, each of which must mean something else.
func (f *klFlags) openAll(forced *engine.Forced, reference kl.Setting, settings []kl.Setting) ([]*engine.ForcedRun, error) {
	first, err := f.open(forced, reference)
	if err != nil {
		return nil, err
	}
	runs, names := []*engine.ForcedRun{first}, map[string]string{}
	for _, s := range settings {
		r, err := f.open(forced, s)
		if err != nil {
			return nil, err
		}
		p := r.Plan()
		meaning := fmt.Sprintf("state %v, KV %v, window %d", p.SSM.State, p.KV.DType, p.Window.L)
		if other := names[meaning]; other != "" {
			return nil, cli.Usagef("--setting: %q and %q are the same: %s", other, s.Name, meaning)
		}
		names[meaning], runs = s.Name, append(runs, r)
	}
	return runs, nil
}

func (f *klFlags) open(forced *engine.Forced, s kl.Setting) (*engine.ForcedRun, error) {
	o, err := f.model.OptionsWith(s.Flags)
	if err != nil {
		return nil, fmt.Errorf("setting %q: %w", s.Name, err)
	}
	r, err := forced.Run(o)
	if err != nil {
		return nil, fmt.Errorf("setting %q: %w", s.Name, err)
	}
	return r, nil
}

// excerpts reads and cuts the files.
func (f *klFlags) excerpts(loaded *cli.Loaded) ([][]int32, error) {
	if loaded.Tokenizer == nil {
		return nil, cli.Usagef("--skip-tokenizer-init: texts need a tokenizer")
	}
	var ids [][]int32
	for _, name := range f.files {
		text, err := readText(name)
		if err != nil {
			return nil, fmt.Errorf("--text: %w", err)
		}
		ids = append(ids, loaded.Tokenizer.Encode(text, tokenizer.EncodeOptions{}))
	}
	return kl.Excerpts(ids, f.files, f.texts, f.length)
}

func readText(name string) (string, error) {
	in, err := cli.Open(name)
	if err != nil {
		return "", err
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, mostText+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", name, err)
	case len(text) > mostText:
		return "", fmt.Errorf("%s: has more than %d bytes", name, mostText)
	}
	return string(text), nil
}

// report prints the table and writes the files that were asked for.
func (f *klFlags) report(all []*kl.Series) error {
	t := newTable(f.json, "setting\tpositions\tmean\tmedian\tmax\tworst\tsame top\tnot finite\t")
	for _, span := range kl.Spans(f.prompt+1, f.length, f.splits) {
		for _, s := range all {
			if r, ok := s.Summary(span); ok {
				t.row(r, "%s\t%d-%d\t%.3g\t%.3g\t%.3g\t%.3g\t%.2f %%\t%d\t", r.Setting, r.From, r.To, r.Mean, r.Median, r.Max, r.Worst, 100*r.SameTop, r.NotFinite)
			}
		}
	}
	t.flush()
	title := fmt.Sprintf("%s: KL from %s", f.model.Model, f.reference)
	return errors.Join(
		writeFile(f.csv, func(w io.Writer) error { return kl.WriteCSV(w, all) }),
		writeFile(f.plot, func(w io.Writer) error { return kl.WritePlot(w, title, all) }))
}

// comparison drives the runs step by step, so that only one step's logits exist at a time.
type comparison struct {
	runs      []*engine.ForcedRun // the reference first
	series    []*kl.Series        // of the others
	reference *kl.Reference
	progress  *cli.Progress
}

func newComparison(runs []*engine.ForcedRun, settings []kl.Setting, f *klFlags) *comparison {
	c := &comparison{runs: runs}
	for _, s := range settings {
		c.series = append(c.series, kl.NewSeries(s.Name, f.texts, f.length))
	}
	c.reference = kl.NewReference(f.texts*f.tokens, runs[0].Vocab())
	c.progress = cli.NewProgress("tokens", f.texts*(f.length-f.prompt), 0)
	return c
}

// run reads the texts to their end, or until ctx is done.
func (c *comparison) run(ctx context.Context) error {
	defer c.progress.Finish()
	for c.runs[0].Launch() {
		for _, r := range c.runs[1:] {
			r.Launch() // the device computes it while rows of the one before are compared
		}
		if err := c.step(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return errInterrupted
		}
	}
	for _, r := range c.runs {
		if err := r.Close(); err != nil {
			return err
		}
	}
	return nil
}

func (c *comparison) step() error {
	rows, err := c.runs[0].Collect()
	if err != nil {
		return err
	}
	if err := each(len(rows), func(i int) error {
		if err := c.reference.Set(i, rows[i].Logits); err != nil {
			return fmt.Errorf("text %d behind %d tokens: %w", rows[i].Text, rows[i].Read, err)
		}
		return nil
	}); err != nil {
		return err
	}
	for k, r := range c.runs[1:] {
		others, err := r.Collect()
		if err != nil {
			return err
		}
		if err := each(len(rows), func(i int) error { return c.compare(k, i, rows, others) }); err != nil {
			return err
		}
	}
	c.progress.Add(len(rows))
	return nil
}

func (c *comparison) compare(k, i int, rows, others []engine.ForcedRow) error {
	if len(rows) != len(others) || rows[i].Text != others[i].Text || rows[i].Read != others[i].Read {
		return fmt.Errorf("setting %q does not read what the reference reads", c.series[k].Name)
	}
	nats, same := c.reference.Divergence(i, others[i].Logits)
	c.series[k].Set(rows[i].Text, rows[i].Read, nats, same)
	return nil
}

// each calls f for 0..n-1 in parallel and returns the first error by number.
func each(n int, f func(i int) error) error {
	errs := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { errs[i] = f(i) })
	}
	group.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return errs[i]
	}
	return nil
}
