"""Instances with coded rows run several times, each time with different rounding; masks run once."""

import csv

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np  # noqa: E402
from confirm_fixture import PREFILL, confirm, copy_of, replay, rows, whole  # noqa: E402
from kvconfirm import engine  # noqa: E402
from kvconfirm.draws import Disturbance, codes_rows, mean_over_draws, spread  # noqa: E402
from kvconfirm.prompt_job import PromptJob  # noqa: E402
from kvconfirm.results import Results  # noqa: E402
from kvreplay_cli import BINARY  # noqa: E402

pytestmark = pytest.mark.torch
INT4 = {"name": "int4", "group": 4}
METHODS = [{"name": "tova"}, {"name": "snapkv", "window": 4}, {"name": "h2o", "row_format": INT4}]
ADDED = ("n_draws", "loss_increase_sd", "kl_mean_sd")


@pytest.fixture(scope="module")
def drawn(tiny, tmp_path_factory):
    """(results folder, options): two mask instances and one with coded rows, not yet confirmed."""
    out = replay(tiny[2], tmp_path_factory.mktemp("draws") / "out", METHODS, select={"prompts": ["b"]})
    return out, (tiny[1], "--trace", tiny[2])


@pytest.fixture
def fresh(drawn, tmp_path):
    """A copy of `drawn` that a test may change."""
    return copy_of(drawn[0], tmp_path / "out"), drawn[1]


# --- Disturbed numbers ----------------------------------------------------------------------------


def test_a_disturbed_number_moves_to_a_neighbour_or_stays():
    x = torch.randn(2, 50, 8, generator=torch.Generator().manual_seed(0))
    x[0, 0, 0] = 0
    found = Disturbance("0", 1, "p")(3, "k", x)
    steps = (found.numpy().view(np.int32) - x.numpy().view(np.int32)).reshape(-1)
    assert np.abs(steps).max() <= 2 and set(steps) >= {-1, 0, 1}
    assert found[0, 0, 0] == 0
    half = x.bfloat16()
    assert (Disturbance("0", 1, "p")(3, "k", half) != half).float().mean() > 0.3


def test_a_disturbance_depends_only_on_draw_prompt_layer_and_name():
    x = torch.ones(2, 6, 4)
    first = Disturbance("0", 1, "p")(3, "k", x)
    others = [
        Disturbance("1", 1, "p")(3, "k", x),
        Disturbance("0", 2, "p")(3, "k", x),
        Disturbance("0", 1, "q")(3, "k", x),
        Disturbance("0", 1, "p")(4, "k", x),
        Disturbance("0", 1, "p")(3, "v", x),
    ]
    assert not any(torch.equal(first, other) for other in others)
    again = Disturbance("0", 1, "p")
    again(0, "q", x)
    assert torch.equal(again(3, "k", x), first)


def test_a_tokens_disturbance_does_not_depend_on_later_tokens():
    x = torch.ones(2, 6, 4)
    disturb = Disturbance("0", 1, "p")
    assert torch.equal(disturb(0, "k", x[:, :2]), disturb(0, "k", x)[:, :2])


# --- Means and standard deviations ----------------------------------------------------------------


def test_the_numbers_of_several_draws_are_their_mean_and_the_spread_of_one():
    draws = [{"loss_increase": x, "kl_mean": 2 * x, "n_rows": 31} for x in (0.1, 0.2, 0.6)]
    mean = mean_over_draws(draws)
    assert (mean["loss_increase"], mean["kl_mean"], mean["n_rows"]) == pytest.approx((0.3, 0.6, 31))
    # The squares of -0.2, -0.1 and 0.3 sum to 0.14; divide by n - 1 = 2.
    assert spread(draws) == {
        "n_draws": 3,
        "loss_increase_sd": pytest.approx(0.07**0.5),
        "kl_mean_sd": pytest.approx(2 * 0.07**0.5),
    }


def test_a_single_draw_stays_as_it_is_and_has_no_spread():
    draw = {"loss_increase": 0.1, "kl_mean": 0.2, "answer_exact": 1}
    assert mean_over_draws([draw]) == draw and isinstance(mean_over_draws([draw])["answer_exact"], int)
    assert spread([draw]) == {"n_draws": 1, "loss_increase_sd": None, "kl_mean_sd": None}


# --- Instances ------------------------------------------------------------------------------------


def test_only_instances_with_coded_rows_are_drawn(tiny):
    found = {(i.method, i.given): codes_rows(i) for i in Results(tiny[0]).instances}
    coded = {method for (method, given), codes in found.items() if codes and "row_format" not in given}
    assert coded == {"qjl"}
    assert all(codes for (_, given), codes in found.items() if "row_format" in given)


