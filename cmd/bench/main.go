// Command bench measures: single operations (kernels) and whole steps (engine), each beside the floor that follows from
// the machine's own rates in the same run, where nothing is printed for a device that computes wrong; what formats cost
// in accuracy (kl); and a server under load (serve).
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"
)

const usage = `usage: bench COMMAND [flags]

commands
  kernels   every hot operation at the shapes that matter: time, bytes, flops, floor, ratio
  engine    decode and prefill of whole models: tokens a second, step time, floor, ratio
  kl        how far formats of state and cache, and the window, move a model's distributions over long texts
  serve     an OpenAI-compatible server under load: latencies, throughput, goodput

bench COMMAND --help lists the flags; --json prints one JSON object a row
`

var commands = map[string]func(args []string) error{"kernels": kernelsCommand, "engine": engineCommand, "kl": klCommand, "serve": serveCommand}

func main() {
	if err := run(os.Args[1:]); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return
		}
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 || args[0] == "--help" || args[0] == "-h" || args[0] == "help" {
		fmt.Print(usage)
		return nil
	}
	command, ok := commands[args[0]]
	if !ok {
		return fmt.Errorf("unknown command %q\n\n%s", args[0], usage)
	}
	return command(args[1:])
}
