"""Needles that the trace marks, what a cache keeps of them, and the answer's gradient in the engine."""

import h5py
import kvreplay as kv
import numpy as np
import pytest
from kvanalysis import load
from kvreplay_cli import kvreplay, replayed, synth
from test_measures_independent import add_gradient
from whole_files import arrays

TOKENS, PROMPT = 96, 64
# `window` with 16 tokens keeps the last 16 tokens of the prompt, 48 to 63.
SPANS = [[10, 14], [46, 52]]
RECORDED = ["-s", "replay.needles=recorded"]
WINDOW = ["--method", "window", "--budget", "16"]


def mark(trace, spans):
    with h5py.File(trace, "r+") as file:
        for prompt in file["prompts"].values():
            prompt.attrs["needle_tokens"] = np.array(spans, dtype=np.int32)
    return trace


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return synth(tmp_path_factory.mktemp("t") / "t.h5", "--tokens", TOKENS, "--prompt", PROMPT, "--layers", 1)


@pytest.fixture
def trace(bare, tmp_path):
    path = tmp_path / "marked.h5"
    path.write_bytes(bare.read_bytes())
    return mark(path, SPANS)


def test_a_cache_keeps_the_share_of_the_marked_tokens_that_it_holds_after_the_prompt(trace, tmp_path):
    rows = replayed(trace, tmp_path / "out", *WINDOW, *RECORDED)
    # Tokens 48 to 51 of the ten marked ones; later evictions do not count.
    assert {float(row["needle_kept"]) for row in rows} == {0.4}
    full = replayed(trace, tmp_path / "full", "--method", "window", "--budget", TOKENS, *RECORDED)
    assert {(row["needle_kept"], row["needle_mass"]) for row in full} == {("1", "1")}


def test_recorded_needles_have_the_masses_of_their_tokens(trace, tmp_path):
    run = kv.replay(trace, methods=["window"], budgets=[16], needles="recorded")
    with h5py.File(trace) as file:
        layer = file["prompts/synthetic/layers/000"]
        q, k, scale = layer["q"][()].astype(float), layer["k"][()].astype(float), layer.attrs["scaling"]
    for cell in run.cells:
        head, group = cell.row["kv_head"], len(q) // len(k)
        shares = []
        for h in range(head * group, (head + 1) * group):
            for t in range(PROMPT, TOKENS):
                mass = np.exp(scale * (k[head, : t + 1] @ q[h, t]))
                marked = [t for begin, end in SPANS for t in range(begin, end)]
                # The window of 16 holds token t itself and the 15 before it, or 16 before it.
                held = [i for i in marked if i >= t - 16]
                shares.append(mass[held].sum() / mass[marked].sum())
        assert cell.row["needle_mass"] == pytest.approx(np.mean(shares), rel=1e-4)
        assert cell.row["needle_kept"] == 0.4


def test_needles_may_overlap_and_end_with_a_shorter_prompt(trace, tmp_path):
    mark(trace, [[10, 14], [12, 16], [40, 60]])
    (row, *_) = replayed(trace, tmp_path / "out", *WINDOW, *RECORDED, "--prefill", 50)
    # The last 16 tokens of 50 hold 40 to 49, but not 10 to 15.
    assert float(row["needle_kept"]) == 10 / 16


