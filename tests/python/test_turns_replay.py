"""Replay of turns and branches against numpy, and what one branch may know of another."""

import csv

import h5py
import kvreplay as kv
import numpy as np
import pandas as pd
import pytest
import yaml
from kvreplay.trace import BranchArrays, PromptArrays
from kvreplay_cli import BINARY, kvreplay, table
from reference import turns as reference
from token_lists import ragged

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")

LAYER, Q_HEADS, KV_HEADS, DIM, V_DIM = 1, 4, 2, 8, 6
TOKENS, CONTEXT, BUDGET = 40, 18, 10
STARTS = [0, 5, 18, 23, 30, 31, 36]
KINDS = ["context", "input", "output", "input", "input", "output", "input"]
BRANCHES = [(3, 4), (1, 6), (5, 2)]  # tokens of the question, of the answer

METHODS = {
    "knorm, the prompt alone": ({"name": "knorm"}, reference.Method("knorm", "oneshot")),
    "knorm behind each input": ({"name": "knorm", "recut": "turns"}, reference.Method("knorm", "recut")),
    "knorm at every step": ({"name": "knorm", "phase": "stream"}, reference.Method("knorm", "stream")),
    "knorm at every other step": (
        {"name": "knorm", "cut_every": 2},
        reference.Method("knorm", "stream", every=2),
    ),
    "window": ({"name": "window"}, reference.Method("window", "stream")),
    "h2o": ({"name": "h2o", "heavy": 6, "recent": 4}, reference.Method("h2o", "stream", recent=4)),
    "h2o behind each input": (
        {"name": "h2o", "heavy": 6, "recent": 4, "recut": "turns"},
        reference.Method("h2o", "recut", recent=4),
    ),
    "tova": ({"name": "tova"}, reference.Method("tova", "stream")),
    "tova at every third step": (
        {"name": "tova", "cut_every": 3},
        reference.Method("tova", "stream", every=3),
    ),
    "snapkv, the prompt alone": (
        {"name": "snapkv", "window": 4, "kernel": 1},
        reference.Method("snapkv", "oneshot", recent=4, window=4),
    ),
    "snapkv behind each input": (
        {"name": "snapkv", "window": 4, "kernel": 1, "recut": "turns"},
        reference.Method("snapkv", "recut", recent=4, window=4),
    ),
}


def made(rows, seed):
    draw = np.random.default_rng([seed, rows])
    shapes = ((Q_HEADS, rows, DIM), (KV_HEADS, rows, DIM), (KV_HEADS, rows, V_DIM))
    return tuple(draw.standard_normal(shape).astype(np.float32) for shape in shapes)


def head_of(arrays, head):
    q, k, v = (x.astype(float) for x in arrays)
    group = Q_HEADS // KV_HEADS
    return reference.Head(q[head * group : (head + 1) * group], k[head], v[head])


PROMPT = made(TOKENS, 1)
ROWS = [made(sum(tokens), 7) for tokens in BRANCHES]


def write(path, rows=ROWS, **changes):
    branches = [
        BranchArrays({LAYER: arrays}, question, f"question {i}")
        for i, (arrays, (question, _)) in enumerate(zip(rows, BRANCHES, strict=True))
    ]
    prompt = {
        "layers": {LAYER: PROMPT},
        "segments": list(zip(STARTS, KINDS, strict=True)),
        "branches": branches,
        "context_tokens": CONTEXT,
    }
    return kv.Trace.write(path, prompts={"p0": PromptArrays(**(prompt | changes))}).path


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return write(tmp_path_factory.mktemp("turns") / "t.h5")


def run(trace, folder, entry, replay, **more):
    config = {
        "schema": 1,
        "traces": [str(trace)],
        "replay": replay,
        "methods": [entry],
        "budget": {"tokens": [BUDGET]},
        "seeds": {"count": 1},
        "run": {"precision": "double"},
        "output": {"dir": str(folder), "save": ["kept"]},
    }
    path = folder.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(config | more))
    done = kvreplay("run", path)
    assert done.returncode == 0, done.stderr
    return table(folder)


def segments_of(folder):
    with (folder / "segments.csv").open() as file:
        return list(csv.DictReader(file))


