#!/usr/bin/env bash
# Tests and measures the device code on a machine with a GPU, with programs that were built beforehand on another.
#   bash tests/bench/device.sh build [ARCHITECTURE]       # needs nvcc: build/device.tar.gz for one architecture (90)
#   bash tests/bench/device.sh run ARCHIVE OUT [PEER.py]  # on the GPU's machine: tests, sanitizers, goals; OUT/device.json
#   bash tests/bench/device.sh dry OUT                    # the steps of `run` on the emulator, with tiny inputs
# `run` takes at most 8 minutes on an H200 beside 16 cores. It needs this checkout, python3 with numpy and pyyaml, and
# torch for the comparison with its attention and with a peer. It goes on after a step that fails, and then ends with 1.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
MOST_MIB=25

build_archive() {  # build_archive ARCHITECTURE
  set -e
  local from=build/device_code to=build/device
  cmake --preset test -B $from -DKVREPLAY_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$1" >build/device.log || { tail -5 build/device.log; exit 1; }
  cmake --build $from --target kvreplay_bench kvreplay_tests
  rm -rf $to
  mkdir -p $to/lib
  strip -o $to/kvreplay $from/kvreplay_bench  # runs every command of kvreplay
  strip -o $to/kvreplay_tests $from/tests/kvreplay_tests
  ldd $to/kvreplay $to/kvreplay_tests | awk '/=> .*boost/ {print $3}' | sort -u | xargs -I{} cp -L {} $to/lib
  tar -C build -czf build/device.tar.gz device
  local bytes
  bytes=$(stat -c %s build/device.tar.gz)
  echo "build/device.tar.gz: $((bytes >> 20)) MiB for sm_$1"
  [ $((bytes >> 20)) -lt $MOST_MIB ] || { echo "more than $MOST_MIB MiB" >&2; exit 1; }
}

. tests/steps.sh

# On tests that reach every kernel once.
sanitize() {  # sanitize KVREPLAY_TESTS
  local code=0
  timeout 240 bash tests/cuda_sanitize.sh "$1" \
    "a score rule evicts*,several tokens leave*,caches of different kinds*,sink logits and a soft cap*" || code=$?
  [ $code -eq 0 ] || [ $code -eq 77 ]  # 77: left out, with the reason
}

measure() {  # measure DEVICE OUT WORD...
  local device=$1 out=$2
  shift 2
  mkdir -p "$out"
  PYTHONPATH=tests/bench:analysis python3 -m sidebyside --device "$device" --out "$out" "$@"
}

case ${1:-} in
  build)
    (build_archive "${2:-90}")
    ;;
  run)
    archive=${2:?usage: device.sh run ARCHIVE OUT [PEER.py]} out=${3:?usage: device.sh run ARCHIVE OUT [PEER.py]}
    tools=$(mktemp -d)
    tar -C "$tools" -xzf "$archive"
    export LD_LIBRARY_PATH=$tools/device/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export KVREPLAY=$tools/device/kvreplay KVREPLAY_TEST_DEVICE=cuda:0
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,memory.total --format=csv
    step "devices" "$KVREPLAY" list devices
    step "kernels and replays" "$tools/device/kvreplay_tests" "[device]~[many]"
    step "sanitizers" sanitize "$tools/device/kvreplay_tests"
    trace=$tools/two-layers.h5
    "$KVREPLAY" synth -o "$trace" --tokens 4096 --prompt 1024 --layers 2 --dtype bf16 >/dev/null
    step "goals" timeout 330 bash -c "$(declare -f measure)"'; measure "$@"' measure cuda:0 "$out" --rounds 3 \
      --jobs "$(nproc)" --trace "$trace" --peer-python "$(command -v python3)" ${4:+--peer "$4"}
    finish
    ;;
  dry)
    out=${2:?usage: device.sh dry OUT}
    export KVREPLAY=${KVREPLAY:-$PWD/build/release/kvreplay_bench} KVREPLAY_TEST_DEVICE=emulated
    step "devices" "$KVREPLAY" list devices
    step "kernels and replays" build/release/tests/kvreplay_tests "a score rule evicts*,several tokens leave*"
    step "goals" measure emulated "$out" --quick --jobs 2 --tokens 160 --prefill 130 --last 20 --budgets 66,80
    finish
    ;;
  *)
    sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 2
    ;;
esac
