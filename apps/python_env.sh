#!/usr/bin/env bash
# Makes build/venv with this repository's Python packages and the extras that are named, and prints its
# python. Does nothing when the environment already has them.
#   bash apps/python_env.sh analysis[,test...]
set -euo pipefail
cd "$(dirname "$0")/.."

venv=build/venv
stamp="$venv/.extras-$1-$(sha256sum pyproject.toml | cut -c1-12)"
if [ ! -e "$stamp" ]; then
  echo "python: installing extras [$1] into $venv" >&2
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv" >&2
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[$1]" >&2
  touch "$stamp"
fi
echo "$PWD/$venv/bin/python"
