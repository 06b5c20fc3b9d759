package cli

import (
	"fmt"

	"github.com/spf13/pflag"
)

// recipe is a flag that command lines written for vLLM carry and that means nothing here, or only one value does.
type recipe struct {
	names  []string
	toggle bool   // takes no value, and has a --no- form
	says   string // what happens instead; "" = nothing has to be said
}

// Sentences that several flags share.
const (
	noDownload   = "nothing is downloaded: the model is a folder"
	textOnly     = "models take text only"
	oneProcess   = "the server is one process"
	ownKernels   = "kernels are chosen by the device"
	noGraphs     = "a GPU's steps are always captured, as the plan says, and nothing is compiled"
	ownStates    = "ReplaySSM manages recurrent states; see --replayssm-buffer-len"
	alwaysParsed = "reasoning and tool calls are recognised from the chat format itself"
	useLogLevel  = "see --log-level"
	ownSchedule  = "requests are served in order of arrival"
)

var recipeFlags = []recipe{
	{[]string{"trust-remote-code"}, true, "no code of a checkpoint is ever run"},
	{[]string{"reasoning-parser", "reasoning-parser-plugin", "tool-call-parser", "tool-parser-plugin"}, false, alwaysParsed},
	{[]string{"enable-auto-tool-choice", "enable-reasoning"}, true, alwaysParsed},
	{[]string{"async-scheduling"}, true, "the host always works one step behind the device"},
	{[]string{"enforce-eager"}, true, noGraphs},
	{[]string{"compilation-config", "optimization-level", "cudagraph-capture-sizes", "cuda-graph-sizes", "max-cudagraph-capture-size", "max-seq-len-to-capture"}, false, noGraphs},
	{[]string{"mamba-cache-mode", "mamba-block-size", "mamba-cache-dtype", "mamba-backend", "gdn-prefill-backend"}, false, ownStates},
	{[]string{"hf-overrides", "rope-scaling", "rope-theta"}, false, "the checkpoint's configuration is used as it is"},
	{[]string{"enable-chunked-prefill"}, true, "prompts are always computed in chunks of --max-num-batched-tokens"},
	{[]string{"no-enable-prefix-caching"}, true, ""},
	{[]string{"disable-log-requests", "disable-log-stats", "enable-log-requests", "enable-log-outputs", "disable-uvicorn-access-log"}, true, useLogLevel},
	{[]string{"uvicorn-log-level", "max-log-len"}, false, useLogLevel},
	{[]string{"quantization"}, false, "weights are used as the checkpoint stores them"},
	{[]string{"download-dir", "revision", "code-revision", "tokenizer-revision", "hf-token", "hf-config-path"}, false, noDownload},
	{[]string{"tokenizer-mode", "config-format", "model-impl", "task", "runner", "convert", "response-role"}, false, "there is only one"},
	{[]string{"distributed-executor-backend", "data-parallel-backend", "api-server-count", "nnodes", "node-rank", "master-addr", "master-port", "data-parallel-size-local", "all2all-backend", "worker-cls"}, false, oneProcess},
	{[]string{"enable-expert-parallel", "enable-eplb", "disable-custom-all-reduce", "disable-frontend-multiprocessing", "enable-dbo"}, true, oneProcess},
	{[]string{"limit-mm-per-prompt", "mm-encoder-tp-mode", "mm-encoder-attn-backend", "mm-processor-cache-gb", "mm-processor-cache-type", "mm-processor-kwargs", "media-io-kwargs", "allowed-local-media-path"}, false, textOnly},
	{[]string{"language-model-only", "skip-mm-profiling", "disable-mm-preprocessor-cache", "interleave-mm-strings"}, true, textOnly},
	{[]string{"attention-backend", "attention-config", "moe-backend", "linear-backend", "kernel-config"}, false, ownKernels},
	{[]string{"disable-cascade-attn", "enable-flashinfer-autotune", "calculate-kv-scales", "disable-sliding-window"}, true, ownKernels},
	{[]string{"kv-transfer-config", "kv-events-config", "kv-offloading-size", "kv-offloading-backend", "cpu-offload-gb", "kv-cache-memory-bytes"}, false, "caches are planned from --gpu-memory-utilization"},
	{[]string{"disable-hybrid-kv-cache-manager", "enable-sleep-mode"}, true, "caches are planned from --gpu-memory-utilization"},
	{[]string{"scheduling-policy", "max-num-partial-prefills", "max-long-partial-prefills", "long-prefill-token-threshold", "num-scheduler-steps", "num-lookahead-slots", "preemption-mode", "stream-interval", "performance-mode"}, false, ownSchedule},
	{[]string{"model-loader-extra-config", "max-parallel-loading-workers", "safetensors-load-strategy", "ignore-patterns"}, false, "files are mapped into memory"},
	{[]string{"use-tqdm-on-load"}, true, "progress is shown on a terminal"},
	{[]string{"chat-template-content-format"}, false, "found out from the chat template"},
	{[]string{"trust-request-chat-template", "enable-prompt-tokens-details", "enable-force-include-usage", "enable-server-load-tracking", "enable-request-id-headers", "exclude-tools-when-tool-choice-none"}, true, "not available"},
	{[]string{"structured-outputs-config", "guided-decoding-backend", "reasoning-config", "logits-processors", "additional-config", "observability-config", "otlp-traces-endpoint", "collect-detailed-traces", "show-hidden-metrics-for-version"}, false, "not available"},
}

