package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"reprise/cmd/bench/internal/load"
	"reprise/cmd/internal/cli"
)

const serveUsage = `usage: bench serve [flags]

Sends requests to an OpenAI-compatible server (reprise, vLLM, SGLang and others) at times that do not depend on its
answers, and measures what comes back: time to first token, between tokens, to the end, tokens a second, goodput.
Latencies count from the intended arrival. One row for each of --rates (until the server is saturated) or --concurrency.

  bench serve --rates 1,2,4,8 --input-len 1024 --output-len 256
  bench serve --concurrency 1,16,64 --input-len 8192 --output-len 1024
  bench serve --trace mooncake_trace.jsonl --speed 2 --duration 5m

LENGTHS are N, A-B (uniform), normal:MEAN:DEVIATION, lognormal:MEDIAN:SIGMA or exp:MEAN.
`

type serveFlags struct {
	url, model, key     string
	rates               []string
	concurrency         []int
	arrival             string
	trace               string
	speed               float64
	prompts             string
	chat                bool
	synthetic           load.Synthetic
	limits              load.Limits
	requests            int
	duration, ramp      time.Duration
	warmup, maxInFlight int
	temperature         float64
	ignoreEOS, plain    bool
	extra               string
	slo                 load.SLO
	timeout             time.Duration
	json                bool
	output, plot        string

	set *pflag.FlagSet // says which flags are given
}

func (f *serveFlags) register(fs *pflag.FlagSet) {
	f.set = fs
	s := &f.synthetic
	_, _ = s.Input.Set("256"), s.Output.Set("64")
	fs.StringVar(&f.url, "base-url", "http://127.0.0.1:8000", "the server, with or without /v1")
	fs.StringVar(&f.model, "model", "", "model to ask for (default: the first that the server lists)")
	fs.StringVar(&f.key, "api-key", os.Getenv("OPENAI_API_KEY"), "key to send (default: the environment's OPENAI_API_KEY)")
	fs.Lookup("api-key").DefValue = ""
	fs.StringSliceVar(&f.rates, "rates", nil, "requests a second, a row each until saturation; inf = all at once (default: 1, without trace and concurrency)")
	fs.StringVar(&f.arrival, "arrival", "poisson", "gaps of --rates: poisson or fixed")
	fs.IntSliceVar(&f.concurrency, "concurrency", nil, "instead of a rate: keep so many requests under way, a row each (default: none)")
	fs.StringVar(&f.trace, "trace", "", "arrivals and lengths of a trace, .jsonl (Mooncake) or .csv (Azure, BurstGPT); with --rates or --concurrency only its lengths (default: none)")
	fs.Float64Var(&f.speed, "speed", 1, "replay a trace so many times as fast")
	fs.StringVar(&f.prompts, "prompts", "", "prompts of a text file (one a line), of JSON lines or of a ShareGPT file (default: random token ids)")
	fs.BoolVar(&f.chat, "chat", false, "send text prompts as chats")
	fs.Var(&s.Input, "input-len", "tokens of a prompt")
	fs.Var(&s.Output, "output-len", "tokens of an answer")
	fs.IntVar(&s.Prefix, "prefix-len", 0, "tokens in front of every prompt that prompts of a group share")
	fs.IntVar(&s.Groups, "prefix-groups", 1, "number of different shared prefixes")
	fs.IntVar(&s.Vocab, "vocab-size", 0, "token ids are below this (default: what the server says, else 10000)")
	fs.IntVar(&f.limits.Input, "max-input-len", 0, "cut prompts of token ids to this; 0 = no limit")
	fs.IntVar(&f.limits.Output, "max-output-len", 0, "cut lengths of answers to this; 0 = no limit")
	fs.Uint64Var(&s.Seed, "seed", 0, "of arrivals, lengths and prompts")
	fs.IntVar(&f.requests, "requests", 0, "measured requests of a row; a trace that has fewer begins again with other tokens, a replayed one ends (default: 100 without --duration; a whole trace)")
	fs.DurationVar(&f.duration, "duration", 0, "how long measured requests arrive; 0 = until --requests")
	fs.DurationVar(&f.ramp, "ramp", 0, "grow the load to its value during this time, without measuring")
	fs.IntVar(&f.warmup, "warmup", 2, "requests before each row, one after another, not measured and not of a trace's own; none before a replayed trace")
	fs.IntVar(&f.maxInFlight, "max-in-flight", 0, "hold requests of a rate or trace back while so many are under way; 0 = never")
	fs.Float64Var(&f.temperature, "temperature", 0, "of sampling")
	fs.BoolVar(&f.ignoreEOS, "ignore-eos", true, "answers have exactly the length asked for")
	fs.BoolVar(&f.plain, "plain", false, "send only fields that OpenAI's API knows: no ignore_eos, return_token_ids, continuous usage")
	fs.StringVar(&f.extra, "extra-body", "", "JSON object whose fields every request gets (default: none)")
	fs.Var(&f.slo, "slo", "what a request must keep for goodput: ttft=500ms,itl=50ms,tpot=30ms,e2e=10s or a part of it (default: none)")
	fs.DurationVar(&f.timeout, "timeout", 10*time.Minute, "longest time of a request")
	fs.BoolVar(&f.json, "json", false, "one JSON object a row")
	fs.StringVar(&f.output, "output-file", "", "file that also gets the JSON rows (default: none)")
	fs.StringVar(&f.plot, "plot", "", "PNG file for a picture of latencies and throughput (default: none)")
}

