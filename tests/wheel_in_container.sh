#!/usr/bin/env bash
# Runs tests/wheel_newcomer.sh with the wheels of build/wheels, as a user who is not root, on systems without a compiler
# and without this repository. A system is Debian's smallest with Python, in a separate folder (debootstrap). Entering it
# needs root.
#   bash apps/wheel.sh && bash tests/wheel_in_container.sh [SUITE...]      # bookworm (default), trixie, sid
set -euo pipefail
cd "$(dirname "$0")/.."

roots=$PWD/build/containers
mirror=$(apt-get indextargets --format '$(SITE)' | head -n 1)  # where this machine's packages come from

system() {  # system SUITE: prints its folder, which is made if it is missing
  local root=$roots/$1
  if [ ! -e "$root/complete" ]; then
    echo "container: making $1" >&2
    mkdir -p "$root"
    debootstrap --variant=minbase --include=python3-venv,ca-certificates "$1" "$root" "$mirror" >"$root.log" 2>&1 ||
      { tail -5 "$root.log" >&2; return 1; }
    chroot "$root" useradd --create-home newcomer
    touch "$root/complete"
  fi
  # Packages come from this machine's mirror.
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
  rm -rf "$root/wheels"
  cp -r build/wheels "$root/wheels"
  cp tests/wheel_newcomer.sh "$root/wheels"
  echo "$root"
}

in_system() {  # in_system ROOT COMMAND...: runs it as a newcomer, at home; the mount ends with its process
  env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=/home/newcomer LANG=C.UTF-8 ${PIP_CERT:+PIP_CERT="$PIP_CERT"} \
    unshare --mount bash -euc 'root=$1; shift; mount -t proc proc "$root/proc"
      exec chroot --userspec=newcomer:newcomer "$root" bash -c "cd && exec \"\$@\"" here "$@"' enter "$@"
}

try() {  # try SUITE
  local root tool
  root=$(system "$1")
  for tool in cc gcc g++ clang cmake make; do
    ! in_system "$root" which $tool >&2 || { echo "$tool is there: this would prove nothing" >&2; return 1; }
  done
  in_system "$root" bash /wheels/wheel_newcomer.sh /wheels
}

command -v debootstrap >/dev/null || { echo "needs debootstrap: apt-get install debootstrap" >&2; exit 2; }
[ "$(id -u)" -eq 0 ] || { echo "needs root, to enter another system" >&2; exit 2; }
compgen -G 'build/wheels/*.whl' >/dev/null || { echo "build/wheels has no wheel: bash apps/wheel.sh" >&2; exit 2; }
failed=0
for suite in "${@:-bookworm}"; do
  set +e
  (set -e; try "$suite")
  [ $? -eq 0 ] || { echo "FAILED: $suite" >&2; failed=1; }
  set -e
done
exit $failed
