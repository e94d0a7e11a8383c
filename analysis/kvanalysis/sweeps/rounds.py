"""One round of a sweep: a folder with a configuration and the requested cells, replayed by the engine."""

import csv
import io
import sys
from dataclasses import dataclass
from pathlib import Path

from kvbase.cells import HEAD, METHOD, in_table
from kvbase.command import SOME_FAILED
from kvbase.files import write_atomic
from kvbase.program import attend

from ..errors import SweepError

RUN, *_ = ENGINES = ("run", "local", "slurm")
STOPPED = (75, 130)  # exit codes
ONLY = (*HEAD, *METHOD, "budget_tokens")  # columns of only.csv


@dataclass(frozen=True)
class Engine:
    """How a round is replayed: by `kvreplay run`, or planned and submitted with these further options."""

    name: str = RUN
    words: tuple[str, ...] = ()

    def replay(self, folder, only):
        """Replays the configuration of a round's folder: all cells, or those in its only.csv. Returns True if
        every cell finished, False if some failed. Raises SweepError with the engine's exit code."""
        chosen = ["--only", folder / "only.csv"] if only else []
        config = folder / "config.yaml"
        if self.name == RUN:
            return _ended(folder, attend(["run", config, "-o", folder, *chosen, *_quiet()]))
        if not _ended(folder, attend(["sweep", "plan", config, "-o", folder, *chosen])):
            raise SweepError(f"{folder}: its cells could not be planned")
        return _ended(
            folder, attend(["sweep", "submit", folder, "--engine", self.name, "--wait", *self.words])
        )


def round_folder(out, number):
    return Path(out) / f"round-{number}"


def write_round(folder, text, wanted=None):
    """Writes the folder's config.yaml, and only.csv with a row for each of `wanted` (columns of ONLY)."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "config.yaml", text)
    if wanted is not None:
        write_atomic(folder / "only.csv", only_text(wanted))


def only_text(wanted):
    """The table of the wanted cells, quoted like results.csv; it stands for every seed of each."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(ONLY)
    writer.writerows(wanted[in_table(ONLY)].itertuples(index=False, name=None))
    return out.getvalue()


def _quiet():
    """Options for the engine's output: a progress bar on a terminal, else only errors."""
    return [] if sys.stderr.isatty() else ["-q", "--progress", "none"]


def _ended(folder, code):
    if code in (0, SOME_FAILED):
        return code == 0
    if code in STOPPED:
        raise SweepError(f"{folder}: stopped; run again to continue", code)
    raise SweepError(f"{folder}: not replayed, the engine ended with exit code {code}", code)
