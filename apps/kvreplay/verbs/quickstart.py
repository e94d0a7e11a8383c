"""`kvreplay quickstart`: the sample trace replayed, drawn and shown on a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvbase.program import attend

from kvreplay.places import data_folder, sample

if TYPE_CHECKING:
    import argparse

EXAMPLES = """examples:
  kvreplay quickstart
  kvreplay quickstart -o out/mine
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where results go."""
    parser.add_argument(
        "-o", "--out", metavar="DIR", type=Path, default=Path("out/quickstart"), help="default: %(default)s"
    )


def run(options: argparse.Namespace) -> int:
    """Replays, then writes the page; returns 0, or the exit code of the replay."""
    config = data_folder() / "configs/quickstart.yaml"
    print(f"replay: {config} on {sample()}", flush=True)
    code = attend(["run", config, "-o", options.out], quiet=False)
    if code != 0:
        return code
    from kvanalysis.commands import report

    options.output = None
    report(options)
    print(f"done: {options.out}/results.csv, {options.out}/figures/, {options.out}/report.html")
    return 0
