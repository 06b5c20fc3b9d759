package main

import (
	"encoding/json"
	"math"
	"net/url"

	"reprise/cmd/bench/internal/load"
	"reprise/cmd/internal/cli"
)

func (f *serveFlags) check() error {
	s := &f.synthetic
	switch {
	case len(f.rates) > 0 && len(f.concurrency) > 0:
		return cli.Usagef("--rates and --concurrency exclude each other")
	case f.arrival != "poisson" && f.arrival != "fixed":
		return cli.Usagef("--arrival %s: must be poisson or fixed", f.arrival)
	case f.trace != "" && f.prompts != "":
		return cli.Usagef("--trace and --prompts exclude each other")
	case !(f.speed > 0) || math.IsInf(f.speed, 0):
		return cli.Usagef("--speed %v: must be above 0", f.speed)
	case f.requests < 0 || f.duration < 0 || f.ramp < 0 || f.warmup < 0 || f.maxInFlight < 0 || f.limits.Input < 0 || f.limits.Output < 0:
		return cli.Usagef("--requests, --duration, --ramp, --warmup, --max-in-flight, --max-input-len and --max-output-len must not be negative")
	case s.Prefix < 0 || s.Prefix > load.MaxLength || s.Groups < 1 || s.Vocab < 0 || s.Vocab > math.MaxInt32:
		return cli.Usagef("--prefix-len must be from 0 to %d, --prefix-groups 1 or more, --vocab-size from 1 to %d", load.MaxLength, math.MaxInt32)
	case f.timeout <= 0 || f.temperature < 0 || math.IsNaN(f.temperature) || math.IsInf(f.temperature, 0):
		return cli.Usagef("--timeout must be above 0 and --temperature not negative")
	}
	for _, n := range f.concurrency {
		if n < 1 || n > 1<<16 {
			return cli.Usagef("--concurrency %d: must be from 1 to %d", n, 1<<16)
		}
	}
	for _, part := range []func() error{f.checkURL, f.checkUnused, f.checkExtra, f.checkFiles} {
		if err := part(); err != nil {
			return err
		}
	}
	_, err := f.loads()
	return err
}

func (f *serveFlags) checkURL() error {
	u, err := url.Parse(f.url)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return cli.Usagef("--base-url %s: must be http:// or https:// and a host, such as http://127.0.0.1:8000", f.url)
	}
	return nil
}

// checkUnused refuses flags that would change nothing.
func (f *serveFlags) checkUnused() error {
	given := f.set.Changed
	paced := len(f.rates) > 0 || len(f.concurrency) > 0
	switch {
	case given("rates") && len(f.rates) == 0:
		return cli.Usagef("--rates names no rate")
	case given("concurrency") && len(f.concurrency) == 0:
		return cli.Usagef("--concurrency names no number")
	case given("speed") && (f.trace == "" || paced):
		return cli.Usagef("--speed is for a --trace without --rates and --concurrency")
	case given("arrival") && len(f.concurrency) > 0:
		return cli.Usagef("--arrival is for --rates; with --concurrency answers decide when the next request is sent")
	case given("arrival") && f.trace != "" && !paced:
		return cli.Usagef("--arrival is for --rates; a replayed trace has its own times")
	case f.chat && f.prompts == "":
		return cli.Usagef("--chat is for --prompts; random token ids are no chat")
	}
	for _, made := range f.unmade() {
		if given(made) {
			return cli.Usagef("--%s is for random prompts; --%s has its own", made, map[bool]string{true: "trace", false: "prompts"}[f.trace != ""])
		}
	}
	return nil
}

// unmade are the flags that describe random prompts and answers, where a file has them. Prompts may lack a length of the
// answer: --output-len then counts.
func (f *serveFlags) unmade() []string {
	switch {
	case f.trace != "":
		return []string{"input-len", "output-len", "prefix-len", "prefix-groups"}
	case f.prompts != "":
		return []string{"input-len", "prefix-len", "prefix-groups"}
	}
	return nil
}

func (f *serveFlags) checkExtra() error {
	if f.extra == "" {
		return nil
	}
	var members map[string]json.RawMessage
	if json.Unmarshal([]byte(f.extra), &members) != nil || members == nil {
		return cli.Usagef("--extra-body must be a JSON object")
	}
	if n, ok := members["n"]; ok && string(n) != "1" {
		return cli.Usagef("--extra-body: n must be 1: several answers to a request would be counted as one")
	}
	return nil
}

// checkFiles refuses to write over a file that another flag names.
func (f *serveFlags) checkFiles() error {
	files := []struct{ flag, path string }{{"--output-file", f.output}, {"--plot", f.plot}, {"--trace", f.trace}, {"--prompts", f.prompts}}
	for i, a := range files[:2] {
		for _, b := range files[i+1:] {
			if sameFile(a.path, b.path) {
				return cli.Usagef("%s and %s name the same file, %s", a.flag, b.flag, a.path)
			}
		}
	}
	return nil
}