def test_masks_run_once_and_coded_rows_once_per_draw(fresh, capsys, monkeypatch):
    out, words = fresh
    ran = []
    real = PromptJob._draw

    def counted(self, number, draw):
        one = real(self, number, draw)
        ran.append((self.instances[number].method, draw, one.losses.ranges()))
        return one

    monkeypatch.setattr(PromptJob, "_draw", counted)
    assert confirm(out, *words, "--draws", 3) == 0
    assert [one[:2] for one in ran] == [("tova", 0), ("snapkv", 0), ("h2o", 0), ("h2o", 1), ("h2o", 2)]
    assert "3 to run, 3 layers, selection recorded, 5 runs: 3 draws if rows" in capsys.readouterr().err
    masks = [row for row in rows(out) if row["method"] != "h2o"]
    assert {tuple(row[name] for name in ADDED) for row in masks} == {("1", "", "")}
    for place, row in enumerate(rows(out, method="h2o")):
        assert row["n_draws"] == "3"
        for name in ("loss_increase", "kl_mean"):
            own = [ranges[place][2][name] for method, _, ranges in ran if method == "h2o"]
            assert len(set(own)) == 3
            assert float(row[name]) == pytest.approx(np.mean(own), rel=1e-6)
            assert float(row[f"{name}_sd"]) == pytest.approx(np.std(own, ddof=1), rel=1e-6)
    full = {row["loss_full"] for row in whole(out)}
    assert len(full) == 1


def without_times(found):
    return [{name: value for name, value in row.items() if name != "confirm_s"} for row in found]


def test_draws_repeat(fresh):
    out, words = fresh
    found = []
    for _ in range(2):
        assert confirm(out, *words, "--draws", 2, "--methods", "h2o", "--force") == 0
        found.append(without_times(rows(out)) + rows(out, "confirm_layers.csv"))
    assert found[0] == found[1]


def test_the_first_draw_is_the_run_as_it_is(fresh, monkeypatch):
    out, words = fresh
    assert confirm(out, *words, "--draws", 1, "--methods", "h2o") == 0
    [single] = whole(out)

    def never(self, layer, name, x):
        return x

    monkeypatch.setattr(Disturbance, "__call__", never)
    assert confirm(out, *words, "--draws", 2, "--methods", "h2o") == 0
    [double] = whole(out)
    assert double["loss"] == single["loss"] and double["loss_increase_sd"] == "0"


def test_own_selections_use_the_models_disturbed_prompt(fresh, monkeypatch):
    out, words = fresh
    real, compared = engine.OwnRows._write_layer, []

    def told(self, path, layer, held):
        if self.disturb:
            keys = self.prompt_rows.layers[layer][1]
            assert not np.array_equal(held[1][:, :PREFILL], keys.numpy())
            compared.append((layer, held))
        return real(self, path, layer, held)

    def seen(self, call):
        found = call_of(self, call)
        if self.disturb:
            for x, own in zip(compared[-1][1][1:], (call.k, call.v), strict=True):
                assert np.array_equal(x, own.numpy())
        return found

    call_of = engine.OwnRows.__call__
    monkeypatch.setattr(engine.OwnRows, "_write_layer", told)
    monkeypatch.setattr(engine.OwnRows, "__call__", seen)
    own = ("--select", "own", "--kvreplay", BINARY, "--methods", "h2o", "--draws", 2)
    assert confirm(out, *words, *own) == 0
    assert [layer for layer, _ in compared] == [0, 1, 2]
    assert float(whole(out, selection="own")[0]["kl_mean_sd"]) > 0


# --- Resumed runs ---------------------------------------------------------------------------------


def test_more_draws_only_run_instances_with_fewer(fresh, capsys):
    out, words = fresh
    assert confirm(out, *words, "--draws", 1) == 0
    masks = rows(out, method="tova")
    for draws, todo in ((1, 0), (3, 1), (2, 0)):
        capsys.readouterr()
        assert confirm(out, *words, "--draws", draws) == 0
        assert f"3 instances on 1 prompts, {todo} to run" in capsys.readouterr().err
    assert whole(out, method="h2o")[0]["n_draws"] == "3"
    assert rows(out, method="tova") == masks


def test_a_table_of_an_older_version_is_one_draw_of_everything(fresh, capsys):
    out, words = fresh
    assert confirm(out, *words, "--draws", 1) == 0
    before = rows(out)
    with (out / "confirm.csv").open("w", newline="") as file:
        writer = csv.DictWriter(
            file, [name for name in before[0] if name not in ADDED], extrasaction="ignore"
        )
        writer.writeheader()
        writer.writerows(before)
    capsys.readouterr()
    assert confirm(out, *words, "--draws", 1) == 0
    assert "0 to run" in capsys.readouterr().err
    assert confirm(out, *words, "--draws", 2) == 0
    assert "1 to run" in capsys.readouterr().err
    assert {row["method"]: row["n_draws"] for row in whole(out)} == {"tova": "", "snapkv": "", "h2o": "2"}


@pytest.mark.parametrize("text", ["0", "-1", "many"])
def test_the_number_of_draws_must_be_positive(fresh, capsys, text):
    with pytest.raises(SystemExit):
        confirm(fresh[0], *fresh[1], f"--draws={text}")
    assert f"'{text}' is not a number of draws: give 1 or more" in capsys.readouterr().err
