"""Planted heads with a known loss, from the recording to the predictions."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvanalysis.loss.estimate import by_row  # noqa: E402
from kvreplay_cli import kvreplay  # noqa: E402
from planted_model import GROUP, PREFILL, Chain, ignore, plant_sink, random_model  # noqa: E402

pytestmark = pytest.mark.torch

LAYER, HEAD = 1, 2  # place of the ignored head
MILD, SEVERE = PREFILL - 4, 12  # tokens kept of a prompt of 64
METHODS = [
    {"name": "window"},
    {"name": "streaming_llm", "sinks": 1},
    {"name": "h2o"},
    {"name": "snapkv", "window": 4},
    {"name": "knorm"},
    {"name": "uniform"},
]
CODED = {"name": "exact", "row_format": {"name": "int8", "group": 8}}


@pytest.fixture(scope="module")
def ignored(tmp_path_factory):
    """A run on a model that ignores one kv head, confirmed with all METHODS."""
    model = random_model()
    ignore(model, LAYER, HEAD)
    chain = Chain(model, tmp_path_factory.mktemp("ignored"))
    return chain.replay([*METHODS, CODED], [MILD, SEVERE], save=["kept", "outputs"]).confirm("--draws", 2)


@pytest.fixture(scope="module")
def predictions(ignored):
    return ignored.predicted()


def test_a_head_that_the_model_ignores_costs_nothing_at_any_error(ignored):
    cells = ignored.cells(layer=LAYER, kv_head=HEAD)
    assert (cells["kl_head_mean"] == 0).all()
    assert cells.groupby("method")["rel_err_out_mean"].max().drop("exact").min() > 0.5
    worst = cells.loc[cells["rel_err_out_mean"].idxmax()]
    assert ignored.true_kl(worst) == 0
    others = ignored.cells().drop(cells.index)
    assert (others["kl_head_mean"] > 0).all()


@pytest.fixture(scope="module", params=[1, 2], ids=["a layer before it reads", "the last layer"])
def sink(request, tmp_path_factory):
    """(chain, layer): window and streaming_llm at one budget; kv head 1 of the layer attends to token 0."""
    model = random_model()
    plant_sink(model, request.param, head=1)
    chain = Chain(model, tmp_path_factory.mktemp("sink"))
    return chain.replay(METHODS[:2], [PREFILL // 2], save=["kept", "outputs"]), request.param


def head_of(sink, method):
    """The planted head's row of results.csv."""
    chain, layer = sink
    return chain.cells(method=method, layer=layer, kv_head=1).iloc[0]


def test_a_method_that_drops_the_sink_of_a_head_loses_most_there_and_one_that_keeps_it_nothing(sink):
    chain, layer = sink
    dropped, held = head_of(sink, "window"), head_of(sink, "streaming_llm")
    assert dropped["kept_mass_mean"] < 0.05
    assert held["kept_mass_mean"] > 0.95
    assert dropped["peak_kept_tokens"] == held["peak_kept_tokens"]
    assert dropped["kl_head_mean"] > 100 * held["kl_head_mean"]
    of_window, of_streaming = (chain.cells(method=m, layer=layer) for m in ("window", "streaming_llm"))
    assert of_window.loc[of_window["kl_head_mean"].idxmax(), "kv_head"] == 1
    assert of_streaming.loc[of_streaming["kl_head_mean"].idxmin(), "kv_head"] == 1


def alone(chain, cell, part=1.0):
    """The true loss of part of each query head's errors alone, summed over the group: kl_head_mean predicts
    this quantity."""
    return sum(chain.true_kl(cell, [head], part) for head in range(GROUP))


def test_the_predicted_loss_of_a_planted_head_matches_the_model(sink):
    """The errors have their full size, so the second-order estimate is off by some factor."""
    chain, _ = sink
    for method in ("window", "streaming_llm"):
        cell = head_of(sink, method)
        assert 1 / 1.5 < alone(chain, cell) / cell["kl_head_mean"] < 1.5


def test_prediction_and_loss_nearly_agree_for_a_small_part_of_the_errors(sink):
    """A twentieth of an error costs one four-hundredth. The rest is the noise of 32 samples, 2 to 4 %, and,
    before the last layer, pairs of rows, which a sum over single rows leaves out."""
    chain, layer = sink
    cell = head_of(sink, "window")
    bound = 1.08 if layer == 2 else 1.15
    assert 1 / bound < 400 * alone(chain, cell, 0.05) / cell["kl_head_mean"] < bound
    together = by_row(chain.products(cell).sum(axis=0))
    assert 1 / bound < 400 * chain.true_kl(cell, part=0.05) / together < bound


def test_predictions_are_joined_with_confirmed_losses_of_methods_without_a_seed(sink):
    chain, _ = sink
    found = chain.confirm().predicted()
    assert found["seed"].isna().all()
    assert (found["kl_mean"] / found["kl"]).between(0.5, 2).all()


def test_predictions_of_whole_instances_are_within_a_factor_of_two(predictions):
    evicting = predictions.dropna(subset="budget_tokens")
    assert len(evicting) == 2 * len(METHODS)
    ratio = evicting["kl_mean"] / evicting["kl"]
    assert ratio.between(0.5, 2).all()
    # The second order is far off there: only the model's response to masks makes prediction and loss agree.
    severe = evicting[evicting["budget_tokens"] == SEVERE]
    assert (severe["kl_row"] > 2 * severe["kl_mean"]).all()


def test_the_second_order_predicts_the_loss_of_rounded_rows(predictions):
    (coded,) = predictions[predictions["method"] == "exact"].itertuples()
    assert 0 < coded.kl_mean < 1e-3
    assert coded.kl_mean / coded.kl_row == pytest.approx(1, abs=0.25)


def test_compare_saves_what_predictions_need_of_a_trace_with_a_gradient_and_ranks_by_nats(sink, tmp_path):
    """The method that drops the sink costs most, and the answer is in nats by default."""
    chain, _ = sink
    words = ("--at", "60%", "--of", "prompt", "--method", "window,streaming_llm", "--prefill", PREFILL)
    done = kvreplay("compare", chain.trace, *words, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/projections.h5").is_file()
    first = done.stdout.splitlines()[0]
    assert "streaming_llm has the lowest predicted loss" in first
    assert "window is not significantly worse" in first
