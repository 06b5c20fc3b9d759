#!/bin/bash
# Starts serve with made-up weights and measures it with bench serve; then bench engine at the batch of the first row.
# usage: serving.sh MODEL_FOLDER [stream|long|poisson...]   (default: all); PROGRAMS=bin FLAGS="--device cuda" PORT=8123
#   stream   256 streams, and bench engine at batch 256 with the same lengths: what HTTP costs
#   long     8,192 tokens in, 1,024 out, 1, 16 and 64 at once
#   poisson  1,024 tokens in, 256 out, 5 to 25 requests a second
set -u
[ $# -ge 1 ] || { sed -n '3,6s/^# //p' "$0" >&2; exit 2; }
model=$1; shift
[ $# -gt 0 ] || set -- stream long poisson
programs=${PROGRAMS:-bin} flags=(--load-format dummy --skip-tokenizer-init ${FLAGS:---device cuda}) port=${PORT:-8123}
url=http://127.0.0.1:$port log=$(mktemp)

"$programs/serve" "$model" "${flags[@]}" --max-model-len 9472 --max-num-seqs 256 --port "$port" >"$log" 2>&1 &
server=$!
stop() { kill -TERM $server 2>/dev/null; wait $server; rm -f "$log"; }
trap stop EXIT
until curl -sf "$url/health" >/dev/null; do
	kill -0 $server 2>/dev/null || { cat "$log" >&2; exit 1; }
	sleep 0.3
done

load() { "$programs/bench" serve --base-url "$url" "$@" || failed=1; }
failed=0
load --concurrency 1 --requests 2 --warmup 0 --input-len 1024 --output-len 16 >/dev/null # the first steps of a process are slow
for what in "$@"; do
	case $what in
	stream) load --concurrency 256 --requests 256 --warmup 0 --input-len 64 --output-len 960 ;;
	long) for n in 1 16 64; do load --concurrency $n --requests $n --warmup 0 --input-len 8192 --output-len 1024; done ;;
	poisson) load --rates 5,10,15,20,25 --duration "${DURATION:-8s}" --warmup 0 --input-len 1024 --output-len 256 ;;
	*) echo "serving.sh: $what is none of stream, long, poisson" >&2; exit 2 ;;
	esac
done
trap - EXIT
stop
case " $* " in *" stream "*)
	"$programs/bench" engine "$model" "${flags[@]}" --skip-check --prefill-len 0 --max-model-len 1088 --max-num-seqs 256 \
		--batch 256 --context 64 --output-len 960 --repeats 1 || failed=1 ;;
esac
exit $failed
