"""Exact attention of one head, the timeline of a kept set, and its figures, from an invented trace and
cache."""

import h5py
import numpy as np
import pytest
from fake_figure import fake_context, sketch
from kvanalysis.data.arrays import Recorded
from kvanalysis.data.exact_head import group_attention, probabilities
from kvanalysis.errors import FigureError, ResultsError
from kvanalysis.plots.timeline.residence import evictions, kept_timeline
from test_kvanalysis_fake import fake_row

LOG2, LOG3 = np.log(2), np.log(3)
ROWS = np.arange(3)


def test_probabilities_by_hand_with_soft_cap_window_and_sink():
    logits = np.array([[0, 9, 9], [0, LOG2, 9], [0, 0, LOG2]])
    assert np.allclose(probabilities(logits, ROWS), [[1, 0, 0], [1 / 3, 2 / 3, 0], [1 / 4, 1 / 4, 1 / 2]])
    windowed = probabilities(logits, ROWS, window=2)
    assert np.allclose(windowed, [[1, 0, 0], [1 / 3, 2 / 3, 0], [0, 1 / 3, 2 / 3]])
    # A sink of logit 0 takes the share of one more token and contributes no value.
    assert np.allclose(probabilities(logits, ROWS, sink=0.0)[1], [1 / 4, 2 / 4, 0])
    # 2 tanh(l / 2) = ln 3 for l = 2 artanh(ln 3 / 2).
    capped = probabilities(np.array([[0, 2 * np.arctanh(LOG3 / 2)]]), np.array([1]), softcap=2.0)
    assert np.allclose(capped, [[1 / 4, 3 / 4]])
    assert np.allclose(probabilities(np.array([[800.0, 800 + LOG2]]), np.array([1])), [[1 / 3, 2 / 3]])


def write_trace(path, queries=4, **attributes):
    """Four tokens with keys of length 1, two query heads on one kv head, layer 3; texts of the tokens."""
    with h5py.File(path, "w") as file:
        file.attrs["kvreplay_schema"] = 1
        prompt = file.create_group("prompts/p0")
        prompt["position_ids"] = np.arange(4, dtype=np.int32)
        prompt.create_dataset("token_text", data=["The", " cat", "\n", "$5"], dtype=h5py.string_dtype())
        layer = prompt.create_group("layers/003")
        layer.attrs.update({"scaling": 0.5} | attributes)
        layer["q"] = np.stack([np.zeros((queries, 1)), np.full((queries, 1), 2 * LOG2)]).astype(np.float32)
        layer["k"] = np.array([[[0], [1], [0], [0]]], dtype=np.float32)
        layer["v"] = np.ones((1, 4, 1), dtype=np.float32)
        layer["q_pos"] = np.arange(queries)
    return path


def test_the_attention_of_a_group_is_the_mean_over_its_query_heads(tmp_path):
    recorded = Recorded(write_trace(tmp_path / "t.h5"))
    # Head 0 attends evenly; head 1 has logit ln 2 on token 1.
    expected = [[(1 / 3 + 1 / 4) / 2, (1 / 3 + 2 / 4) / 2, (1 / 3 + 1 / 4) / 2, 0]]
    expected += [[(1 / 4 + 1 / 5) / 2, (1 / 4 + 2 / 5) / 2, (1 / 4 + 1 / 5) / 2, (1 / 4 + 1 / 5) / 2]]
    assert np.allclose(group_attention(recorded, "p0", 3, 0, 2, 4), expected)
    # In chunks of 2 tokens, rows 2 and 3 see no token before 2.
    chunked = Recorded(write_trace(tmp_path / "c.h5", attention_chunk=2))
    assert np.allclose(group_attention(chunked, "p0", 3, 0, 2, 4), [[0, 0, 1, 0], [0, 0, 0.5, 0.5]])
    strided = Recorded(write_trace(tmp_path / "s.h5", queries=2))
    with pytest.raises(ResultsError, match="2 queries for 4 keys"):
        group_attention(strided, "p0", 3, 0, 2, 4)


def test_token_texts_are_read_or_empty(tmp_path):
    path = write_trace(tmp_path / "t.h5")
    assert Recorded(path).token_texts("p0") == ["The", " cat", "\n", "$5"]
    with h5py.File(path, "a") as file:
        del file["prompts/p0/token_text"]
    assert Recorded(path).token_texts("p0") == [""] * 4


