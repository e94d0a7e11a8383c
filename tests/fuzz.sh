#!/usr/bin/env bash
# Builds the libFuzzer targets (tests/fuzz) with sanitizers and runs both at once, starting from their corpus.
#   tests/fuzz.sh RUNS [SECONDS]   each target ends after RUNS inputs, or after SECONDS if that comes first
# Failing inputs are stored in build/fuzz/findings; build/asan/tests/fuzz/fuzz_NAME FILE repeats one.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${1:?usage: tests/fuzz.sh RUNS [SECONDS]}
seconds=${2:-0}

mkdir -p build/fuzz
cmake --preset asan >build/fuzz/cmake.log 2>&1 || { cat build/fuzz/cmake.log; exit 1; }
cmake --build build/asan --target fuzz_targets
# A run with a time limit starts anew at every call; others continue from the inputs of the last run.
seed=0
[ "$seconds" -eq 0 ] || { seed=1; rm -rf build/fuzz/found; }
mkdir -p build/fuzz/findings build/fuzz/found/{config,trace}
# A signal ends the child that tries a file first. The quarantine of freed bytes is small, so that it starts quickly.
export ASAN_OPTIONS=abort_on_error=1:quarantine_size_mb=1:detect_leaks=0

run() {  # run NAME OPTIONS...: prints the last lines of a target that succeeds, and all lines of one that fails
  local name=$1 log=build/fuzz/$1.log
  shift
  if build/asan/tests/fuzz/fuzz_"$name" -seed=$seed -runs="$runs" -max_total_time="$seconds" -rss_limit_mb=1024 -timeout=60 -detect_leaks=0 \
    -artifact_prefix=build/fuzz/findings/ "$@" "build/fuzz/found/$name" "tests/fuzz/corpus/$name" >"$log" 2>&1; then
    echo "fuzz_$name: $(grep -E '^Done' "$log")"
  else
    cat "$log"
    return 1
  fi
}
run config -max_len=4096 -dict=tests/fuzz/config.dict &
config=$!
run trace -max_len=20000 &
trace=$!
failed=0
wait $config || failed=1
wait $trace || failed=1
exit $failed
