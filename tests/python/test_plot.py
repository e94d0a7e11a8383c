"""kvreplay.plot draws the table's numbers on an Axes, and changes nothing else."""

import json
import re

import kvanalysis
import kvreplay
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from kvreplay import plot
from kvreplay.sources import Sources
from kvreplay_cli import ROOT
from legible import faults

SAMPLE = ROOT / "traces/samples/smollm2-135m.h5"
METHODS = ["h2o", "snapkv", "topk_oracle", "exact"]
HERE = {"method": "h2o", "budget": 64, "layer": 15, "head": 1}
DRAWN = {
    "error_vs_budget": {},
    "error_vs_bytes": {},
    "error_over_position": {"budget": 64},
    "layer_head_map": {"method": "h2o", "budget": 64},
    "kept_timeline": HERE,
}


@pytest.fixture(scope="module", autouse=True)
def without_a_display():
    before = mpl.get_backend()
    mpl.use("agg")
    yield
    plt.close("all")
    mpl.use(before)


@pytest.fixture(scope="module")
def run():
    return kvreplay.replay(SAMPLE, methods=METHODS, budgets=[64, 128], layers=[0, 15], save="kept")


@pytest.fixture
def ax():
    figure = mpl.figure.Figure(figsize=(6, 4))  # unknown to pyplot
    return figure.subplots()


def entries(axes):
    return [" ".join(text.get_text().split()) for text in axes.get_legend().get_texts()]


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_is_drawn_only_on_the_axes_passed_in(run, ax, name):
    before, open_figures = dict(mpl.rcParams), plt.get_fignums()
    assert getattr(plot, name)(run, ax, **DRAWN[name]) is ax
    assert ax.has_data()
    assert ax.get_xlabel() and ax.get_ylabel()
    assert plt.get_fignums() == open_figures
    assert dict(mpl.rcParams) == before
    ax.figure.canvas.draw()


@pytest.mark.parametrize("name", DRAWN)
def test_without_an_axes_a_new_figure_is_made(run, name):
    mine = plt.figure()
    axes = getattr(plot, name)(run, **DRAWN[name])
    assert axes.figure is plt.gcf()
    assert axes.figure is not mine
    assert len(plt.get_fignums()) == 2
    plt.close("all")


def test_every_figure_has_these_tests():
    assert sorted(plot.__all__) == sorted(DRAWN)


def test_points_are_at_the_summarys_values(run, ax):
    plot.error_vs_budget(run, ax)
    means = run.summary().set_index("method")["rel_err_out_mean"]
    lines = [line.get_xydata() for line in ax.lines]
    for method in ("h2o", "snapkv", "topk_oracle"):
        expected = np.column_stack([[64, 128], means[method]])
        assert any(line.shape == (2, 2) and np.allclose(line, expected) for line in lines), method


def test_a_legend_marks_oracles_one_shot_methods_and_undrawn_methods(run, ax):
    plot.error_vs_budget(run, ax)
    assert entries(ax) == [
        "h2o",
        "topk_oracle (oracle, holds the full cache)",
        "snapkv (one shot)",
        "not drawn: exact",
    ]
    assert plot.error_vs_budget(run, mpl.figure.Figure().subplots(), legend=False).get_legend() is None


@pytest.fixture(scope="module")
def many():
    entry = {"name": "snapkv", "window": [8, 12, 16, 20, 24, 28, 32, 36, 40, 44]}
    methods = ["h2o", "expected_attention", entry]
    return kvreplay.replay(SAMPLE, methods=methods, budgets=[64, 128, 200], layers=[0, 15], kv_heads=[0])


COLUMN, PAGE = (3.3, 2.6), (6.9, 3.6)  # inches


@pytest.mark.parametrize("layout", [None, "constrained", "tight"])
@pytest.mark.parametrize("size", [COLUMN, PAGE])
@pytest.mark.parametrize("name", ["error_vs_budget", "error_vs_bytes", "error_over_position"])
def test_nothing_is_clipped_and_no_legend_covers_data_or_text(many, name, size, layout):
    with mpl.rc_context({"font.size": 8}):
        axes = mpl.figure.Figure(size, layout=layout).subplots()
        getattr(plot, name)(many, axes)
        assert len(axes.get_legend().get_texts()) >= 12
        assert faults(axes.figure) == []
        assert axes.get_window_extent().height > size[1] * axes.figure.dpi / 3


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_of_default_size_and_letters_is_legible(run, many, name):
    axes = getattr(plot, name)(many if DRAWN[name] == {} else run, **DRAWN[name])
    assert faults(axes.figure) == []
    plt.close(axes.figure)


