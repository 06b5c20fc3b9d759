#!/bin/bash
# Every tool of compute-sanitizer over the short conformance suite, and over steps of the engine with prompts and drafts
# mixed: JOBS pieces at once, each of which ends within LIMIT seconds, one line a piece. The exit code is above 0 where a
# tool finds something or a piece does not end.
# usage: [JOBS=8] [LIMIT=60] sanitize.sh cuda.test engine.test [tool...]
set -u
[ $# -ge 2 ] || { echo "usage: sanitize.sh cuda.test engine.test [memcheck|initcheck|synccheck|racecheck...]" >&2; exit 2; }
KERNELS=$(realpath "$1") ENGINE=$(realpath "$2") LIMIT=${LIMIT:-60}
export KERNELS ENGINE LIMIT
shift 2
cd "$(dirname "$0")/../engine" || exit 1

if no=$("$KERNELS" -test.v -test.run 'TestConformanceBF16/^commit$' | grep 'no GPU'); then
	echo "sanitize.sh: $no" >&2
	exit 1
fi

# one runs a tool over part $3 of a family of operations, or of the engine over model $3; its findings follow its line.
one() {
	local log begin=${EPOCHREALTIME/./} status ms text
	local -a test=("$KERNELS" -test.short -test.run "TestConformanceBF16/^$2\$" -part "$3")
	[ "$2" = engine ] && test=("$ENGINE" -test.run "TestCUDAFloat32/^$3\$/^(chunks|drafts)\$")
	log=$(mktemp)
	timeout -k 5 "$LIMIT" compute-sanitizer --tool "$1" --report-api-errors no --error-exitcode 9 \
		"${test[@]}" >"$log" 2>&1
	status=$? ms=$(((${EPOCHREALTIME/./} - begin) / 1000))
	text=$(printf '%-10s %-10s %-21s %3d.%d s  exit %-3d %s' "$1" "$2" "$3" $((ms / 1000)) $((ms / 100 % 10)) $status \
		"$(grep -h SUMMARY "$log" | tail -1 | tr -d =)")
	[ $status -eq 0 ] || text+=$'\n'$(grep -E 'Invalid|Race reported|Uninit|Barrier|Error|FAIL' "$log" | sort | uniq -c | sort -rn | head -5)
	echo "$text"
	rm -f "$log"
	return $((status != 0))
}
export -f one

# pieces prints tool, family and part. racecheck follows every access to shared memory and takes several times as long.
pieces() {
	local tool family parts
	for tool in "$@"; do
		printf "$tool engine %s\n" nemotron-moe qwen35-dense-tied-mtp
		for family in dense:4 sample:4 ssm:4 precision:4 attention:4 moe:2 memory:1 walk:1 commit:1 draft:1; do
			parts=${family#*:}
			[ "$tool" = racecheck ] && [ "$parts" -gt 1 ] && parts=$((2 * parts))
			for ((i = 0; i < parts; i++)); do echo "$tool ${family%:*} $i/$parts"; done
		done
	done
}

[ $# -gt 0 ] || set -- racecheck memcheck initcheck synccheck # the slowest first
pieces "$@" | xargs -P "${JOBS:-8}" -L 1 bash -c 'one "$@"' one
