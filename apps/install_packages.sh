#!/usr/bin/env bash
# Installs the missing Debian packages of one purpose. Needs root or sudo.
#   bash apps/install_packages.sh build|test|wheel
set -euo pipefail

build=(g++ cmake ninja-build git ca-certificates libhdf5-dev libaec-dev zlib1g-dev libeigen3-dev libcli11-dev libfmt-dev libyaml-cpp-dev
       nlohmann-json3-dev python3 python3-dev python3-venv)
test=("${build[@]}" catch2 libboost-context-dev clang-format clang libclang-rt-dev binutils chromium)
wheel=("${build[@]}" binutils)

case "${1:-build}" in
  build) wanted=("${build[@]}") ;;
  test) wanted=("${test[@]}") ;;
  wheel) wanted=("${wheel[@]}") ;;
  *) echo "usage: install_packages.sh build|test|wheel" >&2; exit 2 ;;
esac

missing=()
for package in "${wanted[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "packages: all there"
  exit 0
fi
echo "packages: installing ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "needs root or sudo to install: ${missing[*]}" >&2; exit 2; }
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
