#!/usr/bin/env bash
# Runs every fuzz target of the module for FUZZTIME (default 60s) each, as many at once as there are cores, from the
# corpora in testdata/fuzz and what go has found before. What breaks a target is left in its testdata/fuzz, to be kept with
# the fix.
set -euo pipefail
cd "$(dirname "$0")/.."
export GO="${GO:-go}" FUZZTIME="${FUZZTIME:-60s}"
fuzz() { # file:name
  local package=./${1%/*} name=${1##*:} out
  if out=$($GO test "$package" -run '^$' -fuzz "^$name\$" -fuzztime "$FUZZTIME" -fuzzminimizetime 5s -parallel 1 2>&1); then
    echo "ok $package $name: $(grep -o 'execs: [0-9]*' <<<"$out" | tail -1)"
  elif grep -q 'context deadline exceeded' <<<"$out" && ! grep -q 'Failing input' <<<"$out"; then
    echo "ok $package $name: the fuzzer was stopped in the middle of an input, which it calls a failure; none was found"
  else
    printf 'FAIL %s %s\n%s\n' "$package" "$name" "$out"
    return 1
  fi
}
export -f fuzz
git grep -noE '^func Fuzz\w+' -- '*_test.go' | sed -E 's/:[0-9]+:func /:/' | xargs -P "$(getconf _NPROCESSORS_ONLN)" -I{} bash -c 'fuzz {}'
