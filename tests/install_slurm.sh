#!/usr/bin/env bash
# Installs Slurm and munge from Debian if they are missing, for the tests that start a cluster. Needs root or sudo.
# Prints one line: what it did, or why it failed. If it fails, those tests are skipped.
#   bash tests/install_slurm.sh
set -euo pipefail

give_up() { echo "slurm: cannot be installed: $1" >&2; exit 1; }
installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

for tool in dpkg-query apt-get; do
  command -v $tool >/dev/null || give_up "no $tool, so no Debian"
done
missing=()
for package in slurm-wlm munge; do
  installed "$package" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "slurm: all there, $(dpkg-query -W -f='${Version}' slurm-wlm)"
  exit 0
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || give_up "needs root or sudo"
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
said=$("${as_root[@]}" apt-get update -qq 2>&1 &&
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" 2>&1) ||
  give_up "$(grep -m1 '^E:' <<<"$said" || tail -n1 <<<"$said")"
echo "slurm: installed ${missing[*]}"