def test_panels_side_by_side_keep_their_legends_to_themselves(many):
    with mpl.rc_context({"font.size": 8}):
        left, right = mpl.figure.Figure(PAGE).subplots(1, 2)
        plot.error_vs_budget(many, left)
        plot.error_vs_bytes(many, right)
        assert faults(left.figure) == []


def test_no_axis_has_a_unit_of_one(run):
    for name, how in DRAWN.items():
        figure = getattr(plot, name)(run, mpl.figure.Figure().subplots(), **how).figure
        labels = [label for axes in figure.axes for label in (axes.get_xlabel(), axes.get_ylabel())]
        assert not any("[1]" in label for label in labels), name


def test_a_table_rows_of_it_and_a_folder_are_drawn_as_the_run_is(run, tmp_path):
    run.save(tmp_path)
    assert json.loads(run.table["params"].iloc[0]) == run.frame["params"].iloc[0]
    pictures = []
    for results in (run, run.table, run.frame, kvanalysis.load(tmp_path), tmp_path, str(tmp_path)):
        axes = plot.error_vs_budget(results, mpl.figure.Figure().subplots())
        pictures.append(([line.get_xydata().tolist() for line in axes.lines], entries(axes)))
    assert all(picture == pictures[0] for picture in pictures[1:])
    part = plot.error_vs_budget(run.table.query("layer == 15"), mpl.figure.Figure().subplots())
    assert [line.get_xydata().tolist() for line in part.lines] != pictures[0][0]


def test_bytes_are_shares_of_the_full_cache(run, ax):
    plot.error_vs_bytes(run, ax, size="peak")
    summary = run.summary().set_index("method")
    shares = summary.loc["h2o", "bytes_ratio"].to_numpy() * 100
    assert any(np.allclose(line.get_xdata(), shares) for line in ax.lines if len(line.get_xdata()) == 2)
    assert entries(ax)[-2:] == ["Pareto front", "not drawn: exact"]
    assert not ax.texts
    prompt = plot.error_vs_bytes(run, mpl.figure.Figure().subplots())
    assert prompt.get_xlabel() == "bytes after the cut [% of the prompt’s full cache]"
    mean = plot.error_vs_bytes(run, mpl.figure.Figure().subplots(), size="mean")
    assert "averaged over steps" in mean.get_xlabel()
    assert mean.lines[0].get_xdata()[0] < ax.lines[0].get_xdata()[0]
    with pytest.raises(
        kvreplay.ConfigError, match="size is 'most': the results have prompt and peak and mean"
    ):
        plot.error_vs_bytes(run, size="most")


def test_errors_over_position_are_rolling_means_where_curves_were_saved_else_quarters(run, ax):
    plot.error_over_position(run, ax, budget=64)
    assert ax.get_xlabel() == "quarter of the scored rows"
    saved = kvreplay.replay(SAMPLE, methods=["h2o"], budgets=[64], layers=[15], save="curves")
    curves = plot.error_over_position(saved, mpl.figure.Figure().subplots())
    assert curves.get_xlabel() == "token position"
    at, error = curves.lines[0].get_data()
    assert (at[0], at[-1]) == (640, 703)
    heads = [saved.row_errors("h2o", 64, head=head)["rel_err"].mean(axis=0) for head in range(3)]
    assert error[0] == pytest.approx(np.mean(heads, axis=0)[:2].mean())  # half of the window of 4 rows


def test_at_a_share_methods_with_their_own_tokens_are_drawn_together(ax):
    methods = ["h2o", "snapkv", "streaming_llm"]
    run = kvreplay.replay(SAMPLE, methods=methods, budgets=["20%"], layers=[15])
    assert run.table["budget_tokens"].nunique() > 1
    plot.error_over_position(run, ax)
    assert ax.get_title() == "20 %"
    assert len(ax.lines) == 3
    one = plot.layer_head_map(run, mpl.figure.Figure().subplots(), method="snapkv", budget="20%")
    assert one.get_title() == "snapkv, 20 %"
    with pytest.raises(kvreplay.ConfigError, match="budget is 21%: the results have 20 %"):
        plot.error_over_position(run, budget="21%")


