// Command bench measures: single operations (kernels) and whole steps (engine), each beside the floor that follows from
// the machine's own rates in the same run, where nothing is printed for a device that computes wrong; what formats cost
// in accuracy (kl); and a server under load (serve).
package main

import (
	"fmt"

	"reprise/cmd/internal/cli"
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

func main() { cli.Main("bench", run) }

func run(args []string) error {
	if len(args) == 0 || args[0] == "--help" || args[0] == "-h" || args[0] == "help" {
		fmt.Print(usage)
		return nil
	}
	command, ok := commands[args[0]]
	if !ok {
		return cli.Usagef("unknown command %q: kernels, engine, kl or serve (bench --help says more)", args[0])
	}
	return command(args[1:])
}
