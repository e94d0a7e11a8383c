#!/usr/bin/env bash
# Runs the README's commands as they are typed, in order, on a fresh clone with an empty HOME, and prints their times.
# The suite's own command is left out. torch comes from tests/install_torch.sh, because the wheel of PyPI brings
# gigabytes of CUDA libraries.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
git clone --quiet "$root" "$folder/kvreplay"
mkdir "$folder/home"
export HOME=$folder/home
unset KVREPLAY PYTHONPATH
cd "$folder/kvreplay"
commands=$(awk '/^```./ { other = 1; next } /^```$/ { if (other) other = 0; else inside = !inside; next } inside' README.md |
  sed 's/  *#.*//' | grep -v '^bash tests/run.sh')
while IFS= read -r command; do
  start=$SECONDS
  case $command in
    "pip install --editable '.[record]'") echo "== bash tests/install_torch.sh build/venv"; bash tests/install_torch.sh "$PWD/build/venv" >/dev/null ;;
    *) echo "== $command"; eval "$command" </dev/null >"$folder/output" 2>&1 || { cat "$folder/output"; exit 1; } ;;
  esac
  echo "== $((SECONDS - start)) s"
done <<<"$commands"
