#!/usr/bin/env bash
# Runs every fuzz target of the module for FUZZTIME (default 60s) each, from the corpora in testdata/fuzz and what go has
# found before. What breaks a target is left in its testdata/fuzz, to be kept with the fix.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0
while IFS=: read -r file _ line; do
  name=${line#func }
  name=${name%%(*}
  package=./$(dirname "$file")
  printf '== %s %s\n' "$package" "$name"
  ${GO:-go} test "$package" -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-60s}" -fuzzminimizetime 5s || failed=1
done < <(git grep -nE '^func Fuzz\w+\(' -- '*_test.go')
exit $failed