def test_a_map_shows_the_mean_error_of_each_head(run, ax):
    plot.layer_head_map(run, ax, method="h2o", budget=64)
    table = run.table.query("method == 'h2o' and budget_tokens == 64")
    expected = table.pivot_table(index="layer", columns="kv_head", values="rel_err_out_mean")
    assert np.allclose(ax.images[0].get_array(), expected)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0", "15"]
    assert len(ax.texts) == 6
    assert ax.get_title() == "h2o, B = 64"
    assert len(ax.figure.axes) == 2  # the map and its scale


def test_a_timeline_is_white_where_a_token_is_not_held(run, ax):
    plot.kept_timeline(run, ax, **HERE)
    image = np.asarray(ax.images[0].get_array())
    held = np.zeros(image.shape[:2], bool)
    for step, tokens in enumerate(run.kept(**HERE)):
        held[tokens, step] = True
    assert (held == (image[..., :3] < 1).any(axis=-1)).all()
    with pytest.raises(kvreplay.ConfigError, match="draws a Run"):
        plot.kept_timeline(run.table)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_trace_of_a_run_is_read_from_arrays_as_from_a_file(dtype):
    layer = kvreplay.open(SAMPLE).layer(15)
    arrays = tuple(array.astype(dtype) for array in (layer.q, layer.k, layer.v))
    run = kvreplay.replay(
        layers={15: arrays}, prefill=640, methods=["h2o"], budgets=[64], sinks=np.arange(9), save="kept"
    )
    recorded = run.recorded(run.row())
    for name, array in zip("qkv", arrays, strict=True):
        read = recorded.tensor("p0", 15, name)
        assert read.dtype == np.float64
        assert (read == array).all()
    assert recorded.tensor("p0", 15, "sinks").tolist() == list(range(9))
    assert recorded.attribute("scaling", "p0", 15) == 0.125
    stored = Sources(SAMPLE, None, None, [15], None, "", None, {})
    recorded = stored.recorded({"trace_id": kvreplay.open(SAMPLE).trace_id})
    assert (recorded.tensor("0", 15, "k") == layer.k).all()
    with pytest.raises(KeyError):
        recorded.tensor("0", 15, "sinks")


def test_the_trace_named_by_a_row_is_read(tmp_path):
    layer = kvreplay.open(SAMPLE).layer(0)
    other = kvreplay.Trace.write(tmp_path / "t.h5", {15: layer}, n_prompt=640)
    both = Sources([SAMPLE, other], None, None, None, None, "", None, {})
    recorded = both.recorded({"trace_id": other.trace_id})
    assert (recorded.tensor("p0", 15, "k") == layer.k).all()


def test_columns_of_a_table_have_the_order_of_their_list(run, tmp_path):
    names = [name for name in kvreplay.columns() if name in run.table]
    assert list(run.table.columns) == [*names, "label", "oracle"]
    assert run.save(tmp_path).read_text().startswith("key,trace_id,model,prompt,layer,kv_head,method,")
    assert run.row("h2o", 128, layer=15, head=2)["label"] == "h2o"


def test_one_axes_shows_one_trace(run):
    other = run.table.assign(trace_id="another")
    both = pd.concat([run.table, other])
    with pytest.raises(kvreplay.ConfigError, match=r'2 traces: .*table\["trace_id"\] == "'):
        plot.error_vs_budget(both)


def test_an_impossible_drawing_is_refused_with_the_available_ones(run, tmp_path):
    refused = {
        "method may be exact, h2o, snapkv, topk_oracle": lambda: plot.layer_head_map(run),
        "no one curve called 'h2oo'": lambda: plot.layer_head_map(run, method="h2oo"),
        "budget is 65: the results have 64, 128": lambda: plot.layer_head_map(run, method="h2o", budget=65),
        "no rows": lambda: plot.error_vs_budget(run.table[:0]),
        "a dict holds no results": lambda: plot.error_vs_budget({}),
        "results.csv": lambda: plot.error_vs_budget(tmp_path / "none"),
    }
    for said, draw in refused.items():
        with pytest.raises(kvreplay.KvreplayError, match=re.escape(said)):
            draw()
    assert not plt.get_fignums()