func serveCommand(args []string) error {
	f := serveFlags{}
	fs := cli.NewFlags("bench serve", serveUsage)
	f.register(fs)
	rest, err := cli.Parse(fs, args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return cli.Usagef("unexpected argument %q; the model is named by --model", rest[0])
	}
	if err := f.check(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends at once
	defer stop()
	return f.run(ctx, os.Stdout)
}

// offer is one load: a row.
type offer struct {
	name        string
	rate        float64
	concurrency int
}

// replay says that the trace's own times decide.
func (o offer) replay() bool { return o.rate == 0 && o.concurrency == 0 }

// loads are the rows that the command line asks for. A single one without a rate or concurrency replays the trace.
func (f *serveFlags) loads() ([]offer, error) {
	var out []offer
	rates := f.rates
	if len(rates) == 0 && len(f.concurrency) == 0 && f.trace == "" {
		rates = []string{"1"}
	}
	for _, text := range rates {
		rate, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil || !(rate > 0) {
			return nil, cli.Usagef("--rates %s: must be numbers above 0, or inf", text)
		}
		out = append(out, offer{name: fmt.Sprintf("%s %g/s", f.arrival, rate), rate: rate})
	}
	for _, n := range f.concurrency {
		out = append(out, offer{name: fmt.Sprintf("concurrency %d", n), concurrency: n})
	}
	if len(out) == 0 {
		out = append(out, offer{name: fmt.Sprintf("trace x %g", f.speed)})
	}
	return out, nil
}

// run measures all rows.
func (f *serveFlags) run(ctx context.Context, stdout io.Writer) error {
	trace, jobs, err := f.read()
	if err != nil {
		return err
	}
	client := load.NewClient(f.url, f.key, f.timeout, nil)
	defer client.Close()
	if err := f.ask(ctx, client); err != nil {
		return err
	}
	report, err := newReport(stdout, f)
	if err != nil {
		return err
	}
	loads, err := f.loads()
	if err != nil {
		return err
	}
	if loads[0].replay() && f.requests > len(trace) {
		report.note("the trace has %d requests, fewer than --requests %d: a replayed trace ends with its last", len(trace), f.requests)
	}
	return errors.Join(f.rows(ctx, client, report, loads, trace, jobs), report.close())
}

// rows measures one load after another; the error says what went wrong with requests.
func (f *serveFlags) rows(ctx context.Context, c *load.Client, report *report, loads []offer, trace []load.TraceRow, jobs []load.Job) error {
	var failures error
	for i, o := range loads {
		row, all, err := f.measure(ctx, c, o, f.source(trace, jobs, uint64(i)), trace)
		if err != nil {
			return errors.Join(failures, err)
		}
		report.add(row, all)
		failures = errors.Join(failures, verdict(row))
		if row.Completed == 0 && !row.Interrupted {
			return failures
		}
		if left, reason := len(loads)-i-1, ending(row, o); left > 0 && reason != "" {
			report.note("%d more rows are left out: %s", left, reason)
			break
		}
	}
	return failures
}

// verdict is why a row counts as failed; nil = it does not. A server that turns requests away under load does its work.
func verdict(row load.Row) error {
	switch {
	case row.Interrupted && row.Faults == 0:
		return nil
	case row.Requests == 0:
		return fmt.Errorf("%s: no request was measured: none arrived behind --ramp and within --duration", row.Load)
	case row.Completed == 0 && !row.Interrupted:
		return fmt.Errorf("%s: no request was answered; first error: %s", row.Load, row.FirstError)
	case row.Faults > 0:
		return fmt.Errorf("%s: %d of %d requests failed, and not because of load; first error: %s", row.Load, row.Faults, row.Requests, row.FirstError)
	}
	return nil
}

// ending is why no row may follow this one; "" = they may.
func ending(row load.Row, o offer) string {
	switch {
	case row.Interrupted:
		return "interrupted"
	case o.rate > 0 && row.Saturated:
		return "the server is saturated"
	case o.rate > 0 && 10*row.Faults > row.Requests:
		return "requests fail"
	}
	return ""
}

// read reads the trace or the prompts.
func (f *serveFlags) read() (trace []load.TraceRow, jobs []load.Job, err error) {
	name := f.trace + f.prompts // one of them is empty
	if name == "" {
		return nil, nil, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	if f.trace != "" {
		trace, err = load.ReadTrace(file)
	} else {
		jobs, err = load.ReadPrompts(file)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return trace, jobs, err
}

// guessedVocab is for servers that do not say: every model in use has more.
const guessedVocab = 10000

// ask fills in what the command line leaves to the server.
func (f *serveFlags) ask(ctx context.Context, c *load.Client) error {
	if f.model == "" || f.synthetic.Vocab == 0 {
		models, err := c.Models(ctx)
		switch {
		case err != nil && f.model == "":
			return fmt.Errorf("%w (is it running? --model says what to ask for)", err)
		case err == nil:
			f.choose(models)
		}
	}
	if f.synthetic.Vocab == 0 {
		f.synthetic.Vocab = guessedVocab
	}
	b := load.Body{Model: f.model, Temperature: f.temperature, IgnoreEOS: f.ignoreEOS, Chat: f.chat, Plain: f.plain}
	if f.extra != "" {
		b.Extra = json.RawMessage(strings.TrimSpace(f.extra))
	}
	c.With(b)
	return nil
}

func (f *serveFlags) choose(models []load.Model) {
	if f.model == "" {
		f.model = models[0].ID
	}
	for _, m := range models {
		if m.ID == f.model && f.synthetic.Vocab == 0 {
			f.synthetic.Vocab = m.Vocab
		}
	}
}

// source gives the requests of a row; rows do not repeat each other's random prompts, which a server may have cached.
func (f *serveFlags) source(trace []load.TraceRow, jobs []load.Job, row uint64) load.Source {
	s := f.synthetic
	s.Seed += row << 32
	switch {
	case trace != nil:
		return load.FromTrace(trace, s.Vocab, f.limits, s.Seed)
	case jobs != nil:
		return load.Repeat(jobs, s.Output, f.limits, s.Seed)
	}
	return s.Source()
}

// defaultRequests is measured where the command line sets no end.
const defaultRequests = 100

func (f *serveFlags) plan(o offer, source load.Source, trace []load.TraceRow) load.Plan {
	p := load.Plan{
		Source: source, Concurrency: o.concurrency, MaxInFlight: f.maxInFlight,
		Requests: f.requests, Duration: f.duration, Ramp: f.ramp, Warmup: f.warmup,
	}
	switch {
	case trace == nil && p.Requests == 0 && p.Duration == 0:
		p.Requests = defaultRequests
	case trace != nil && p.Requests == 0 && p.Duration == 0 && !o.replay():
		p.Requests = len(trace)
	}
	if trace != nil { // others' tokens, so that no prompt of the run is in a cache
		p.WarmUp = load.FromTrace(trace, f.synthetic.Vocab, f.limits, f.synthetic.Seed+1<<63)
	}
	switch {
	case o.rate > 0 && f.arrival == "fixed":
		p.Arrivals = load.Fixed(o.rate, f.ramp)
	case o.rate > 0:
		p.Arrivals = load.Poisson(o.rate, f.ramp, f.synthetic.Seed)
	case o.replay():
		p.Arrivals, p.Warmup = load.Timed(trace, f.speed), 0
	}
	return p
}

func (f *serveFlags) measure(ctx context.Context, c *load.Client, o offer, source load.Source, trace []load.TraceRow) (load.Row, []*load.Outcome, error) {
	p := f.plan(o, source, trace)
	bar := newServeBar(o.name, f.expected(p, o, trace))
	cpu, begin := cpuTime(), time.Now()
	all, err := load.Run(ctx, c, p, bar.ended)
	bar.finish()
	if err != nil {
		return load.Row{}, nil, err
	}
	row := load.Summarise(all, f.slo, f.ignoreEOS && !f.plain)
	row.Load, row.Rate, row.Concurrency = o.name, load.Rate(o.rate), o.concurrency
	row.ClientCores = (cpuTime() - cpu).Seconds() / time.Since(begin).Seconds()
	row.Interrupted = ctx.Err() != nil
	if o.concurrency == 0 && !math.IsInf(o.rate, 0) && !row.Interrupted {
		row.Judge(all)
	}
	return row, all, nil
}

// expected is about how many requests a row has, for the bar; -1 = not known.
func (f *serveFlags) expected(p load.Plan, o offer, trace []load.TraceRow) int {
	switch {
	case o.replay() && p.Requests == 0 && f.duration == 0:
		return len(trace)
	case o.replay() && f.ramp == 0:
		return min(p.Requests, len(trace))
	case p.Requests > 0 && f.ramp == 0:
		return p.Requests
	}
	return -1
}
