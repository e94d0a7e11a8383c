"""Figures of SubGen: clusters, radii, t-SNE, its theorem; rows of methods."""

import json
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from fake_figure import config_context, sketch
from kvanalysis.errors import FigureError
from kvanalysis.figures.config import Step
from kvanalysis.plots.subgen import tsne_panels
from kvanalysis.stats.clustering import curve, lower_heads
from test_kvanalysis_fake import failed_row, fake_row, write_results

CONFIGS = Path(__file__).parents[2] / "configs/figures"
TOKENS = 40


def cluster_rows(layer=0, head=0, keys=1.0, values=2.0, exponent=0.9):
    """Rows of `kvreplay clusterability` for one head: radii `keys`/k and `values`/k, with an rms of 2."""
    place = {"trace_id": "t" * 64, "model": "m", "prompt": "0", "layer": layer, "kv_head": head}
    rows = []

    def add(measure, view, value, param="", x=""):
        rows.append(place | {"measure": measure, "view": view, "param": param, "x": x, "value": value})

    for token in range(TOKENS):
        add("accumulated", "", 1.0, x=token)
    for view, radius in (("keys", keys), ("values", values)):
        add("rms", view, 2.0)
        for k in range(1, 17):
            add("radii", view, radius / k, x=k)
            add("mean_distance", view, radius / 2 / k, x=k)
            add("centers", view, k, x=k)
        for factor in (0.3, 0.9):
            add("growth_exponent", view, exponent, param=factor)
            add("growth_r2", view, 1.0, param=factor)
            for n in (10, 20, 40):
                add("m_count", view, n**exponent, param=factor, x=n)
    return rows


def write_cluster(out, rows):
    out.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(out / "cluster.csv", index=False)


def test_radii_are_divided_by_the_rms_of_their_own_head_and_view(tmp_path):
    write_cluster(tmp_path, cluster_rows())
    found = curve(config_context("subgen_radius", tmp_path).cluster(), "radii", over="rms")
    assert found[(found["view"] == "values") & (found["x"] == 4)]["value"].tolist() == [2.0 / 4 / 2.0]
    assert lower_heads(found[found["x"] == 16], "keys", "values") == (1, 1)
    assert lower_heads(found[found["x"] == 16], "keys_unrotated", "values") == (0, 0)


@pytest.mark.parametrize(
    ("radii", "outcome"), [((1, 1), "holds"), ((1, 3), "mixed"), ((3, 3), "does not hold")]
)
def test_keys_are_more_clusterable_only_if_they_are_in_every_head(tmp_path, radii, outcome):
    write_cluster(tmp_path, [r for h, keys in enumerate(radii) for r in cluster_rows(head=h, keys=keys)])
    plot = sketch(config_context("subgen_radius", tmp_path))
    assert plot.outcomes() == [outcome], "only 16 centres: there are no 256"


def test_growth_is_called_linear_only_by_its_interval(tmp_path):
    powers = (0.98, 0.99, 1.0, 1.01, 1.02)  # mean 1, plus or minus 2.776 sqrt(0.00025 / 5) = 0.02
    write_cluster(tmp_path, [r for i, e in enumerate(powers) for r in cluster_rows(layer=i, exponent=e)])
    plot = sketch(config_context("subgen_clusters", tmp_path))
    assert plot.outcomes() == ["does not hold", "does not hold"]
    table = plot.table(more="exponents")
    assert table[["smallest", "mean", "largest"]].values.tolist() == [[0.98, 1.0, 1.02]] * 4
    assert table["low"].tolist() == pytest.approx([1 - 2.776445 * np.sqrt(0.00025 / 5)] * 4)
    counts = plot.table()
    assert counts.query("view == 'keys' and delta_rel == 0.3 and tokens == 10")["mean"].iloc[
        0
    ] == pytest.approx(np.mean([10**e for e in powers]))


def tiny_trace(path):
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file.attrs["kvreplay_schema"] = 1
        for layer in (0, 3, 8):
            group = file.create_group(f"prompts/0/layers/{layer:03d}")
            group.attrs["scaling"] = 0.5
            for name in "qkv":
                group[name] = random.normal(size=(2, TOKENS + 10, 4)).astype(np.float32)
    return path


def test_the_tsne_panels_take_what_the_trace_holds(tmp_path):
    at = config_context("subgen_fig1", tmp_path, [tiny_trace(tmp_path / "t.h5")])
    settled = tsne_panels.derived_overrides(at, Step("cluster", "cluster", ""))
    assert settled["select.layers"] == [0, 3, 8]
    assert settled["replay.tokens"] == TOKENS + 10
    assert settled["select.kv_heads"][0] in (0, 1)


