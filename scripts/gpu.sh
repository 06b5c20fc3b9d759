#!/usr/bin/env bash
# Shows on an H200 what docs/benchmarks.md says of it, part by part: the commands behind its figures, with made-up weights.
# `make cuda cuda-test` builds what it runs; nothing but this folder is needed where the GPU is. A part writes OUT_DIR/PART.log
# and ends with one line; figures are made only where `check` has passed on the same programs.
# usage: gpu.sh [-n] PART[,PART...] [OUT_DIR]   -n prints the commands; OUT_DIR: /tmp/reprise-gpu
#        gpu.sh --list                          parts, their minutes and what they show
# environment: PROGRAMS=bin (where the programs are), JOBS=16 (tests of `check` and pieces of `sanitize` at once)
set -u
cd "$(dirname "$0")/.." || exit 1
programs=${PROGRAMS:-bin} jobs=${JOBS:-16} dry="" out=/tmp/reprise-gpu

parts() {
	cat <<-LIST
		check        3  every operation in both modes, goldens, speculation and formats: what all figures rest on
		decode       2  steps of Nano-4B and Qwen3.5-4B by batch; 512 sequences; FP8 KV
		prefill      1  16 x 2,048 and 1 x 32,768 tokens; scans and attention alone
		speculation  3  three drafts a step, all and few tokens to draft, adaptive depth; an MTP head on Nano-4B
		states       3  states in fewer bits: steps, kernels, replay windows, how many sequences fit
		kernels      3  mixers, attention, products, experts and sampling alone
		long         1  64 sequences of 8,192 tokens and 16 of 32,768, bfloat16 and FP8 KV
		serving      5  serve under bench serve, beside bench engine
		loading      1  a checkpoint of 40 GB in memory-backed files
		soak         9  four engines, saturated for eight minutes; nothing else may use the GPU
		sanitize     9  every tool of compute-sanitizer over kernels and mixed steps
	LIST
}

# The models are shapes: configurations without weights.
nano=$PWD/model/nemotron/testdata/nano-4b.json
qwen=cmd/bench/testdata/qwen3.5-4b
drafting_nano=cmd/bench/testdata/nano-4b-mtp

# nano_folder makes the model folder that programs want of a configuration.
nano_folder() {
	mkdir -p "$out/nano-4b" && cp "$nano" "$out/nano-4b/config.json" && nano=$out/nano-4b
}

show() { printf '%q ' "$@"; echo; }

# run runs a command of a part for at most so many seconds; all it says goes to the log, and to the terminal what it prints
# as its result. A dry run prints the command alone.
run() { # SECONDS COMMAND...
	local limit=$1 status begin=$SECONDS
	shift
	[ -z "$dry" ] || { show "$@"; return; }
	printf '\n+ %s\n' "$*" | tee -a "$log"
	timeout -k 5 "$limit" "$@" 2>>"$log" | tee -a "$log"
	status=${PIPESTATUS[0]} ran=$((ran + 1))
	[ "$status" -eq 0 ] && return
	failed=$((failed + 1))
	echo "exit $status after $((SECONDS - begin)) s of at most $limit" | tee -a "$log"
}

bench() { run 240 "$programs/bench" "$@" --device cuda --skip-check; }

engine() { # MODEL FLAGS...
	bench engine "$@" --load-format dummy --skip-tokenizer-init
}

times() { run 120 "$programs/cuda.test" -test.v -test.run "^$1\$"; } # TEST

table() { run 120 "$programs/cuda.test" -test.run '^$' -test.bench "$1" -test.benchtime 1x; } # BENCHMARK

# proofs are the tests that have to pass, a line each: program and arguments, the longest first. Cases of the suite are dealt
# out by number, and the last lines take whatever is not named, so that what is new is among them.
proofs() {
	local mode name
	for name in a-r s-v ^a-v; do echo "cuda.test -test.run ^TestStepVariants\$/^[$name]"; done # names by their first letter
	for mode in F32 BF16; do
		for name in {0..7}/8; do echo "cuda.test -test.run ^TestConformance$mode\$ -part $name"; done
	done
	echo "cuda.test -test.run ^TestConformanceManyRows\$"
	for name in demo-nemotron demo-qwen35 qwen35-moe-mtp qwen35-dense-tied-mtp qwen35-dense nemotron-latent-mtp nemotron-moe nemotron-dense; do
		echo "engine.test -test.run ^TestCUDAFloat32\$/^$name\$"
	done
	for name in float32 bfloat16; do echo "engine.test -test.run ^TestCUDALogProbs\$/^$name\$"; done
	echo "engine.test -test.run ^TestCUDAFormats\$"
	echo "engine.test -test.run ^TestCUDA -test.skip ^TestCUDA(Float32|LogProbs|Formats|SpeculativeTexts|Loading|Soak)\$"
	echo "cuda.test -test.skip ^Test(Conformance.*|StepVariants|.*Times)\$"
}

