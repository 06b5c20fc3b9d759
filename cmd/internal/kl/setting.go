package kl

import (
	"fmt"
	"slices"
	"strings"
)

// Setting is a way to run a model: flags of the command line, by name, on top of those that all runs share.
type Setting struct {
	Name  string // as it was written: "state=fp8 rounding=stochastic"
	Flags map[string]string
}

// words of settings, in the order of names, and the flags they stand for.
var words = []struct{ word, flag string }{
	{"state", "mamba-ssm-cache-dtype"},
	{"read", "ssm-read-dtype"},
	{"rounding", "ssm-rounding"},
	{"kv", "kv-cache-dtype"},
	{"window", "replayssm-buffer-len"},
}

// paper is what "paper" stands for: the states of arXiv 2610.13778, section 7.4 and appendix E.4.5, and as the floor a
// float32 state that is replayed in another order.
var paper = []string{
	"window=32",
	"state=float16,fp8,nvfp4 rounding=nearest,stochastic",
	"state=float32 read=fp8,nvfp4",
	"state=float16 rounding=stochastic read=fp8,nvfp4",
	"state=fp8 rounding=stochastic read=nvfp4",
}

// most is how many settings one run may have.
const most = 64

// ParseSettings reads settings: words with values, "state=fp8 rounding=stochastic"; a value may be a list, and then
// every combination is a setting: "state=fp8,nvfp4 window=16,32" are four. "paper" are those of the paper.
func ParseSettings(texts []string) ([]Setting, error) {
	var out []Setting
	for _, text := range texts {
		lines := []string{text}
		if strings.TrimSpace(text) == "paper" {
			lines = paper
		}
		for _, line := range lines {
			all, err := combinations(line)
			if err != nil {
				return nil, fmt.Errorf("setting %q: %w", text, err)
			}
			out = append(out, all...)
		}
	}
	if len(out) == 0 || len(out) > most {
		return nil, fmt.Errorf("%d settings: must be from 1 to %d", len(out), most)
	}
	for i, s := range out {
		if err := s.check(); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(out[:i], func(o Setting) bool { return o.Name == s.Name }) {
			return nil, fmt.Errorf("setting %q is there twice", s.Name)
		}
	}
	return out, nil
}

// ParseSetting reads one setting without lists.
func ParseSetting(text string) (Setting, error) {
	all, err := combinations(text)
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("has %d combinations, must be one", len(all))
	}
	if err != nil {
		return Setting{}, fmt.Errorf("setting %q: %w", text, err)
	}
	return all[0], all[0].check()
}

// check refuses values that a flag takes and that name no setting of their own.
func (s Setting) check() error {
	state, read := s.Flags["mamba-ssm-cache-dtype"], s.Flags["ssm-read-dtype"]
	switch {
	case state != "" && state == read:
		return fmt.Errorf("setting %q: a copy to read in the state's own format is no copy; leave read out", s.Name)
	case s.Flags["replayssm-buffer-len"] == "-1":
		return fmt.Errorf("setting %q: a window must be 1 or more, or auto", s.Name)
	}
	return nil
}

// combinations expands lists; the first word's value changes slowest.
func combinations(text string) ([]Setting, error) {
	values, err := parseWords(text)
	if err != nil {
		return nil, err
	}
	out := []Setting{{}}
	for _, w := range words {
		list, ok := values[w.word]
		if !ok {
			continue
		}
		var next []Setting
		for _, s := range out {
			for _, v := range list {
				next = append(next, s.with(w.word, w.flag, v))
			}
		}
		if out = next; len(out) > most {
			return nil, fmt.Errorf("more than %d combinations", most)
		}
	}
	return out, nil
}

func (s Setting) with(word, flag, value string) Setting {
	next := Setting{strings.TrimSpace(s.Name + " " + word + "=" + value), map[string]string{flag: value}}
	for k, v := range s.Flags {
		next.Flags[k] = v
	}
	return next
}

// parseWords reads "word=value,value ...".
func parseWords(text string) (map[string][]string, error) {
	out := map[string][]string{}
	for _, field := range strings.Fields(text) {
		word, list, ok := strings.Cut(field, "=")
		if !slices.ContainsFunc(words, func(w struct{ word, flag string }) bool { return w.word == word }) {
			return nil, fmt.Errorf("%q is not one of state, read, rounding, kv, window", word)
		}
		values := strings.Split(list, ",")
		if !ok || slices.Contains(values, "") {
			return nil, fmt.Errorf("%q needs a value, or several with commas", word)
		}
		if out[word] != nil {
			return nil, fmt.Errorf("%q is there twice", word)
		}
		out[word] = values
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("is empty")
	}
	return out, nil
}