def test_the_tsne_csv_marks_the_centres_and_the_caption_has_the_numbers(tmp_path):
    write_cluster(tmp_path, cluster_rows(layer=3, head=1, keys=8.0))
    at = config_context("subgen_fig1", tmp_path, [tiny_trace(tmp_path / "t.h5")], iterations=5, centres=4)
    plot = sketch(at, painted=True)
    table = plot.table()
    assert len(table) == 2 * TOKENS
    marked = table[(table["view"] == "keys") & table["centre"].notna()]
    assert marked[["token", "centre"]].values.tolist() == [[1, 1], [2, 2], [3, 3], [4, 4]]
    # 8/4 divided by an rms of 2, 8/16 divided by 2, and half of the first.
    assert "layer 3 keys: r_4/rms 1.00, r_16/rms 0.25, mean distance/rms 0.50" in plot.figures[0].caption
    assert not plot.verdicts, "a picture alone is not evidence"


def promised(epsilon, rows, worst, head=0, holds="", asked=9.0):
    params = {"epsilon": epsilon, "delta_rel": 0.5}
    extras = json.dumps({"s": 64 / epsilon**2, "t": 64, "clusters": 7, "bound_capped": 1})
    measured = {"eps_spectral_mean": worst / 2, "eps_spectral_max": worst, "bound_holds": holds}
    return fake_row("subgen_stream", params, "", kv_head=head, peak_kept_tokens=rows, extras=extras,
                    bound_log10_tokens=asked, **measured)  # fmt: skip


def theorem(out, rows):
    write_results(out / "run", rows, columns=list(rows[0]))
    return sketch(config_context("subgen_theorem1", out))


def test_the_theorem_holds_if_every_head_is_within_the_bound_in_all_but_one_of_a_hundred_queries(tmp_path):
    rows = [promised(e, 500, 0.3, head, holds=0.995) for e in (0.2, 0.4) for head in (0, 1)]
    plot = theorem(tmp_path, rows)
    assert plot.outcomes() == ["holds", "holds", "does not hold"]
    table = plot.table()
    assert table[
        ["epsilon", "eps_spectral_mean", "largest", "peak_kept_tokens", "n_heads"]
    ].values.tolist() == [
        [0.2, 0.15, 0.3, 500, 2],
        [0.4, 0.15, 0.3, 500, 2],
    ]


def test_without_shares_the_bound_is_not_decided_by_its_worst_query(tmp_path):
    within = [promised(0.4, 5000, 0.3), promised(0.4, 500, 0.39, head=1)]
    assert [v.outcome for v in theorem(tmp_path / "a", within).verdicts] == [
        "not decided",
        "mixed",
        "does not hold",
    ]
    beyond = [promised(0.4, 5000, 0.5), promised(0.4, 5000, 0.3, head=1)]
    verdicts = theorem(tmp_path / "b", beyond).verdicts
    assert [v.outcome for v in verdicts[:2]] == ["not decided", "does not hold"]
    assert "outside in 1 of 2" in verdicts[0].numbers


def test_a_run_without_the_theorems_method_is_refused(tmp_path):
    with pytest.raises(FigureError, match="needs subgen_stream"):
        theorem(tmp_path, [fake_row() | {"extras": ""}])


def dots(out, rows, **options):
    write_results(out / "run", rows, columns=list(rows[0]))
    return sketch(config_context("subgen_table1", out, **options))


def test_methods_are_listed_with_means_and_a_missing_measure_is_named(tmp_path):
    rows = [
        fake_row(m, {}, 384, layer=i, rel_err=e + i / 10)
        for m, e in (("subgen", 0.3), ("h2o", 0.1))
        for i in range(5)
    ]
    plot = dots(tmp_path, rows, claims=[["subgen", "h2o"], ["h2o", "streaming_llm"]])
    table = plot.table().set_index("label")
    assert table["mean"].to_dict() == {"h2o": pytest.approx(0.3), "subgen": pytest.approx(0.5)}
    assert table["share_kept"].tolist() == [0.5, 0.5]
    assert "Not in these results: needle_mass." in plot.figures[0].caption
    assert plot.outcomes() == ["does not hold", "not decided"]


def test_equal_methods_are_noted_and_failed_cells_are_counted(tmp_path):
    rows = [fake_row(m, {}, 384, rel_err=0.2) for m in ("snapkv", "pyramidkv")]
    rows.append(failed_row(method="h2o", budget=384))
    caption = dots(tmp_path, rows).figures[0].caption
    assert "Identical numbers: pyramidkv, snapkv." in caption
    assert "1 of 3 cells have no result." in caption


def test_a_rule_that_gave_every_layer_the_same_budget_is_named(tmp_path):
    level = {"extras": '{"layer_budget":384,"same_for_all_layers":1}'}
    rows = [
        fake_row(m, {}, 384, rel_err=0.2) | said
        for m, said in (("pyramidkv", level), ("snapkv", {"extras": ""}))
    ]
    caption = dots(tmp_path, rows).figures[0].caption
    assert "gave every layer the same budget here: pyramidkv." in caption
    assert "smallest budget" not in caption