def test_a_prompt_without_marked_tokens_is_named_in_the_refusal(trace, tmp_path):
    with h5py.File(trace, "r+") as file:
        file["prompts"].copy("synthetic", "bare")
        del file["prompts/bare"].attrs["needle_tokens"], file.attrs["trace_id"]
    done = kvreplay("run", trace, *WINDOW, *RECORDED, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "prompt bare" in done.stderr and "needle_tokens" in done.stderr
    with pytest.raises(kv.ConfigError, match=r'needles="recorded" needs marked tokens .*prompt bare'):
        kv.replay(trace, methods=["window"], budgets=[16], needles="recorded")
    with pytest.raises(kv.ConfigError, match=r"needles is .*nothing.* and must be .* or \"recorded\""):
        kv.replay(trace, methods=["window"], budgets=[16], needles="nothing")


def test_the_key_of_a_cell_depends_on_the_marked_tokens(trace):
    keys = set()
    for spans in (SPANS, [[10, 14], [46, 53]]):
        run = kv.replay(
            mark(trace, spans), methods=["window"], budgets=[16], kv_heads=[0], needles="recorded"
        )
        keys.add(run.cells[0].row["key"])
    keys.add(kv.replay(trace, methods=["window"], budgets=[16], kv_heads=[0]).cells[0].row["key"])
    assert len(keys) == 3


def test_metrics_that_name_no_needle_do_not_list_tokens(trace):
    words = {"methods": ["window"], "budgets": [16], "needles": "recorded"}
    (one, *_) = kv.replay(trace, metrics=["rel_err_out_mean"], **words).cells
    assert one.row.get("needle_kept") in (None, "")
    (other, *_) = kv.replay(trace, metrics=["needle_kept"], **words).cells
    assert other.row["needle_kept"] == 0.4


@pytest.mark.parametrize(
    ("spans", "says"),
    [
        (np.array([[3, 3]], "i4"), "a span from 3 to 3"),
        (np.array([[3, 99]], "i4"), "holds 99"),
        (np.array([[-1, 4]], "i4"), "holds -1"),
        (np.array([3, 4], "i4"), "shape"),
        (np.array([[3.0, 4.0]]), "does not hold integers"),
    ],
)
def test_marked_tokens_that_are_no_spans_of_the_prompt_are_an_error_of_the_trace(trace, spans, says):
    with h5py.File(trace, "r+") as file:
        file["prompts/synthetic"].attrs["needle_tokens"] = spans
    done = kvreplay("validate", trace)
    assert done.returncode == 3 and "needle_tokens" in done.stderr and says in done.stderr


@pytest.fixture
def with_answer(trace):
    add_gradient(trace, 0)
    with h5py.File(trace, "r+") as file:
        layer = file["prompts/synthetic/layers/000"]
        rng = np.random.default_rng(4)
        answer = (rng.integers(-64, 65, layer["g"].shape[1:]) / 16).astype("f4")  # exact in bfloat16
        layer["g_recorded"], layer["g_answer"] = 2 * layer["g"][0], answer
    return trace


def test_the_products_of_the_answer_are_those_of_its_gradient_and_change_no_other_number(
    with_answer, tmp_path
):
    def saved(name):
        words = ["--save", "projections,outputs", "--method", "window,h2o", "--budget", "16"]
        assert kvreplay("run", with_answer, *words, "-o", tmp_path / name).returncode == 0
        return tmp_path / name

    whole = saved("whole")
    with h5py.File(with_answer, "r+") as file:
        layer = file["prompts/synthetic/layers/000"]
        g, q, k, v = (layer[name][()].astype(float) for name in ("g_answer", "q", "k", "v"))
        scale = layer.attrs["scaling"]
        del layer["g_answer"]
        file.attrs["trace_id"] = "without"
    without = load(saved("without")).set_index(["method", "kv_head"])
    frame, group = load(whole), len(q) // len(k)
    with h5py.File(whole / "projections.h5") as found, h5py.File(whole / "outputs.h5") as outputs:
        for _, row in frame.iterrows():
            cell, out = found[row["key"]], outputs[row["key"]]["out"][()]
            assert cell["a_answer"].shape == cell["a_recorded"].shape == (group, TOKENS - PROMPT)
            assert np.allclose(cell["a_recorded"], 2 * cell["a"][..., 0], atol=1e-5)
            for h in range(group):
                head = row["kv_head"] * group + h
                for i, t in enumerate(range(PROMPT, TOKENS - 1)):
                    weights = np.exp(scale * (k[row["kv_head"], : t + 1] @ q[head, t]))
                    exact = weights @ v[row["kv_head"], : t + 1] / weights.sum()
                    expected = g[head, i] @ (out[h, i] - exact)
                    assert cell["a_answer"][h, i] == pytest.approx(expected, rel=1e-3, abs=1e-4)
            assert not cell["a_answer"][:, -1].any()
            other = without.loc[(row["method"], row["kv_head"])]
            assert row["kl_head_mean"] == other["kl_head_mean"] > 0


def test_a_replay_in_python_names_the_answers_products(with_answer, tmp_path):
    run = kv.replay(with_answer, methods=["window"], budgets=[16], save="projections")
    words = ["--save", "projections", *WINDOW]
    assert kvreplay("run", with_answer, *words, "-o", tmp_path / "out").returncode == 0
    with h5py.File(tmp_path / "out" / "projections.h5") as found:
        for cell in run.cells:
            for name in ("a", "a_recorded", "a_answer"):
                assert np.array_equal(cell.arrays[name], found[cell.row["key"]][name][()])


def test_the_answers_products_do_not_depend_on_who_replays_a_cell(with_answer, tmp_path):
    saving = ["-s", "output.save=[projections]", "--method", "window,h2o", "--budget", "16,24"]
    assert kvreplay("run", with_answer, *saving, "-o", tmp_path / "whole").returncode == 0
    assert kvreplay("sweep", "plan", with_answer, *saving, "-o", tmp_path / "parts").returncode == 0
    for shard in ("1/2", "0/2"):
        words = ["--shard", shard, "--progress", "none"]
        assert kvreplay("sweep", "work", tmp_path / "parts", *words).returncode == 0
    assert kvreplay("sweep", "merge", tmp_path / "parts").returncode == 0
    found, expected = (arrays(tmp_path / name) for name in ("parts", "whole"))
    assert any(dataset.endswith("a_answer") for _, dataset in expected)
    assert found == expected


def test_a_wrong_gradient_of_the_answer_is_found(with_answer):
    done = kvreplay("inspect", with_answer)
    assert "and the answer" in done.stdout
    assert kvreplay("validate", with_answer, "--deep").returncode == 0
    with h5py.File(with_answer, "r+") as file:
        file["prompts/synthetic/layers/000/g_answer"][0, 0, 0] = np.nan
    done = kvreplay("validate", with_answer, "--deep")
    assert done.returncode == 3 and "g_answer" in done.stderr and "nan" in done.stderr.lower()
    with h5py.File(with_answer, "r+") as file:
        layer = file["prompts/synthetic/layers/000"]
        less = layer["g_answer"][:, 1:]
        del layer["g_answer"]
        layer["g_answer"] = less
    done = kvreplay("validate", with_answer)
    assert done.returncode == 3 and "g_answer" in done.stderr and "must be" in done.stderr