// parallelFlags split a model over devices.
var parallelFlags = []string{"tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "decode-context-parallel-size", "prefill-context-parallel-size"}

// refusedFlags change what is served in a way that nothing here does.
var refusedFlags = map[string]string{
	"enable-lora": "adapters are not supported", "lora-modules": "adapters are not supported",
	"ssl-keyfile": "TLS is not supported; put a proxy in front", "ssl-certfile": "TLS is not supported; put a proxy in front",
}

// recipes registers such flags and says which were given.
type recipes struct{}

// ignored is a flag whose value nobody reads.
type ignored struct{ kind string }

// Set implements pflag.Value.
func (*ignored) Set(string) error { return nil }

// String implements pflag.Value.
func (*ignored) String() string { return "" }

// Type implements pflag.Value.
func (i *ignored) Type() string { return i.kind }

// only1 is a flag of which only 1 is supported.
type only1 struct{}

// Set implements pflag.Value.
func (only1) Set(text string) error {
	if text != "1" {
		return fmt.Errorf("only 1 is supported: a model runs on one device")
	}
	return nil
}

// String implements pflag.Value.
func (only1) String() string { return "1" }

// Type implements pflag.Value.
func (only1) Type() string { return "1" }

// never is a flag that cannot be set.
type never struct{ why string }

// Set implements pflag.Value.
func (n never) Set(string) error { return fmt.Errorf("%s", n.why) }

// String implements pflag.Value.
func (never) String() string { return "" }

// Type implements pflag.Value.
func (never) Type() string { return "" }

func (r *recipes) register(fs *pflag.FlagSet) {
	for _, name := range parallelFlags {
		fs.Var(only1{}, name, "devices that a model is split over")
	}
	for _, f := range recipeFlags {
		for _, name := range f.names {
			r.accept(fs, name, f.toggle)
		}
	}
	for name, why := range refusedFlags {
		fs.VarPF(never{why}, name, "", why).NoOptDefVal = "true"
		fs.Lookup(name).Hidden = true
	}
}

func (r *recipes) accept(fs *pflag.FlagSet, name string, toggle bool) {
	kind := "string"
	if toggle {
		kind = "bool"
	}
	names := []string{name}
	if toggle {
		names = append(names, "no-"+name)
	}
	for _, name := range names {
		if fs.Lookup(name) != nil {
			continue
		}
		flag := fs.VarPF(&ignored{kind}, name, "", "accepted without effect")
		flag.Hidden = true
		if toggle {
			flag.NoOptDefVal = "true"
		}
	}
}

// warnings has a line for each flag that was given and does nothing.
func (r *recipes) warnings(fs *pflag.FlagSet) []string {
	var out []string
	for _, f := range recipeFlags {
		for _, name := range f.names {
			for _, name := range []string{name, "no-" + name} {
				if f.says != "" && fs.Changed(name) {
					out = append(out, fmt.Sprintf("--%s has no effect: %s", name, f.says))
				}
			}
		}
	}
	return out
}
