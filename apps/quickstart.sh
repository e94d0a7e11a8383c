#!/usr/bin/env bash
# From a fresh Debian 12 machine to a table, figures and a report of the sample trace.
# Can be run again at no cost.
set -euo pipefail
cd "$(dirname "$0")/.."

bash apps/install_packages.sh build
echo "build: build/release (for CUDA devices too: cmake --preset cuda && cmake --build build/cuda)"
mkdir -p build
cmake --preset release >build/release.log 2>&1 || { cat build/release.log; exit 1; }
cmake --build build/release --target kvreplay_program
KVREPLAY_PYTHON=$(bash apps/python_env.sh analysis)
export KVREPLAY_PYTHON

echo "replay: configs/quickstart.yaml on traces/samples/smollm2-135m.h5"
build/release/kvreplay run configs/quickstart.yaml
build/release/kvreplay report out/quickstart
echo "done: out/quickstart/results.csv, out/quickstart/figures/, out/quickstart/report.html"
