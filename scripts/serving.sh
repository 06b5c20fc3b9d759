#!/bin/bash
# Starts serve with made-up weights and measures it with bench serve; then bench engine at the batch of the first row.
# usage: serving.sh [-n] MODEL_FOLDER [stream|long|poisson...]   (default: all); PROGRAMS=bin FLAGS="--device cuda" PORT=8123
#   stream   256 streams, short and long ones, and bench engine at batch 256 with the lengths of the long: what HTTP costs
#   long     8,192 tokens in, 1,024 out, 1, 16 and 64 at once
#   poisson  1,024 tokens in, 256 out, 6 to 30 requests a second
# -n prints the commands.
set -u
dry=""
[ "${1:-}" = -n ] && { dry=yes; shift; }
[ $# -ge 1 ] || { sed -n '3,7s/^# //p' "$0" >&2; exit 2; }
model=$1; shift
[ $# -gt 0 ] || set -- stream long poisson
programs=${PROGRAMS:-bin} flags=(--load-format dummy --skip-tokenizer-init ${FLAGS:---device cuda}) port=${PORT:-8123}
url=http://127.0.0.1:$port
[ -n "$dry" ] || log=$(mktemp)

server=("$programs/serve" "$model" "${flags[@]}" --max-model-len 9472 --max-num-seqs 256 --port "$port")
# run runs a command that measures, or prints it.
run() {
	if [ -n "$dry" ]; then
		printf '%q ' "$@"
		echo
	else
		"$@" || failed=1
	fi
}
load() { run "$programs/bench" serve --base-url "$url" --warmup 0 "$@"; }

start() {
	"${server[@]}" >"$log" 2>&1 &
	pid=$!
	trap stop EXIT
	until curl -sf "$url/health" >/dev/null; do
		kill -0 $pid 2>/dev/null || { cat "$log" >&2; exit 1; }
		sleep 0.3
	done
	load --concurrency 1 --requests 2 --input-len 1024 --output-len 16 >/dev/null # the first steps of a process are slow
}
stop() {
	trap - EXIT
	kill -TERM $pid 2>/dev/null
	wait $pid
	rm -f "$log"
}

failed=0
if [ -n "$dry" ]; then run "${server[@]}"; else start; fi
for what in "$@"; do
	case $what in
	stream) for lengths in "32 256" "64 960"; do load --concurrency 256 --requests 256 --input-len "${lengths% *}" --output-len "${lengths#* }"; done ;;
	long) for n in 1 16 64; do load --concurrency $n --requests $n --input-len 8192 --output-len 1024; done ;;
	poisson) load --rates 6,12,18,24,30 --requests "${REQUESTS:-150}" --input-len 1024 --output-len 256 ;;
	*) echo "serving.sh: $what is none of stream, long, poisson" >&2; exit 2 ;;
	esac
done
[ -n "$dry" ] || stop
case " $* " in *" stream "*)
	run "$programs/bench" engine "$model" "${flags[@]}" --skip-check --prefill-len 0 --max-model-len 1088 --max-num-seqs 256 \
		--batch 256 --context 64 --output-len 960 --repeats 1 ;;
esac
exit $failed
