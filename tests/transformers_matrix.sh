#!/usr/bin/env bash
# Runs the tests of the recorder (and of the closed loop, if the program is built) on several releases of transformers:
#   tests/transformers_matrix.sh [RELEASE...]
# Default: the oldest supported release, the last before 5, 5.0, one in the middle, and the newest. Prints one Markdown
# row per release. Logs and one folder per release, about 150 MB each, stay in build/transformers. All releases use the
# torch of TORCH_VENV, which tests/install_torch.sh makes. Exits with 1 if a test fails.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${TORCH_VENV:-build/venv}
python=$venv/bin/python
folder=$PWD/build/transformers
tests=(tests/python/test_kvdump_{architectures,cli,model,output,refusals,release,texts}.py)
export KVREPLAY=${KVREPLAY:-$PWD/build/release/kvreplay} OMP_NUM_THREADS=1
if [ -x "$KVREPLAY" ]; then
  tests+=(tests/python/test_engine_on_dump.py tests/python/confirm --ignore tests/python/confirm/test_kvconfirm_smollm2.py)
fi
[ -x "$python" ] || { echo "no $python: run tests/install_torch.sh $venv" >&2; exit 2; }

pip() { "$python" -m pip "$@" --quiet --disable-pip-version-check; }
supported() { "$python" -c 'import sys; sys.path.insert(0, "traces"); from kvrecord.release import SPECIFIER; print(SPECIFIER)'; }

newest() {  # the newest release that pyproject.toml admits
  local to
  to=$(mktemp -d)
  pip download --no-deps --dest "$to" "$(supported)"
  basename "$to"/transformers-*.whl | cut -d- -f2
  rm -rf "$to"
}

needs() {  # the companion packages that a release requires; torch and numpy are those of the virtual environment
  "$python" - "$1" <<'PY'
import re
import sys
from importlib.metadata import distributions

(release,) = (d for d in distributions(path=[sys.argv[1]]) if d.metadata["Name"] == "transformers")
companions = re.compile(r"(huggingface[-_]hub|tokenizers|safetensors|regex|typer)\b")
print("\n".join(r for r in release.requires if companions.match(r) and "extra ==" not in r))
PY
}

unpack() {  # unpack RELEASE into a separate folder, which precedes the virtual environment's packages on the path
  local to=$folder/$1
  [ -d "$to" ] && return
  rm -rf "$to.part"
  pip install --no-deps --target "$to.part" "transformers==$1"
  needs "$to.part" >"$folder/$1.needs"
  pip install --upgrade --target "$to.part" --requirement "$folder/$1.needs"
  mv "$to.part" "$to"
}

count() {  # count REPORT: prints passed, skipped and failed tests in a report of pytest
  "$python" - "$1" <<'PY'
import sys
from xml.etree import ElementTree

suite = ElementTree.parse(sys.argv[1]).getroot().find("testsuite")
total, skipped, failures, errors = (int(suite.get(x)) for x in ("tests", "skipped", "failures", "errors"))
failed = failures + errors
print(f"{total - skipped - failed} {skipped} {failed} {total}")
PY
}

mkdir -p "$folder"
releases=("$@")
[ $# -gt 0 ] || releases=(4.56.0 4.57.6 5.0.0 5.12.1 "$(newest)")
bad=0
echo "| transformers | passed | skipped | failed | of |"
echo "|---|---|---|---|---|"
for release in "${releases[@]}"; do
  unpack "$release" >"$folder/$release.install.log" 2>&1 || { cat "$folder/$release.install.log" >&2; exit 1; }
  report=$folder/$release.xml
  rm -f "$report"
  PYTHONPATH=$folder/$release${PYTHONPATH:+:$PYTHONPATH} "$python" -m pytest -q -rsfE -m "not slow" \
    --junitxml "$report" "${tests[@]}" >"$folder/$release.log" 2>&1 || bad=1
  [ -f "$report" ] || { tail -n 20 "$folder/$release.log" >&2; exit 1; }
  read -r passed skipped failed total <<<"$(count "$report")"
  echo "| $release | $passed | $skipped | $failed | $total |"
  grep '^FAILED\|^ERROR' "$folder/$release.log" >&2 || true
done
exit $bad
