#!/usr/bin/env bash
# Kernels and replays on a GPU under compute-sanitizer's tools. usage: cuda_sanitize.sh KVREPLAY_TESTS
# Exit code 77, with the reason, where there is no GPU or no compute-sanitizer.
set -euo pipefail
tests=${1:?usage: cuda_sanitize.sh KVREPLAY_TESTS}
export KVREPLAY_TEST_DEVICE=${KVREPLAY_TEST_DEVICE:-cuda:0}

code=0
said=$("$tests" "~*") || code=$?  # no test: only whether the device is there
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
  compute-sanitizer --tool "$tool" --error-exitcode 1 "$tests" "[device]~[many]"
done
