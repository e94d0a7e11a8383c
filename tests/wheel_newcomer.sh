#!/usr/bin/env bash
# Types the commands of a newcomer with a folder of wheels, Python and nothing else, in an empty home:
#   bash tests/wheel_newcomer.sh WHEELS [PYTHON]
# Ends with one line: the system, its Python, the wheel that pip chose, and the times of installing and the quickstart.
set -euo pipefail
wheels=$1 python=${2:-python3}
LIMIT_MS=60000  # for the quickstart
CELLS=1140      # cells of configs/quickstart.yaml

milliseconds() { echo $(($(date +%s%N) / 1000000)); }

rm -rf env empty
"$python" -m venv env
start=$(milliseconds)
env/bin/pip install --quiet --disable-pip-version-check --no-cache-dir --find-links "$wheels" kvreplay
installed=$(($(milliseconds) - start))

mkdir empty
cd empty
start=$(milliseconds)
../env/bin/kvreplay quickstart >../table.txt 2>../progress.txt || { cat ../table.txt ../progress.txt >&2; exit 1; }
took=$(($(milliseconds) - start))
[ "$(wc -l <out/quickstart/results.csv)" -eq $((CELLS + 1)) ]
grep -q 'configs/figures/' out/quickstart/report.html  # the page names the figures that test each claim
compgen -G 'out/quickstart/figures/*.png' >/dev/null

# A method of ten lines, written here, beside two of the engine.
cat >own.py <<'END'
import numpy as np
import kvreplay as kv
from kvreplay.places import data_folder

@kv.scorer(window=32)
def my_votes(prompt):
    return prompt.attention(last=32).max(axis=1).sum(axis=0) + 0.1 / np.linalg.norm(prompt.keys[0], axis=-1)

class Oldest(kv.Policy):
    def evict(self, tokens):
        return tokens[: len(tokens) - self.budget]

run = kv.replay(data_folder() / "traces/samples/smollm2-135m.h5",
                methods=[my_votes, Oldest, "snapkv", "window"], budgets=[64, 128], layers=[7, 15])
print(run.summary()[["method", "budget_tokens", "rel_err_out_mean"]].to_string())
assert len(run.failed) == 0 and len(run) == 2 * 3 * 4 * 2, run
END
# Where there is no GPU, a device is refused with the reason, and nothing else needs a driver.
if ! compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
  code=0
  ../env/bin/kvreplay run "$(../env/bin/python -c 'from kvreplay.places import data_folder; print(data_folder())')"/configs/quickstart.yaml \
    --device cuda -o refused 2>refused.txt || code=$?
  [ $code -eq 4 ]
  grep -q 'there is no device cuda here' refused.txt
fi

start=$(milliseconds)
../env/bin/python own.py >&2
own=$(($(milliseconds) - start))

. /etc/os-release
tag=$(sed -n 's/^Tag: //p' ../env/lib/python*/site-packages/kvreplay-*.dist-info/WHEEL | head -1)
size_mb=$(du -sm ../env | cut -f1)
echo "$PRETTY_NAME, glibc $(getconf GNU_LIBC_VERSION | cut -d' ' -f2), $(../env/bin/python --version), $tag:" \
  "installed in $installed ms ($size_mb MB), quickstart in $took ms, own methods in $own ms"
[ $took -le $LIMIT_MS ]
