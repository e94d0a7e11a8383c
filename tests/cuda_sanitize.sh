#!/usr/bin/env bash
# Runs kernels and replays on a GPU under compute-sanitizer's tools. usage: cuda_sanitize.sh KVREPLAY_TESTS [TESTS]
# Ends with exit code 77 and the reason if there is no GPU or no compute-sanitizer.
set -euo pipefail
tests=${1:?usage: cuda_sanitize.sh KVREPLAY_TESTS [TESTS]} wanted=${2:-[device]~[many]}
export KVREPLAY_TEST_DEVICE=${KVREPLAY_TEST_DEVICE:-cuda:0}

code=0
said=$("$tests" "~*") || code=$?  # selects no test: only checks that there is a device
if [ $code -ne 0 ]; then
  echo "$said"
  exit $code
fi
if ! command -v compute-sanitizer >/dev/null; then
  echo "skipped: compute-sanitizer is not on PATH; it comes with the CUDA toolkit"
  exit 77
fi
for tool in memcheck racecheck initcheck synccheck; do
  echo "== $tool"
  compute-sanitizer --tool "$tool" --error-exitcode 1 "$tests" "$wanted"
done
