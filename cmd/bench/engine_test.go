package main

import (
	"strings"
	"testing"
)

func TestSyntheticAcceptanceNeedsDummyWeights(t *testing.T) {
	err := engineCommand([]string{"demo-nemotron", "--accept-tokens", "2", "--speculative-config", `{"method":"mtp","num_speculative_tokens":3}`, "--batch", "1", "--skip-check"})
	if err == nil || !strings.Contains(err.Error(), "--load-format dummy") {
		t.Errorf("%v", err)
	}
}

// TestEngineRefuses: one line that names the flag at fault.
func TestEngineRefuses(t *testing.T) {
	const drafts = `--speculative-config {"method":"mtp","num_speculative_tokens":2} `
	for line, words := range map[string]string{
		"--context -5":                                "--context -5",
		"--prefill-prompts 0":                         "--prefill-prompts 0",
		"--prefill-len -4":                            "--prefill-len -4",
		"--output-len 7":                              "--output-len 7",
		"--prompt-len 0":                              "--prompt-len 0",
		"--repeats 0":                                 "--repeats 0",
		"--batch 0":                                   `"--batch" flag: must be whole numbers`,
		"--context 64 --prompt-len 64":                "--context and --prompt-len",
		drafts + "--accept-tokens nan":                "--accept-tokens NaN",
		drafts + "--accept-tokens 0.5":                "--accept-tokens 0.5",
		drafts + "--accept-tokens inf":                "--accept-tokens: +Inf",
		drafts + "--accept-tokens 3.5":                "--accept-tokens: 3.5",
		drafts + "--accept-tokens 2 --accept 0.5":     "--accept and --accept-tokens",
		drafts + "--accept 0.5,0.5,0.5":               "--accept: 3 probabilities for 2 drafts",
		drafts + "--accept nan":                       "--accept: ",
		drafts + "--accept x":                         "must be probabilities",
		"--accept 0.5":                                "--accept: 1 probabilities for 0 drafts",
		"--batch 2,5 --max-num-seqs 4":                "--batch 5: 4 sequences",
		"--batch 3 --num-state-blocks 2":              "--batch 3: 2 sequences",
		"--batch 1 --prefill-prompts 65":              "--prefill-prompts 65: 64 sequences",
		"--breakdown":                                 "--breakdown needs a GPU",
		"--batch 4 --num-kv-blocks 8 --prefill-len 0": "--batch 4: KV pages",
		"--batch 2 --max-num-batched-tokens 1 --prompt-len 64 --output-len 8 --prefill-len 0": "--batch 2: some sequences ended",
	} {
		err := engineCommand(append([]string{"demo-qwen35", "--device", "cpu", "--skip-check"}, strings.Fields(line)...))
		if err == nil || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want a line with %q", line, err, words)
		}
	}
}
