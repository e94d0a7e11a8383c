#!/usr/bin/env bash
# Makes build/venv with this repository's Python packages (editable) and the named extras, and prints the path of its
# python. Compiles nothing: cmake builds the program and the extension module in build/release. Does nothing if the
# environment already has everything.
#   bash apps/python_env.sh [analysis[,test...]]
set -euo pipefail
cd "$(dirname "$0")/.."

extras=${1:-}
venv=build/venv
stamp="$venv/.extras-$extras-$(sha256sum pyproject.toml | cut -c1-12)"
if [ ! -e "$stamp" ]; then
  echo "python: installing extras [$extras] into $venv" >&2
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv" >&2
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".${extras:+[$extras]}" >&2
  touch "$stamp"
fi
echo "$PWD/$venv/bin/python"