def check_segments(rows, expected):
    assert [int(r["segment"]) for r in rows] == [s.number for s in expected]
    for row, segment in zip(rows, expected, strict=True):
        errors = np.array(segment.errors)
        assert int(row["rows"]) == len(errors)
        assert int(row["first_row"]) == int(row["tokens_seen"]) == segment.begin
        assert float(row["resident_tokens"]) == segment.resident
        assert float(row["rel_err_out_mean"]) == pytest.approx(errors.mean(), rel=1e-9)
        assert float(row["rel_err_out_max"]) == pytest.approx(errors.max(), rel=1e-9)


def check_cell(cell, segments, kept):
    """kept: lists after the prompt and each step, of all branches."""
    held, attended = [len(tokens) for tokens in kept], [n for s in segments for n in s.attended]
    assert float(cell["mean_attended_tokens"]) == pytest.approx(np.mean(attended), rel=1e-9)
    assert float(cell["mean_kept_tokens"]) == pytest.approx(np.mean(held), rel=1e-9)
    assert float(cell["peak_kept_tokens"]) == max(held)
    errors = [np.array(s.errors) for s in segments]
    worst = max(range(len(errors)), key=lambda i: errors[i].mean())
    assert float(cell["n_segments"]) == len(segments)
    assert float(cell["worst_segment"]) == segments[worst].number
    assert float(cell["worst_rel_err_out_mean"]) == pytest.approx(errors[worst].mean(), rel=1e-9)
    assert float(cell["first_rel_err_out_mean"]) == pytest.approx(errors[0].mean(), rel=1e-9)
    assert float(cell["rel_err_out_mean"]) == pytest.approx(np.concatenate(errors).mean(), rel=1e-9)
    assert int(cell["n_queries"]) == sum(map(len, errors))


@pytest.mark.parametrize("name", METHODS)
def test_turns_are_those_of_numpy(trace, tmp_path, name):
    entry, method = METHODS[name]
    cells = run(trace, tmp_path / "out", entry, {"turns": True})
    ends = [*STARTS[1:], TOKENS]
    behind = [turn for turn in zip(STARTS, ends, KINDS, strict=True) if turn[0] >= 18]
    lists = h5py.File(tmp_path / "out" / "kept.h5")
    rows = segments_of(tmp_path / "out")
    assert len(cells) == KV_HEADS
    for cell in cells:
        expected = reference.replay(head_of(PROMPT, int(cell["kv_head"])), method, BUDGET, 18, behind)
        for segment in expected.segments:
            segment.number += 2
        kept = [k.tolist() for k in ragged(lists[cell["key"]], "kept")]
        assert kept == (expected.kept if len(kept) > 1 else expected.kept[:1])
        check_segments([r for r in rows if r["key"] == cell["key"]], expected.segments)
        check_cell(cell, expected.segments, expected.kept)


@pytest.mark.parametrize("name", METHODS)
def test_branches_are_those_of_numpy(trace, tmp_path, name):
    entry, method = METHODS[name]
    cells = run(trace, tmp_path / "out", entry, {"branches": "all"})
    lists = h5py.File(tmp_path / "out" / "kept.h5")
    rows = segments_of(tmp_path / "out")
    for cell in cells:
        kv_head, scored, held = int(cell["kv_head"]), [], []
        for number, (arrays, (question, answer)) in enumerate(zip(ROWS, BRANCHES, strict=True)):
            begin, end = CONTEXT + question, CONTEXT + question + answer
            text = reference.branch(head_of(PROMPT, kv_head), head_of(arrays, kv_head), CONTEXT)
            expected = reference.replay(
                text, method, BUDGET, CONTEXT, [(CONTEXT, begin, "input"), (begin, end, "output")]
            )
            expected.segments[0].number = number
            scored += expected.segments
            held += expected.kept
            kept = [k.tolist() for k in ragged(lists[f"{cell['key']}/branches/{number:03}"], "kept")]
            assert kept == (expected.kept if len(kept) > 1 else expected.kept[:1])
        check_segments([r for r in rows if r["key"] == cell["key"]], scored)
        check_cell(cell, scored, held)
        assert [r["name"] for r in rows if r["key"] == cell["key"]] == [
            "question 0",
            "question 1",
            "question 2",
        ]


