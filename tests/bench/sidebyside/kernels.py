"""Runs `kvreplay bench` on the subject: rates of kernels beside the machine's limits."""

import importlib.util
import json
from pathlib import Path

from .contest import say


def blas_of_numpy():
    """The OpenBLAS in numpy's wheel, or None."""
    numpy = Path(importlib.util.find_spec("numpy").origin).parent
    found = sorted((numpy.parent / "numpy.libs").glob("*openblas*"))
    return found[0] if found else None


def measured(options, subject, engines):
    """One row per rate and ratio: {isa, kind, name, value, unit, cpu_min_s, ...shape}."""
    if not options.kernels:
        return []
    say("rates of the kernels")
    words = [
        "bench",
        "--json",
        "--trace",
        subject.trace,
        "--layer",
        subject.layers[0],
        "--tokens",
        subject.tokens,
    ]
    words += ["--rounds", options.rounds]
    if (blas := blas_of_numpy()) is not None:
        words += ["--blas", blas]
    return [row for one in engines for row in rows_of(json.loads(one.call(*words).stdout))]


def rows_of(said):
    shape = {k: said[k] for k in ("tokens", "prefill", "query_heads", "head_dim", "v_head_dim", "tile_rows")}
    rates = [
        {
            "kind": "rate",
            "name": r["name"],
            "value": r["value"],
            "unit": r["unit"],
            "cpu_min_s": r["min_s"],
        }
        for r in said["rates"]
    ]
    ratios = [
        {"kind": "ratio", "name": r["name"], "value": r["value"], "unit": "", "cpu_min_s": ""}
        for r in said["ratios"]
    ]
    return [{"isa": said["isa"], **row, **shape} for row in rates + ratios]
