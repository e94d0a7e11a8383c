"""The engine against the numpy definitions of merging evicted rows: kept lists, weights and outputs."""

import pytest
from engine_cases_tier2 import SEED, Case, layers_of, per_head, write_trace
from engine_runs import Runs, parameters
from kvreplay_cli import BINARY
from reference import output_aware
from reference.h2o import h2o
from reference.merging import merged
from reference.recency import streaming_llm
from reference.snapkv import snapkv

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")

SNAP = {"window": 9, "kernel": 3, "pool": "max"}
ORIGINAL = {"positions": "original"}


def merging(name, method, merge, traces=("smooth",), budgets=(41,), level="kv", **more):
    """merge: as in the entry, a rule with its parameters under the published names."""
    rule = merge["name"]
    words = {"next": "targets"}
    options = {words.get(k, k): v for k, v in merge.items() if k != "name"}
    entry = {"name": name, **more, "merge": merge, **({"gqa": {"level": level}} if level != "kv" else {})}
    reference = per_head(merged_of(method, rule, level, options), **more)
    return Case(entry, reference, traces, budgets)


def merged_of(method, rule, level, options):
    def replayed(head, B, **more):
        found = merged(method, head, B, rule, level, SEED, options, **more)
        if rule == "gaussian":  # its rows do not belong to tokens of the trace
            found.kept, found.num, found.den = None, None, None
        return found

    return replayed


RULES = [
    {"name": "cam"},
    {"name": "cam", "next": 5, "mass": "keep"},
    {"name": "cam", "next": 3, "attention": "step"},
    {"name": "d2o"},
    {"name": "d2o", "release": True},
    {"name": "d2o", "mass": "keep"},
    {"name": "d2o", "release": True, "mass": "keep"},
    {"name": "pivot"},
    {"name": "pivot", "mass": "keep"},
    {"name": "weighted_v"},
    {"name": "weighted_v", "mass": "keep"},
]
RUNS = [
    {"name": "gaussian"},
    {"name": "gaussian", "threshold": 0.2},
    {"name": "gaussian", "threshold": 0.3, "mass": "keep"},
]
VALUES = [rule for rule in RULES if rule["name"] in ("cam", "weighted_v")]
CASES = [
    *(merging("h2o", h2o, rule) for rule in RULES),
    *(merging("h2o", h2o, rule, phase="oneshot") for rule in RULES + RUNS),
    *(merging("tova", output_aware.tova, rule) for rule in RULES),
    *(merging("snapkv", snapkv, rule, **SNAP) for rule in RULES + RUNS),
    *(merging("streaming_llm", streaming_llm, rule, **ORIGINAL) for rule in RULES),
    *(merging("streaming_llm", streaming_llm, rule, ("g3",)) for rule in VALUES),
    *(merging("h2o", h2o, rule, ("g3",), level="query") for rule in RULES[::2]),
    *(merging("h2o", h2o, rule, ("widths",), (17,)) for rule in RULES),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    return Runs(folder, CASES, lambda to, trace: write_trace(to / "t.h5", trace))


@pytest.mark.parametrize("case,trace", parameters(CASES))
def test_the_engine_merges_what_the_definition_merges(runs, case, trace):
    runs.check(case, trace, layers_of(trace))
