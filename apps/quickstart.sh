#!/usr/bin/env bash
# From a fresh Debian 12 machine to a table, figures and a page of the sample trace, and to `import kvreplay` in
# build/venv. Can be run again at no cost.
set -euo pipefail
cd "$(dirname "$0")/.."

bash apps/install_packages.sh build
mkdir -p build
bash apps/python_env.sh analysis,module >build/python.log 2>&1 &  # it waits for the network while the compiler works
environment=$!
configure() {
  cmake --preset release "$@" >build/release.log 2>&1 || { cat build/release.log; exit 1; }
}
echo "build: build/release (for CUDA devices too: cmake --preset cuda && cmake --build build/cuda)"
configure
cmake --build build/release --target kvreplay_program
wait "$environment" || { cat build/python.log; exit 1; }
python=$(tail -n 1 build/python.log)
configure -DKVREPLAY_PYTHON=ON "-DPython_EXECUTABLE=$python"
cmake --build build/release --target kvreplay_module

"$(dirname "$python")/kvreplay" quickstart
echo "next: . build/venv/bin/activate && kvreplay compare traces/samples/smollm2-135m.h5 --at 10%,20%,40%"
