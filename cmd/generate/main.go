// Command generate answers a file of requests: OpenAI batch lines in, one result line for each out.
//
// The output file is the only memory of a run. Every result names the number of its input line, so that a run which was
// killed goes on where it stopped and no line is ever answered twice.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"reprise/cmd/internal/cli"
)

const usage = `usage: generate [MODEL] -i in.jsonl -o out.jsonl [flags]

Answers every line of a file in the OpenAI batch format:
  {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}
and writes one line for each, in the order in which they are finished:
  {"id": "batch_req_1", "custom_id": "1", "response": {"status_code": 200, "request_id": "...", "body": {...}}, "error": null}
A line that cannot be answered gets a result with an error; blank lines are skipped. Files may end in .gz or .zst, and -
stands for standard input or output. Run again after an interruption, the same command goes on where it stopped.
Exit status: 0 when every line has its result, errors included; 1 otherwise; 2 for a wrong command line.
`

type flags struct {
	model    cli.Model
	in, out  string
	inFlight int
}

func main() { cli.Main("generate", run) }

func parse(args []string) (*flags, error) {
	f := &flags{}
	fs := cli.NewFlags("generate", usage)
	fs.StringVarP(&f.in, "input", "i", "", "file of requests, - for standard input")
	fs.StringVarP(&f.out, "output", "o", "", "file of results, - for standard output")
	fs.IntVar(&f.inFlight, "in-flight", 0, "requests that are worked on at once (default: twice --max-num-seqs)")
	f.model.Register(fs)
	rest, err := cli.Parse(fs, args)
	switch {
	case err != nil:
		return nil, err
	case f.in == "" || f.out == "":
		return nil, cli.Usagef("-i FILE and -o FILE are needed")
	case f.inFlight < 0:
		return nil, cli.Usagef("--in-flight %d is negative", f.inFlight)
	}
	return f, f.model.Positional(rest)
}

func run(args []string) error {
	f, err := parse(args)
	if err != nil {
		return err
	}
	if err := checkFiles(f.in, f.out); err != nil {
		return err
	}
	out, done, err := openOutput(f.out)
	if err != nil {
		return err
	}
	defer out.Close()
	total, err := survey(f.in, done)
	if err != nil {
		return err
	}
	if total == 0 {
		fmt.Fprintf(os.Stderr, "generate: %s has no lines: there is nothing to answer\n", f.in)
		return nil
	}
	if total > 0 && len(done) >= total {
		fmt.Fprintf(os.Stderr, "generate: all %d lines have their results already\n", total)
		return nil
	}
	model, err := f.model.Load(cli.LoadProgress())
	if err != nil {
		return err
	}
	for _, line := range model.Warnings {
		fmt.Fprintln(os.Stderr, "warning:", line)
	}
	if f.inFlight == 0 {
		f.inFlight = 2 * model.Engine.Plan().MaxSeqs
	}
	err = work(f, model, out, done, total)
	if errors.Is(err, context.Canceled) {
		model.Engine.Abort()
		err = errors.New("interrupted; the same command goes on from here")
	}
	return errors.Join(err, model.Close())
}

func work(f *flags, model *cli.Loaded, out *output, done map[int]uint64, total int) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	in, err := openInput(f.in)
	if err != nil {
		return err
	}
	defer in.Close()
	start := time.Now()
	r := runner{api: model.API(nil), fault: model.Engine.Err, inFlight: f.inFlight, out: out, done: done, progress: cli.NewProgress("lines", total, len(done))}
	err = r.run(ctx, in)
	r.progress.Finish()
	generated := model.Engine.Stats().GeneratedTokens
	fmt.Fprintf(os.Stderr, "generate: %d lines answered, %d of them with errors, %d tokens in %.1f s (%.0f a second)\n",
		r.answered, r.failed, generated, time.Since(start).Seconds(), float64(generated)/time.Since(start).Seconds())
	return err
}
