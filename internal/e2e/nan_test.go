package e2e

import (
	"bytes"
	"testing"
)

// TestWeightsOfNaN: a checkpoint whose matrices are all NaN gives nonsense, never a crash, a hang or broken JSON.
func TestWeightsOfNaN(t *testing.T) {
	f := golden(t, "qwen35-dense-tied-mtp")
	s := takeApart(t, f["model.safetensors"])
	s.data = bytes.Clone(s.data)
	for _, e := range s.header {
		if shape, _ := e["shape"].([]any); len(shape) == 2 { // vectors are refused while loading
			at := e["data_offsets"].([]any)
			part := s.data[int(at[0].(float64)):int(at[1].(float64))]
			copy(part, bytes.Repeat([]byte{0xff}, len(part)))
		}
	}
	f["model.safetensors"] = s.join(t)
	for _, flags := range [][]string{nil, {"--speculative-config", drafting}} {
		v := serve(t, append([]string{"--model", f.write(t), "--skip-tokenizer-init"}, flags...)...)
		for _, fields := range []string{`"temperature":0`, `"temperature":1,"seed":1`, `"top_p":0.5,"seed":1`, `"top_k":5,"seed":2`, `"min_p":0.3,"seed":2`, `"presence_penalty":1,"seed":3`} {
			v.must(completions, `{"prompt":[1,2,3,4],"max_tokens":5,"ignore_eos":true,"logprobs":3,"echo":true,`+fields+`}`)
			v.must(completions, `{"prompt":[1,2,3,4],"max_tokens":5,"ignore_eos":true,"logprobs":3,"prompt_logprobs":2,`+fields+`}`)
		}
		v.terminate(endWithin)
	}
}