# lone_proofs are thousands of steps one after another, which take their turns with all other processes on the GPU: seconds
# alone, many minutes among sixteen.
lone_proofs() {
	local name
	for name in demo-nemotron demo-qwen35; do echo "engine.test -test.run ^TestCUDASpeculativeTexts\$/^$name\$"; done
}

# prove runs one of them and prints a line; its output goes to a file of its own. A test that was not there, or had nothing
# to run, has not passed.
prove() { # PROGRAM ARGUMENTS...
	local file program=$1 status passed
	shift
	file=$(mktemp "$out/check.XXXXXX")
	timeout -k 5 300 "$programs/$program" -test.v "$@" >"$file" 2>&1
	status=$? passed=$(grep -c -- '--- PASS' "$file")
	grep -q 'no GPU\|no tests to run' "$file" && status=1
	[[ $* != */* || $passed -ge 2 ]] || status=1
	printf '%-11s %-80s exit %-3d %4d passed %3d failed\n' "$program" "$*" $status "$passed" "$(grep -c -- '--- FAIL' "$file")"
	[ $status -eq 0 ] || grep -E -- '--- FAIL|\.go:[0-9]+: |panic|no GPU' "$file" | tail -8
}

part_check() {
	if [ -n "$dry" ]; then
		local words
		while read -r -a words; do show "$programs/${words[0]}" -test.v "${words[@]:1}"; done < <(proofs; lone_proofs)
		return
	fi
	rm -f "$out/passed" "$out"/check.??????
	export -f prove
	export out programs
	{
		proofs | xargs -P "$jobs" -L 1 bash -c 'prove "$@"' prove
		lone_proofs | xargs -L 1 bash -c 'prove "$@"' prove
	} | tee -a "$log"
	ran=$(grep -cE '^[a-z]+\.test .* exit ' "$log") failed=$(grep -cE '^[a-z]+\.test .* exit [1-9]' "$log")
	[ "$ran" -eq "$( (proofs; lone_proofs) | wc -l)" ] || failed=$((failed + 1))
	cat "$out"/check.?????? >>"$log"
	rm -f "$out"/check.??????
	[ "$failed" -ne 0 ] || build >"$out/passed"
}

# build identifies the programs.
build() { cat "$programs"/{bench,serve,cuda.test,engine.test} | sha256sum; }

# green refuses figures of programs that `check` has not passed.
green() { # PART
	[ -n "$dry" ] || [ "$(cat "$out/passed" 2>/dev/null)" = "$(build)" ] && return
	echo "$1: no figures: the tests of these programs have not passed; first: scripts/gpu.sh check $out" >&2
	return 1
}

decode=(--prefill-len 0 --context 192)
part_decode() {
	local model
	for model in "$nano" "$qwen"; do
		engine "$model" "${decode[@]}" --max-model-len 1024 --max-num-seqs 256 --batch 1,8,32,128,256 --output-len 128 --repeats 2
	done
	engine "$nano" "${decode[@]}" --max-model-len 512 --max-num-seqs 512 --batch 512 --output-len 48 --repeats 1
	for model in "$nano" "$qwen"; do
		engine "$model" "${decode[@]}" --max-model-len 512 --max-num-seqs 512 --batch 1,32,256,512 --output-len 48 --repeats 1 --kv-cache-dtype fp8
	done
	engine "$qwen" "${decode[@]}" --max-model-len 1024 --max-num-seqs 256 --batch 1,256 --breakdown
}

part_prefill() {
	local model
	for model in "$qwen" "$nano"; do
		engine "$model" --batch 1 --context 256 --output-len 8 --prefill-len 2048 --prefill-prompts 16 --max-model-len 2304 --max-num-seqs 32 --max-num-batched-tokens 32768 --repeats 2
		engine "$model" --batch 1 --context 256 --output-len 8 --prefill-len 32768 --max-model-len 33024 --max-num-seqs 4 --max-num-batched-tokens 8192 --repeats 2
		engine "$model" --batch 1 --context 256 --output-len 8 --prefill-len 8192 --max-model-len 8448 --max-num-seqs 4 --max-num-batched-tokens 8192 --repeats 2
	done
	times TestScanTimes
	times TestPrefillTimes
}

part_speculation() {
	drafts "$qwen" 3 ',"adaptive":false'
	drafts "$drafting_nano" 3 ',"adaptive":false'
	drafts "$qwen" 3 ',"adaptive":false,"draft_vocab_size":32768'
	drafts "$qwen" 3 ""   # adaptive depth, where drafts pay
	drafts "$qwen" 1.2 "" # and where they do not
}

# drafts decodes with three drafts a step, accepted by a coin: one sequence for so long that the coin falls as it should, and
# many.
drafts() { # MODEL TOKENS_A_STEP MORE_OF_THE_CONFIG
	local flags=("${decode[@]}" --max-model-len 1024 --repeats 1 --accept-tokens "$2"
		--speculative-config "{\"method\":\"mtp\",\"num_speculative_tokens\":3$3}")
	engine "$1" "${flags[@]}" --max-num-seqs 1 --batch 1 --output-len 512
	engine "$1" "${flags[@]}" --max-num-seqs 256 --batch 32,128,256 --output-len 96
}

part_states() {
	local model shape
	for model in "$qwen" "$nano"; do
		engine "$model" "${decode[@]}" --max-model-len 512 --max-num-seqs 512 --batch 256,512 --output-len 48 --repeats 1 --mamba-ssm-cache-dtype fp8 --ssm-rounding stochastic
		engine "$model" "${decode[@]}" --max-model-len 512 --max-num-seqs 512 --batch 256,512 --output-len 48 --repeats 1 --mamba-ssm-cache-dtype float16 --ssm-rounding stochastic
	done
	table Formats
	for shape in q4b nano; do bench kernels --windows --match $shape; done
	run 300 "$programs/engine.test" -test.v -test.run '^TestConcurrencyByFormat$'
}

part_kernels() {
	table 'Table/.*step'
	table Steps
	table Layers
	run 300 "$programs/cuda.test" -test.v -test.run 'Times$' -test.skip '^Test(Scan|Prefill)Times$' # those are in prefill
}

part_long() {
	local model kv
	for model in "$nano" "$qwen"; do
		for kv in bfloat16 fp8; do
			engine "$model" --prefill-len 0 --context 8192 --max-model-len 8448 --max-num-seqs 64 --batch 64 --output-len 64 --repeats 1 --kv-cache-dtype $kv
			engine "$model" --prefill-len 0 --context 32768 --max-model-len 33024 --max-num-seqs 16 --batch 16 --output-len 64 --repeats 1 --kv-cache-dtype $kv
		done
	done
}

part_serving() {
	if [ -n "$dry" ]; then
		PROGRAMS=$programs scripts/serving.sh -n "$qwen"
	else
		PROGRAMS=$programs run 500 scripts/serving.sh "$qwen"
	fi
}

part_loading() {
	run 300 "$programs/engine.test" -test.v -test.run '^TestCUDALoading$' -load.dir "${LOAD_DIR:-/dev/shm}" -load.gb 40
}

part_soak() {
	run 590 "$programs/engine.test" -test.v -test.run '^TestCUDASoak$' -soak 8m -soak.alone
}

part_sanitize() {
	JOBS=$jobs run 590 scripts/sanitize.sh "$programs/cuda.test" "$programs/engine.test"
}

# part runs one and ends with a line.
part() { # NAME
	local begin=$SECONDS verdict=ok
	ran=0 failed=0 log=$out/$1.log
	case $1 in check | soak | sanitize) ;; *) green "$1" || return ;; esac
	[ -z "$dry" ] || { part_"$1"; return; }
	library
	echo "$1: about $(minutes "$1") minutes" | tee "$log"
	part_"$1"
	[ $failed -eq 0 ] || verdict=FAILED
	echo "$1: $verdict, $failed of $ran failed, $((SECONDS - begin)) s, $log" | tee -a "$log"
	[ $failed -eq 0 ]
}

minutes() { parts | awk -v name="$1" '$1 == name {print $2}'; }

# library tells the loader where cuBLASLt is, if it does not know.
library() {
	local place
	ldconfig -p 2>/dev/null | grep -q 'libcublasLt\.so\.13' && return
	for place in $(tr : " " <<<"${LD_LIBRARY_PATH:-}"); do [ ! -e "$place/libcublasLt.so.13" ] || return 0; done
	place=$(find /usr /opt -name 'libcublasLt.so.13*' -print -quit 2>/dev/null)
	[ -z "$place" ] || export LD_LIBRARY_PATH=${place%/*}:${LD_LIBRARY_PATH:-}
}

main() {
	local wanted name status=0
	[ "${1:-}" = --list ] && { parts; exit; }
	[ "${1:-}" = -n ] && { dry=yes; shift; }
	[ $# -ge 1 ] && [ $# -le 2 ] || { sed -n '2,8s/^# //p' scripts/gpu.sh >&2; exit 2; }
	wanted=$1 out=${2:-$out}
	[ "$wanted" != all ] || wanted=$(parts | awk '{print $1}')
	wanted=${wanted//,/ }
	for name in $wanted; do
		[ -n "$(minutes "$name")" ] || { echo "gpu.sh: $name is no part; gpu.sh --list names them" >&2; exit 2; }
	done
	for name in bench serve cuda.test engine.test; do
		[ -n "$dry" ] || [ -x "$programs/$name" ] || { echo "gpu.sh: no $programs/$name; first: make cuda cuda-test" >&2; exit 1; }
	done
	mkdir -p "$out" && out=$(cd "$out" && pwd) && nano_folder || exit 1
	for name in $wanted; do part "$name" || status=1; done
	exit $status
}

main "$@"