def test_the_toy_of_two_branches(tmp_path):
    """Scores (5, 1, 4, 2) of the context and a budget of 2 keep tokens 0 and 2, where each branch begins."""
    context, branches = 4, [(1, 1), (2, 1)]
    scores = [5, 1, 4, 2]

    def arrays(norms):
        rows = len(norms)
        k = np.zeros((1, rows, 2), dtype=np.float32)
        k[0, :, 0] = norms
        return (
            np.ones((1, rows, 2), dtype=np.float32),
            k,
            np.arange(2 * rows, dtype=np.float32).reshape(1, rows, 2),
        )

    path = tmp_path / "t.h5"
    prompt = PromptArrays(
        layers={LAYER: arrays([10 - s for s in scores])},
        branches=[BranchArrays({LAYER: arrays([9.5] * sum(b))}, b[0]) for b in branches],
        context_tokens=context,
    )
    kv.Trace.write(path, prompts={"p0": prompt})
    run = kv.replay(path, methods="knorm", budgets=2, branches="all", save="kept")
    assert [k.tolist() for k in run.kept(branch=0)] == [k.tolist() for k in run.kept(branch=1)] == [[0, 2]]
    (row,) = run.table.to_dict("records")
    segments = run.segments
    assert row["peak_attended_tokens"] == 5  # 0, 2, 4, 5, 6 in branch 1
    assert segments["first_row"].tolist() == segments["tokens_seen"].tolist() == [5, 6]
    assert segments["resident_tokens"].tolist() == [3, 4]
    errors = segments["rel_err_out_mean"]
    assert row["rel_err_out_mean"] == pytest.approx(errors.mean())
    assert (row["n_segments"], row["worst_segment"]) == (2, errors.argmax())
    assert row["worst_rel_err_out_mean"] == errors.max() > errors.min() > 0
    with pytest.raises(KeyError, match="branch 2 was not replayed; branch is one of 0, 1"):
        run.kept(branch=2)


# ---- what a branch may know

# They stream, and cut by another rule than one score for each token.
REFUSED = {"balancekv_stream", "buzz", "duo_attention", "paged_eviction", "qjl", "simlayerkv"}
REFUSED |= {"sparse_fixed", "sparse_strided"}
ORACLE = {"name": "lu_kv", "calibration": "self"}
BY_LATER_ROWS = {"laq", "static_oracle"}  # in a branch, they would cut the context by what is asked


def columns_of(run):
    """The numbers of a run without times and the columns of segments."""
    left = {"select_s", "attend_s", "n_segments", "worst_segment"}
    left |= {"worst_rel_err_out_mean", "first_rel_err_out_mean"}
    table = run.table.select_dtypes("number")
    return table.drop(columns=[c for c in table if c in left]).dropna(axis=1).astype(float)


def replays(trace, **replay):
    """A run of each method, or why it is refused."""
    runs = {}
    for name in sorted(kv.methods()):
        try:
            runs[name] = kv.replay(trace, methods=name, budgets=160, seeds=1, precision="double", **replay)
        except kv.ConfigError as refused:
            runs[name] = str(refused)
    return runs


@pytest.fixture(scope="module")
def continued(tmp_path_factory):
    """A text whose only branch is its own continuation, and whose only turn is its output."""
    rows, context = 340, 256
    draw = np.random.default_rng(5)
    q, k, v = (draw.standard_normal((h, rows, 16)).astype(np.float32) for h in (2, 1, 1))
    branch = BranchArrays({LAYER: tuple(x[:, context:] for x in (q, k, v))}, 0)
    prompt = PromptArrays(
        layers={LAYER: (q, k, v)},
        segments=[(0, "context"), (context, "output")],
        branches=[branch],
        context_tokens=context,
    )
    rope = {"theta": 10000.0}
    path = tmp_path_factory.mktemp("continued") / "t.h5"
    return kv.Trace.write(path, prompts={"p0": prompt}, rope=rope).path


@pytest.mark.filterwarnings("ignore")
def test_a_branch_and_a_turn_that_are_the_continuation_give_its_numbers(continued):
    """For every method that can be replayed so."""
    plain = replays(continued, prefill=256)
    for replay in ({"branches": "all"}, {"turns": True}):
        runs = replays(continued, **replay)
        for name, run in runs.items():
            if not isinstance(run, str):
                both = columns_of(run), columns_of(plain[name])
                pd.testing.assert_frame_equal(*both, rtol=1e-9, atol=1e-12, obj=name)
        refused = {
            name for name, run in runs.items() if isinstance(run, str) and not isinstance(plain[name], str)
        }
        assert refused == REFUSED | (BY_LATER_ROWS if "branches" in replay else set())