# Prompt of 2 tokens, then tokens 2, 3, 4. Token 1 is evicted after step 2, token 3 is never kept, token 0
# stays.
LISTS = [[0, 1], [0, 2], [0, 2], [0, 4]]
ATTENTION = np.array([[0.1, 0.6, 0.3, 0, 0], [0.2, 0.4, 0.1, 0.3, 0], [0.1, 0.2, 0.3, 0.3, 0.1]])


def test_a_timeline_has_eviction_times_and_later_attention():
    table = kept_timeline([np.array(x) for x in LISTS], ATTENTION, 2).fillna(-1)
    assert table["enters"].tolist() == [1, 1, 2, 3, 4]
    assert table["evicted_at"].tolist() == [-1, 2, 4, 3, -1]
    assert table["age"].tolist() == [-1, 1, 2, 0, -1]
    assert table["wanted_mass"].tolist() == pytest.approx([0.4, 1.2, 0.7, 0.6, 0.1])
    # Token 1 misses the rows of tokens 3 and 4, token 3 the row of token 4; token 2 misses none.
    assert table["later_mass"].tolist() == pytest.approx([0, 0.6, 0, 0.3, 0])


def test_evictions_are_sorted_by_later_mass():
    table = kept_timeline([np.array(x) for x in LISTS], ATTENTION, 2)
    assert evictions(table)["position"].tolist() == [1, 3, 2]


def test_a_one_shot_method_keeps_every_later_token():
    table = kept_timeline([np.array([0])], ATTENTION, 2)
    assert table["evicted_at"].isna().tolist() == [True, False, True, True, True]
    assert table.loc[1, ["evicted_at", "later_mass"]].tolist() == pytest.approx([1, 1.2])


def test_lists_of_several_caches_are_refused():
    with pytest.raises(ResultsError, match="8 lists for 3 steps"):
        kept_timeline([np.array([0])] * 8, ATTENTION, 2)


def timeline_context(folder, **options):
    """Two methods on layer 3 of the invented trace: one drops token 0, one drops token 1."""
    place = {"prompt": "p0", "layer": 3, "n_tokens": 4, "n_prefill": 2, "budget": 2}
    rows = [
        fake_row("first", key="kfirst", kept_mass_mean=0.7, **place),
        fake_row("second", key="ksecond", **place),
    ]
    context = fake_context(folder, "kept_timeline", {"run": rows}, [write_trace(folder / "t.h5")], **options)
    with h5py.File(folder / "out/run/kept.h5", "w") as file:
        for key, lists in (("kfirst", [[0, 1], [1, 2], [2, 3]]), ("ksecond", [[0, 1], [0, 2], [0, 3]])):
            file[f"{key}/kept_flat"] = np.concatenate(lists).astype(np.int32)
            file[f"{key}/kept_off"] = np.array([0, 2, 4, 6])
    return context


def test_the_figures_name_the_evicted_tokens_with_text_and_mass(tmp_path):
    plot = sketch(timeline_context(tmp_path), painted=True)
    table = plot.table()
    assert table["label"].tolist() == ["first"] * 4 + ["second"] * 4
    worst = plot.table(1)
    # Row 3 gives 0.225 to token 0, evicted by `first`, and 0.325 to token 1, evicted by `second`.
    assert worst["later_mass"].tolist() == pytest.approx([0.225, 0, 0.325, 0])
    assert worst["text"].tolist() == ["The", "cat", "cat", "\\n"]
    assert "first: 2 of 4 tokens evicted, lost 0.2 rows" in plot.figures[0].caption
    assert "1 - kept_mass_mean = 30.0%" in plot.figures[0].caption


def test_only_the_requested_number_of_evictions_is_listed(tmp_path):
    worst = sketch(timeline_context(tmp_path, listed=1)).table(1)
    assert worst["position"].tolist() == [0, 1]


def test_a_head_that_was_not_run_and_a_run_without_evictions_are_reported(tmp_path):
    with pytest.raises(FigureError, match="layer 9, kv_head 0 was not run; layers of the run: 3"):
        sketch(timeline_context(tmp_path, layer=9))
    rows = [fake_row("topp", budget="")]
    with pytest.raises(FigureError, match="no finished cell with a budget"):
        sketch(fake_context(tmp_path, "kept_timeline", {"run": rows}, [tmp_path / "t.h5"]))
