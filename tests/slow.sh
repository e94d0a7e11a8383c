#!/usr/bin/env bash
# Runs the tests that take too long for tests/run.sh, on the programs that tests/run.sh has built:
# - every figure configuration on the whole sample trace, in less than LIMIT_S, and the page made from them
# - every number of the published table
# - device code under sanitizers
# - FUZZ_RUNS inputs for each fuzz target, thousands of damaged traces and configurations, hundreds of kills
# - presses of kvpress beside kvpress itself
# - the recorder on releases of transformers from the oldest to the newest, on a tiny model of every decoder, and on the
#   sample model
# - with debootstrap: the wheel, with nvcc also device code for every architecture, on a system without a compiler
set -euo pipefail
cd "$(dirname "$0")/.."
LIMIT_S=600
FUZZ_RUNS=100000

KVREPLAY_PYTHON=$(bash apps/python_env.sh analysis,docs,test)
export KVREPLAY=$PWD/build/release/kvreplay KVREPLAY_PYTHON
out=build/slow/figures
rm -rf "$out"
start=$SECONDS
"$KVREPLAY_PYTHON" -m kvreplay figures configs/figures -o "$out"
took=$((SECONDS - start))
echo "figures: $took s"
"$KVREPLAY_PYTHON" -m kvreplay report "$out"
[ $took -le $LIMIT_S ] || { echo "the figures took $took s, more than $LIMIT_S s" >&2; exit 1; }
"$KVREPLAY_PYTHON" apps/tools/generate_docs.py --check --sample
ctest --preset asan -R cpp_device
bash tests/readme.sh
bash tests/fuzz.sh $FUZZ_RUNS
if command -v debootstrap >/dev/null && [ "$(id -u)" -eq 0 ]; then
  bash apps/install_packages.sh wheel
  bash apps/wheel.sh /usr/bin/python3
  bash tests/wheel_in_container.sh bookworm
fi
"$KVREPLAY_PYTHON" -m pytest -q -m slow --numprocesses 2 tests/python
bash tests/install_torch.sh build/venv
bash tests/transformers_matrix.sh
"$KVREPLAY_PYTHON" apps/tools/generate_models.py --check
bash tests/models.sh
bash tests/kvpress.sh
echo "all slow tests passed"