@pytest.mark.filterwarnings("ignore")
def test_what_stays_of_a_context_depends_on_no_branch(tmp_path):
    """For every method that evicts."""
    draw = np.random.default_rng(6)
    q, k, v = (draw.standard_normal((h, 306, 16)).astype(np.float32) for h in (2, 1, 1))
    branches = [
        BranchArrays({LAYER: tuple(x[:, at : at + 25] for x in (q, k, v))}, 1 + i, f"question {i}")
        for i, at in enumerate((256, 281))
    ]
    prompt = PromptArrays(
        layers={LAYER: tuple(x[:, :256] for x in (q, k, v))}, branches=branches, context_tokens=256
    )
    path = kv.Trace.write(tmp_path / "t.h5", prompts={"p0": prompt}, rope={"theta": 10000.0}).path
    evicting = 0
    for name, run in replays(path, branches="all", save="kept").items():
        if isinstance(run, str) or run.row()["n_evictions"] == 0 or name == "rocketkv":  # lists what it reads
            continue
        assert run.kept(branch=0)[0].tolist() == run.kept(branch=1)[0].tolist(), name
        evicting += 1
    assert evicting > 25


@pytest.mark.filterwarnings("ignore")
def test_no_branch_knows_the_rows_of_another(trace, tmp_path):
    """Audited, for methods that cut once and for those that stream."""
    other = write(tmp_path / "other.h5", rows=[ROWS[0], made(sum(BRANCHES[1]), 99), ROWS[2]])
    for entry, _ in METHODS.values():
        runs = [
            kv.replay(path, methods=entry, budgets=BUDGET, branches="all", save="kept", audit=True)
            for path in (trace, other)
        ]
        assert not any(len(run.failed) for run in runs)
        for head in range(KV_HEADS):
            first = [[k.tolist() for k in run.kept(head=head, branch=b)] for run in runs for b in (0, 2)]
            assert first[:2] == first[2:]
            contexts = [run.kept(head=head, branch=b)[0].tolist() for run in runs for b in range(3)]
            assert all(c == contexts[0] for c in contexts)
        rows = [run.segments.set_index(["kv_head", "segment"]).drop(columns="key") for run in runs]
        for segment in (0, 2):
            assert rows[0].xs(segment, level=1).equals(rows[1].xs(segment, level=1))
        assert not rows[0].xs(1, level=1).equals(rows[1].xs(1, level=1))


def test_branches_may_be_chosen_and_come_in_any_order(trace):
    every = kv.replay(trace, methods="h2o", budgets=BUDGET, branches="all").segments
    some = kv.replay(trace, methods="h2o", budgets=BUDGET, branches=[2, 0]).segments
    assert some["segment"].tolist() == [2, 0] * KV_HEADS
    for _, row in some.iterrows():
        same = every[(every["segment"] == row["segment"]) & (every["kv_head"] == row["kv_head"])]
        assert same["rel_err_out_mean"].item() == row["rel_err_out_mean"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"turns": True, "branches": "all"}, "leave out one of them"),
        ({"turns": True, "prefill": 8}, "turns says where the prompt ends: leave out prefill"),
        ({"branches": "all", "tokens": 20}, "branches are replayed whole: leave out tokens"),
        ({"branches": [3]}, "names a branch that"),
        ({"branches": [0, 0]}, "0 is listed twice"),
        ({"branches": "all", "methods": "balancekv_stream"}, "an input of several tokens arrives at once"),
        ({"branches": "all", "methods": "static_oracle"}, "by rows behind it, and each branch has others"),
        ({"branches": "all", "methods": {"name": "knorm", "allocator": ORACLE}}, "each branch has others"),
        ({"methods": {"name": "snapkv", "recut": "turns"}}, "recut cuts behind each input"),
        (
            {"turns": True, "methods": {"name": "h2o", "recut": "turns", "cut_every": 4}},
            "leave out cut_every",
        ),
        (
            {"turns": True, "methods": {"name": "knorm", "recut": "turns", "phase": "oneshot"}},
            "cuts again and again: leave out",
        ),
        ({"turns": True, "methods": {"name": "kvzip", "recut": "turns"}}, "leave out recut"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_a_remedy(trace, words, says):
    with pytest.raises(kv.ConfigError, match=says):
        kv.replay(trace, **({"methods": "h2o", "budgets": BUDGET} | words))


def test_a_text_without_turns_is_refused(tmp_path):
    path = kv.Trace.write(tmp_path / "t.h5", {LAYER: PROMPT}).path
    for words, what in (({"turns": True}, "segments"), ({"branches": "all"}, "branches")):
        with pytest.raises(kv.ConfigError, match=f"needs {what}, which"):
            kv.replay(path, methods="h2o", budgets=BUDGET, **words)
