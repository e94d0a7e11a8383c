"""Common cuts of several kv heads during decoding, against the numpy definition."""

import h5py
import pytest
import yaml
from engine_cases_tier2 import Case, layers_of, write_trace
from engine_runs import Runs, parameters
from kvreplay_cli import BINARY, kvreplay, table
from reference.common_cuts import triattention

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")

TRACE = "smooth"  # three layers of two kv heads with three query heads each


def case(level, budgets=(41, 64), **o):
    def reference(layers, B):
        return triattention(layers, B, level, **o)

    return Case({"name": "triattention", "level": level, **o}, reference, (TRACE,), budgets)


CASES = [
    *(
        case(level, **o)
        for level in ("head", "union")
        for o in ({}, {"buffer": 3}, {"buffer": 7, "sinks": 2})
    ),
    case("head", buffer=6, group="mean", recent=5, buffer_in_budget=True),
    case("head", buffer=4, normalise=False, offset_agg="max", norm_term="full"),
    case("head", (3, 9), buffer=4, keep_prompt=True),
    case("union", (8, 9), buffer=4, keep_prompt=True, recent=2, buffer_in_budget=True),
    case("union", buffer=5, recent=4, normalise=False),
    case("union", buffer=5, group="mean"),  # query heads are not averaged
    case("head", phase="oneshot", sinks=3),
    case("union", phase="oneshot"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(
        tmp_path_factory.mktemp("engine"), CASES, lambda folder, trace: write_trace(folder / "t.h5", trace)
    )


@pytest.mark.parametrize("case,trace", parameters(CASES))
def test_the_engine_agrees_with_the_definition(runs, case, trace):
    runs.check(case, trace, layers_of(trace))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("together")
    write_trace(path / "t.h5", TRACE)
    return path


def configured(folder, name, method, **o):
    config = {
        "schema": 1,
        "traces": ["t.h5"],
        "methods": [{"name": "triattention", "buffer": 5, **method}],
        "budget": {"tokens": [41]},
        "output": {"dir": name},
        **o,
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return folder / f"{name}.yaml"


@pytest.mark.parametrize("level", ["head", "union"])
def test_unselected_heads_take_part_in_common_cuts(folder, level):
    config = configured(folder, f"whole_{level}", {"level": level})
    one = configured(folder, f"one_{level}", {"level": level}, select={"layers": [1], "kv_heads": [1]})
    for path in (config, one):
        assert kvreplay("run", path, "--jobs", "2").returncode == 0
    errors = {
        name: {(r["layer"], r["kv_head"]): r["rel_err_out_mean"] for r in table(folder / name)}
        for name in (f"whole_{level}", f"one_{level}")
    }
    assert len(errors[f"whole_{level}"]) == 6
    assert errors[f"one_{level}"] == {("1", "1"): errors[f"whole_{level}"]["1", "1"]}


def test_an_audit_does_not_change_common_cuts_with_coded_rows(folder):
    path = configured(folder, "audit", {"level": "union", "row_format": "int4"}, run={"audit": True})
    assert kvreplay("run", path).returncode == 0
    plain = configured(folder, "plain", {"level": "union", "row_format": "int4"})
    assert kvreplay("run", plain).returncode == 0
    audited, usual = ([r["rel_err_out_mean"] for r in table(folder / name)] for name in ("audit", "plain"))
    assert [float(x) for x in audited] == pytest.approx([float(x) for x in usual], rel=1e-6)


REFUSED = [
    ({"gqa": {"level": "query"}}, "triattention compares the scores of kv heads, each with a cache"),
    ({"allocator": "pyramid"}, "leave out allocator"),
    (
        {"merge": "pivot"},
        "heads of triattention cut together by keys as they were recorded, and merge changes them",
    ),
]


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=[next(iter(words)) for words, _ in REFUSED])
def test_a_meaningless_combination_is_refused_with_the_remedy(folder, words, said):
    done = kvreplay("validate", configured(folder, "refused", {"level": "head", **words}))
    assert done.returncode == 2
    assert said in done.stderr


def test_layers_with_other_tokens_because_of_a_window_are_named(folder, tmp_path):
    (tmp_path / "t.h5").write_bytes((folder / "t.h5").read_bytes())
    with h5py.File(tmp_path / "t.h5", "r+") as f:
        f["prompts/p0/layers/001"].attrs["sliding_window"] = 64
    done = kvreplay("run", configured(tmp_path, "window", {"level": "union"}))
    assert done.returncode != 0
    assert "heads of layers 0 and 1 hold different tokens at a common cut" in done.stderr
    assert "level: layer_head" in done.stderr
