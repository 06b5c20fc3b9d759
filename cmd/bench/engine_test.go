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
