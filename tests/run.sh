#!/usr/bin/env bash
# Installs, builds and runs every test. --fast, for every commit, skips sanitizers, fuzzing, device code for CUDA,
# tests that need torch, and tests that take many seconds each.
set -uo pipefail
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE  # hundreds of processes would each compile our packages anew

fast=0
case "${1:-}" in
  --fast) fast=1 ;;
  "") ;;
  *) echo "usage: tests/run.sh [--fast]" >&2; exit 2 ;;
esac

. tests/steps.sh

# Device code for one architecture; nothing runs it here.
cuda=()
nvcc=$(command -v nvcc /usr/local/cuda/bin/nvcc | head -n 1)
if [ $fast -eq 0 ] && [ -n "$nvcc" ]; then
  cuda=(-DKVREPLAY_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90)
fi
build() {  # build PRESET FOLDER TARGET OPTION...
  local preset=$1 folder=$2 target=$3
  shift 3
  cmake --preset "$preset" "$@" >"$folder.log" 2>&1 || { cat "$folder.log"; return 1; }
  cmake --build "$folder" --target "$target"
}
format() { find lib apps tests -name '*.hpp' -o -name '*.cpp' -o -name '*.cuh' -o -name '*.cu' | xargs clang-format --dry-run -Werror; }
lint() { "$python" -m ruff check . && "$python" -m ruff format --check .; }

mkdir -p build
step "packages" bash apps/install_packages.sh test
bash tests/install_slurm.sh || echo "tests that start a cluster are skipped"
python=$(bash apps/python_env.sh analysis,docs,import,test) || failed+=("python environment")
torch() { wait "$installing"; local code=$?; cat build/torch.log; return $code; }
if [ $fast -eq 0 ]; then
  # Runs beside the build, as it mostly waits for the network.
  bash tests/install_torch.sh build/venv >build/torch.log 2>&1 &
  installing=$!
fi
step "build" build test build/release all -DKVREPLAY_PYTHON=ON "-DPython_EXECUTABLE=$python" "${cuda[@]}"
export KVREPLAY=$PWD/build/release/kvreplay KVREPLAY_PYTHON=$python
step "C++ tests" ctest --preset test
step "format" format
step "lint" lint
how=(-q --numprocesses 2 --dist loadfile --no-loadscope-reorder)
if [ $fast -eq 1 ]; then
  step "fast Python tests" "$python" -m pytest "${how[@]}" -m "not slow and not long and not torch" tests/python
else
  step "build with sanitizers" build asan build/asan kvreplay_tests
  step "C++ tests with sanitizers" ctest --preset asan -E device  # tests/slow.sh runs device code too, thread by thread
  step "fuzzing" bash tests/fuzz.sh 20000 10
  step "torch" torch
  step "Python tests" "$python" -m pytest "${how[@]}" -m "not slow" tests/python
fi

finish
