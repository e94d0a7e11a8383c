"""The files of a sweep beside its rounds: all their rows as one table, and the budgets for each epsilon."""

import json
import shutil

from kvbase.files import whole_file, write_atomic

from ..budgets.search import epsilon_table
from ..data.meta import load_meta
from ..errors import SweepError

DIGITS = 6  # digits of a measure in epsilon.csv, as many as single precision holds
OF_A_ROUND = (
    "cells",
    "created_utc",
    "version",
    "git_commit",
    "host",
    "isa",
)  # entries of results.meta.json that are kept for each round


def write_results(out, folders, section):
    """Writes OUT/results.csv, the rows of the rounds' folders unchanged and in order, and
    OUT/results.meta.json: the first round's with `rounds`, the sum of their cells, and `section` as `sweep`,
    without notes (the notes of a round need not hold for all rounds); returns the paths."""
    table, meta = out / "results.csv", out / "results.meta.json"
    with whole_file(table) as draft, draft.open("wb") as whole:
        header = None
        for folder in folders:
            header = _append_rows(folder / "results.csv", header, whole)
    metas = [load_meta(folder) for folder in folders]
    said = metas[0] | {"cells": _sums([each.get("cells", {}) for each in metas]), "sweep": section}
    said.pop("notes", None)
    said["rounds"] = [
        {"folder": folder.name} | {key: each[key] for key in OF_A_ROUND if key in each}
        for folder, each in zip(folders, metas, strict=True)
    ]
    return [table, write_atomic(meta, json.dumps(said, indent=2, ensure_ascii=False, sort_keys=True) + "\n")]


def write_epsilon(out, frame, measure, epsilons):
    """Writes OUT/epsilon.csv (docs/adaptive_sweeps.md) from `load`'s table; returns its path. Raises
    SweepError if the table lacks the measure."""
    if measure not in frame.select_dtypes("float"):
        raise SweepError(
            f"{out}: {measure} is not a measure of the table: `kvreplay list metrics` lists them"
        )
    table = epsilon_table(frame, measure, epsilons)
    for name in ("error", "error_below", "share_of_prompt"):
        table[name] = [float(f"{value:.{DIGITS}g}") for value in table[name].astype(float)]
    return write_atomic(out / "epsilon.csv", table.to_csv(index=False, lineterminator="\n"))


def _append_rows(file, header, whole):
    """Copies the rows, and the header of the first file only. Returns the header."""
    with file.open("rb") as rows:
        found = rows.readline()
        if header is None:
            whole.write(found)
        elif found != header:
            raise SweepError(
                f"{file}: has other columns than the first round: another version wrote it. Run again"
            )
        shutil.copyfileobj(rows, whole)
    return found


def _sums(counts):
    names = dict.fromkeys(name for each in counts for name in each)
    return {name: sum(each.get(name, 0) for each in counts) for name in names}
