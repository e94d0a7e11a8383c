"""Writes the measured table of docs/cuda.md from the file of `tests/bench/device.sh run`.

usage: apps/tools/generate_device_page.py DEVICE.json [PAGE]
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "apps/tools"), str(ROOT / "tests/bench")]

from markers import filled  # noqa: E402
from sidebyside import on_device  # noqa: E402


def page(text, measured):
    """The page's text with the table of `measured` between its markers."""
    table = on_device.markdown(measured["rows"])
    made = f"{measured['said'].strip()}\n\n{table.strip()}\n"
    return filled(text, "generate_device_page.py", "measured", made)


def main(words):
    if len(words) not in (1, 2):
        print(__doc__.strip().splitlines()[-1], file=sys.stderr)
        return 2
    target = Path(words[1]) if len(words) == 2 else ROOT / "docs/cuda.md"
    target.write_text(page(target.read_text(), json.loads(Path(words[0]).read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
