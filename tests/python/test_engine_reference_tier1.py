"""The engine against the numpy reference on small odd traces: kept sets at every step, weights, outputs."""

from functools import cache
from itertools import islice

import numpy as np
import pandas as pd
import pytest
import yaml
from engine_runs import opened
from engine_vs_reference import CASES
from kvreplay_cli import BINARY, kvreplay
from reference.balance import WalkFailed
from reference.common import EmptyDenominator
from reference.heads import SHAPES, heads, write_trace
from token_lists import ragged

OUTPUT_TOLERANCE = 1e-8  # relative to the largest magnitude: doubles in other orders of summation
WEIGHT_TOLERANCE = 1e-12
SEEDS = (3, 2)  # first, count
ALIAS = "sliding_window"
ALIASES_OF_CASES = {ALIAS, "balancekv-preset=single_layer"}  # a run refuses them next to their equals
READ = ["prompt", "layer", "kv_head", "method", "budget_tokens", "seed", "key", "status", "error"]
PAIRS = [(case, trace) for case in CASES for trace in case.traces]

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")


@pytest.fixture(scope="module")
def known():
    """Names of the methods that the binary has."""
    lines = kvreplay("list", "methods").stdout.splitlines()[1:]
    return {line.split()[0] for line in lines if line.strip()} | {ALIAS}


def run(folder, trace, cases):
    """Runs cases with equal budgets and `replay:` together; returns the rows."""
    shape, case = SHAPES[trace], cases[0]
    folder.mkdir()
    write_trace(folder / "t.h5", shape)
    config = {
        "schema": 1,
        "traces": [str(folder / "t.h5")],
        "replay": {"prefill": shape.P, **dict(case.replay)},
        "methods": [case.entry for case in cases],
        "seeds": {"first": SEEDS[0], "count": SEEDS[1]},
        "run": {"precision": "double"},
        "output": {"dir": str(folder / "out"), "save": ["kept", "outputs"]},
    }
    if case.budgets is not None:
        config["budget"] = {"tokens": list(case.budgets)}
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    done = kvreplay("run", path, "--force", "--progress", "none")
    assert done.returncode in (0, 1), done.stderr  # exit code 1: some cells failed, which may be expected
    return pd.read_csv(folder / "out/results.csv", dtype={"prompt": str}, usecols=READ)


def rows_of_cases(rows, cases):
    """The rows of each case. A head's rows are in the order of the entries, one per budget and seed."""
    found = [[] for _ in cases]
    for _, part in rows.groupby(["prompt", "layer", "kv_head"]):
        of_head = part.itertuples()
        for case, its in zip(cases, found, strict=True):
            count = max(1, len(case.budgets or ())) * (SEEDS[1] if case.random else 1)
            its += islice(of_head, count)
        assert next(of_head, None) is None, "more rows than entries"
    return found


def batch_of(case, trace):
    """The properties that all cases of one run share."""
    return trace, case.budgets, case.replay, case.id in ALIASES_OF_CASES


class Runs:
    """Runs each batch of cases once, and holds its results folder and each case's rows."""

    def __init__(self, root, known):
        self.root, self.known, self.done = root, known, {}

    def of(self, case, trace):
        batch = batch_of(case, trace)
        cases = [c for c, t in PAIRS if batch_of(c, t) == batch and c.entry["name"] in self.known]
        if batch not in self.done:
            folder = self.root / f"batch{len(self.done)}"
            self.done[batch] = folder / "out", rows_of_cases(run(folder, trace, cases), cases)
        out, rows = self.done[batch]
        return out, rows[cases.index(case)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, known):
    return Runs(tmp_path_factory.mktemp("engine"), known)


def same_lists(got, want, what):
    assert len(got) == len(want), what
    for i, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        assert np.array_equal(mine, theirs), f"{what} list {i}: {mine} is not {theirs}"


def flat_attended(attended):
    """One list per row; lists per head follow head by head."""
    if not isinstance(attended[0], list):
        return attended
    return [sets[g] for g in range(len(attended[0])) for sets in attended]


def same_weights(group, name, lists):
    flat = np.concatenate(lists) if lists is not None else None
    if name not in group:
        assert flat is None or np.all(flat == 1.0), name
        return
    got = group[name][:]
    want = np.ones(len(got)) if flat is None else flat
    assert len(got) == len(want), name
    assert np.abs(got - want).max(initial=0.0) <= WEIGHT_TOLERANCE * np.abs(want).max(initial=1.0), name


def compare(kept, outputs, result, what):
    if result.kept is not None:
        same_lists(ragged(kept, "kept"), result.kept, f"{what} kept")
        same_weights(kept, "num", result.num)
        same_weights(kept, "den", result.den)
    if result.attended is not None and kept is not None and "attended_flat" in kept:
        same_lists(ragged(kept, "attended"), flat_attended(result.attended), f"{what} attended")
    got, want = outputs["out"][:], result.out
    assert got.shape == want.shape, what
    assert np.abs(got - want).max() <= OUTPUT_TOLERANCE * np.abs(want).max(), f"{what} outputs"


@cache
def heads_of(trace):
    return heads(SHAPES[trace])


def expected(case, head, row):
    """The reference of one row, or None if the method fails by design."""
    budget = None if case.budgets is None else int(row.budget_tokens)
    seed = int(row.seed) if case.random else 0
    try:
        return case.call(head, budget, seed)
    except (WalkFailed, EmptyDenominator):
        return None


@pytest.mark.parametrize("case,trace", PAIRS, ids=lambda x: getattr(x, "id", x))
def test_the_engine_equals_the_reference(runs, known, case, trace):
    if case.entry["name"] not in known:
        pytest.skip(f"no method {case.entry['name']} yet")
    all_heads = heads_of(trace)
    out, rows = runs.of(case, trace)
    per_head = max(1, len(case.budgets or ())) * (SEEDS[1] if case.random else 1)
    assert len(rows) == len(all_heads) * per_head
    kept, outputs = opened(out / "kept.h5"), opened(out / "outputs.h5")
    for row in rows:
        assert row.method == ("window" if case.entry["name"] == ALIAS else case.entry["name"])
        what = f"{row.prompt} layer {row.layer} head {row.kv_head} B={row.budget_tokens} seed={row.seed}"
        result = expected(case, all_heads[row.prompt, row.layer, row.kv_head], row)
        if result is None:
            assert row.status == "failed", what
            continue
        assert row.status == "ok", f"{what}: {row.error}"
        compare(kept.get(row.key), outputs[row.key], result, what)
