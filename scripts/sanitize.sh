#!/bin/bash
# Every tool of compute-sanitizer over a reduced conformance suite, in pieces that each end within LIMIT seconds.
# usage: sanitize.sh TEST_BINARY [tool...]
set -u
test=$1; shift
limit=${LIMIT:-100}
pieces=(
	'memory' 'commit' 'draft' 'moe' 'walk'
	'dense/^(scatter|norm_[^l]|activate|gather|add|embed|all)' 'dense/^linear' 'dense/^norm_linear'
	'attention/^write' 'attention/^attend_long' 'attention/^attend_[^l]'
	'ssm/^mamba2.*step' 'ssm/^delta.*step' 'ssm/(scan|fold)$'
	'sample/^sample_(top|scores|masks|nothing|penalties|neighbours)' 'sample/vocab_[0-9]{1,3}_ties' 'sample/vocab_[0-9]{4,}_ties'
)
failed=0
for tool in "${@:-memcheck initcheck synccheck racecheck}"; do
	for t in $tool; do
		for piece in "${pieces[@]}"; do
			timeout -k 5 "$limit" compute-sanitizer --tool "$t" --report-api-errors no --error-exitcode 9 \
				"$test" -test.short -test.run "TestConformanceBF16/^$piece" >/tmp/sanitize.$$ 2>&1
			status=$?
			printf '%-10s %-60s %s\n' "$t" "$piece" "$(grep -h SUMMARY /tmp/sanitize.$$ | tail -1) exit $status"
			[ $status -eq 0 ] || { failed=1; grep -E 'Invalid|Race reported|Uninit|Barrier|Error' /tmp/sanitize.$$ | sort | uniq -c | head -5; }
		done
	done
done
rm -f /tmp/sanitize.$$
exit $failed
