#!/bin/bash
# Every tool of compute-sanitizer over a reduced suite, every SHARE-th case of each family of the short conformance suite
# (SHARE=1: all of them), over products that the suite's shapes do not reach, and over steps of the engine with prompts and
# drafts mixed. FAMILIES, a regular expression, takes some families and leaves the others out. The cases of a tool are dealt
# out to pieces; JOBS run at once, each ends within LIMIT seconds and prints one line. The exit code is above 0 where a tool
# finds something or a piece did not get through its cases. cuBLASLt is left out: its kernels are not ours, and opening it
# under a tool takes half a minute.
# Racecheck follows every access to shared memory: it passes over products of float32 mode (kernel plain) but for a few
# small ones, and its steps of the engine are few and in bfloat16 mode. Products in a row (kernel chain), whose blocks wait for
# each other, never end under it, be they of eight blocks; the other tools go through them. All pieces share the time of one GPU.
# usage: [JOBS=26] [LIMIT=300] [SHARE=4] [FAMILIES=.] sanitize.sh cuda.test engine.test [tool...]
set -u
[ $# -ge 2 ] || { echo "usage: sanitize.sh cuda.test engine.test [memcheck|initcheck|synccheck|racecheck...]" >&2; exit 2; }
for needed in "$1" "$2" compute-sanitizer; do
	command -v "$needed" >/dev/null || { echo "sanitize.sh: $needed is not there (make cuda-test builds the tests; compute-sanitizer is part of CUDA)" >&2; exit 1; }
done
KERNELS=$(realpath "$1") ENGINE=$(realpath "$2") LIMIT=${LIMIT:-300} SHARE=${SHARE:-4} FAMILIES=${FAMILIES:-.}
PLAIN='^linear_(float32_(3x63x65|5x127x33)|top_rows_float8_e4m3)$'
export KERNELS ENGINE LIMIT FAMILIES PLAIN
shift 2
cd "$(dirname "$0")/../engine" || exit 1

if no=$("$KERNELS" -test.v -test.run 'TestConformanceBF16/^commit$' | grep '_test.go.*no GPU'); then
	echo "sanitize.sh: $no" >&2
	exit 1
fi

# one runs a tool over part $3 of what $2 names; its findings follow its line. Where time is up the test ends itself, so that
# the tool still reports on what was run.
one() {
	local log begin=${EPOCHREALTIME/./} least=3 status ms tests text # least: names down to a case
	local -a options=() test
	case $2 in
	kernels) test=("$KERNELS" -test.short -test.run "TestConformanceBF16/^($FAMILIES)" -own -part "$3") ;;
	plain) test=("$KERNELS" -test.short -test.run "TestConformanceBF16/^$3\$/$PLAIN" -own -part 0/1) ;;
	engine) test=("$ENGINE" -test.run "TestCUDAFloat32/^$3\$/^(chunks|drafts)\$") ;;
	products) least=2 test=("$KERNELS" -test.short -test.run "$3" -own) ;;
	mixed) test=("$ENGINE" -test.run "TestCUDAMixedSteps/$3") ;;
	esac
	case "$1 $2" in "racecheck kernels" | "racecheck products") options=(--kernel-name-exclude kne=plain) ;; esac
	log=$(mktemp)
	timeout -k 5 "$LIMIT" compute-sanitizer --tool "$1" --report-api-errors no --error-exitcode 9 "${options[@]}" \
		"${test[@]}" -test.v -test.timeout $((LIMIT - 10))s >"$log" 2>&1
	status=$? ms=$(((${EPOCHREALTIME/./} - begin) / 1000)) tests=$(grep -c '=== RUN' "$log")
	[ $status -eq 0 ] && [ "$tests" -lt $least ] && status=1 # nothing was tested
	text=$(printf '%-10s %-8s %-28s %4d tests %4d.%d s  exit %-3d %s' "$1" "$2" "$3" "$tests" \
		$((ms / 1000)) $((ms / 100 % 10)) $status "$(grep -h SUMMARY "$log" | tail -1 | tr -d =)")
	[ $status -eq 0 ] || text+=$'\n'$(grep -E 'Invalid|Race reported|Uninit|Barrier|Error:|--- FAIL|test timed out' "$log" | sort | uniq -c | sort -rn | head -5)
	echo "$text"
	rm -f "$log"
	return $((status != 0))
}
export -f one

# pieces prints tool, what is run and which part of it, the slow ones first.
pieces() {
	local tool parts i
	for tool in "$@"; do
		parts=3
		[ "$tool" = racecheck ] && parts=12
		for ((i = 0; i < parts; i++)); do echo "$tool kernels $((i * SHARE))/$((parts * SHARE))"; done
		[ "$tool" = racecheck ] && [[ dense =~ ^($FAMILIES) ]] && echo "racecheck plain dense"
	done
	[ "$FAMILIES" = . ] || return
	for tool in "$@"; do
		printf "$tool products %s\n" 'TestNarrowBits/(64|128)_.(77|209)' 'TestWideBits/(112_1|176_4)_64'
		if [ "$tool" = racecheck ]; then
			printf 'racecheck mixed %s\n' nemotron-moe/chunks qwen35-dense-tied-mtp/{chunks,drafts}
		else
			echo "$tool products TestChainBits/1_1"
			printf "$tool engine %s\n" nemotron-moe qwen35-dense-tied-mtp
		fi
	done
}

[ $# -gt 0 ] || set -- memcheck initcheck synccheck racecheck
pieces "$@" | xargs -P "${JOBS:-26}" -L 1 bash -c 'one "$@"' one
