"""The measures of predictions that llama.cpp prints: by hand, by numpy alone, and in the table of a run."""

import json
import math
import re

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np  # noqa: E402
from confirm_fixture import confirm, rows, whole  # noqa: E402
from front_door import command  # noqa: E402
from kvconfirm import losses  # noqa: E402
from kvconfirm.draws import mean_over_draws  # noqa: E402
from kvconfirm.losses import RowLosses, compare  # noqa: E402
from kvconfirm.measures import measures  # noqa: E402

pytestmark = pytest.mark.torch
NAMES = [
    *("kld_mean", "kld_mean_se", "kld_median", "kld_p999", "kld_p99", "kld_p95", "kld_p90", "kld_max"),
    *("same_top", "same_top_se", "dp_mean", "dp_rms", "ln_ppl_ratio"),
]
SAME = {
    "kl_mean": "kld_mean",
    "kl_p95": "kld_p95",
    "top1_agreement": "same_top",
    "loss_increase": "ln_ppl_ratio",
}


def of_whole(full, compressed, targets):
    """The measures over all rows."""
    return compare(full, compressed, targets).ranges()[0][2]


def test_two_rows_by_hand():
    third = math.log(3)
    full, compressed = torch.tensor([[0, 0], [third, 0]]), torch.tensor([[third, 0], [third, 0]])
    found = of_whole(full, compressed, torch.tensor([0, 0]))
    kl = 0.5 * math.log(4 / 3)  # 0.1438: probabilities 1/2, 1/2 become 3/4, 1/4
    assert kl == pytest.approx(0.1438, abs=5e-5)
    expected = {
        "kld_mean": kl / 2,
        "kld_mean_se": kl / 2,
        "kld_median": kl / 2,
        "kld_p90": 0.9 * kl,
        "kld_p95": 0.95 * kl,
        "kld_p99": 0.99 * kl,
        "kld_p999": 0.999 * kl,
        "kld_max": kl,
        "same_top": 1,  # in row 0 both logits are equal: the lowest id counts
        "same_top_se": 0,
        "dp_mean": 0.125,
        "dp_rms": 0.25 / math.sqrt(2),
        "ln_ppl_ratio": 0.5 * math.log(2 / 3),
    }
    assert set(expected) == set(NAMES)
    assert {name: found[name] for name in NAMES} == pytest.approx(expected, abs=1e-7)


def by_numpy(full, compressed, targets):
    """The formulas of docs/closed_loop.md, with one row after the other and no library of ours."""
    kls, same, change, ratio = [], [], [], []
    for a, b, y in zip(full.astype(np.float64), compressed.astype(np.float64), targets, strict=True):
        p, q = (np.exp(x - x.max()) / np.exp(x - x.max()).sum() for x in (a, b))
        kls.append(sum(p * (np.log(p) - np.log(q))))
        same.append(
            next(i for i, x in enumerate(a) if x == max(a)) == next(i for i, x in enumerate(b) if x == max(b))
        )
        change.append(q[y] - p[y])
        ratio.append(np.log(p[y] / q[y]))
    n, mean, share = len(kls), sum(kls) / len(kls), sum(same) / len(same)
    found = {"kld_mean": mean, "kld_mean_se": math.sqrt((sum(x * x for x in kls) / n - mean**2) / (n - 1))}
    ordered = sorted(kls)
    for name, q in (("median", 0.5), ("p999", 0.999), ("p99", 0.99), ("p95", 0.95), ("p90", 0.9), ("max", 1)):
        below = int(q * (n - 1))
        above = min(below + 1, n - 1)
        found[f"kld_{name}"] = ordered[below] + (q * (n - 1) - below) * (ordered[above] - ordered[below])
    found |= {"same_top": share, "same_top_se": math.sqrt(share * (1 - share) / (n - 1))}
    found |= {"dp_mean": sum(change) / n, "dp_rms": math.sqrt(sum(x * x for x in change) / n)}
    return found | {"ln_ppl_ratio": sum(ratio) / n}


@pytest.mark.parametrize("block", [1, 7 * 50, 1 << 22])
def test_random_logits_give_what_the_formulas_give(monkeypatch, block):
    monkeypatch.setattr(losses, "BLOCK", block)
    random = np.random.default_rng(5)
    # Rounded, so that several tokens share the largest logit in some rows.
    full = np.round(random.normal(size=(60, 50)) * 2).astype(np.float32)
    compressed = np.round(full + random.normal(size=full.shape) * 0.6).astype(np.float32)
    assert ((full == full.max(1, keepdims=True)).sum(1) > 1).any()
    targets = random.integers(0, 50, 60)
    found = of_whole(torch.from_numpy(full), torch.from_numpy(compressed), torch.from_numpy(targets))
    expected = by_numpy(full, compressed, targets)
    assert 0.2 < expected["same_top"] < 0.98
    assert {name: found[name] for name in NAMES} == pytest.approx(expected, rel=1e-12)


def test_a_small_divergence_keeps_its_digits():
    """Single precision would leave none: its errors are 4e-7 nats here."""
    random = np.random.default_rng(1)
    full = (3 * random.normal(size=(8, 4096))).astype(np.float32)
    compressed = (full + 1e-3 * random.normal(size=full.shape)).astype(np.float32)
    targets = np.zeros(8, np.int64)
    found = of_whole(*map(torch.from_numpy, (full, compressed, targets)))
    assert found["kld_mean"] == pytest.approx(by_numpy(full, compressed, targets)["kld_mean"], rel=1e-6)
    assert 1e-7 < found["kld_mean"] < 1e-6


def test_a_token_that_the_full_model_excludes_adds_nothing():
    full, compressed = torch.tensor([[0.0, 0, -math.inf]] * 2), torch.tensor([[0, 0, -math.inf], [0, 0, 0.0]])
    found = compare(full, compressed, torch.tensor([0, 0])).kl
    assert found == pytest.approx([0, math.log(3 / 2)])


def test_the_logits_are_only_read():
    full, compressed = torch.randn(5, 8).double(), torch.randn(5, 8).double()
    before = full.clone(), compressed.clone()
    compare(full, compressed, torch.zeros(5, dtype=torch.int64))
    assert torch.equal(full, before[0]) and torch.equal(compressed, before[1])


def test_a_single_row_has_no_standard_error():
    one = np.ones(1)
    found = measures(0.5 * one, one, 2 * one, one)
    assert found["kld_mean_se"] is None and found["same_top_se"] is None
    assert found["kld_mean"] == found["kld_max"] == found["kld_median"] == 0.5
    assert mean_over_draws([found, found]) == found


def test_the_measures_of_draws_are_means_over_them():
    draws = [measures(np.array(kl), np.ones(2), np.ones(2), np.ones(2)) for kl in ([0.0, 1], [0, 3])]
    mean = mean_over_draws(draws)
    assert (mean["kld_max"], mean["kld_mean"], mean["kld_mean_se"]) == pytest.approx((2, 1, 1))


def test_a_run_of_the_model_writes_the_measures_of_every_range(tiny, own_copy):
    _, model, trace = tiny
    assert confirm(own_copy, model, "--trace", trace, "--methods", "exact,h2o,tova", "--draws", 1) == 0
    for row in whole(own_copy):
        saved = np.load(own_copy / "confirm_rows" / f"{row['key']}.npz")
        of_row = RowLosses(
            *(saved[name].astype(np.float64) for name in ("loss_full", "loss", "kl", "same_top"))
        )
        expected = {(str(first), str(last)): means for first, last, means in of_row.ranges()}
        ranges = rows(own_copy, key=row["key"])
        assert len(ranges) == len(expected) == 3
        for each in ranges:
            means = expected[each["distance_from"], each["distance_to"]]
            for name in NAMES:
                assert float(each[name]) == pytest.approx(means[name], rel=1e-4, abs=1e-6), name
            assert {each[old] == each[new] for old, new in SAME.items()} == {True}
    [exact] = whole(own_copy, method="exact")
    assert {exact[name] for name in NAMES if name != "same_top"} == {"0"} and exact["same_top"] == "1"
    [tova] = whole(own_copy, method="tova")
    values = [float(tova[f"kld_{name}"]) for name in ("median", "p90", "p95", "p99", "p999", "max")]
    assert 0 < values[0] < values[1] < values[2] < values[3] < values[4] < values[5]
    assert 0 < float(tova["kld_mean_se"]) < float(tova["kld_mean"]) and float(tova["same_top"]) < 1


def test_the_table_of_formats_shows_a_run_of_the_model(tiny, own_copy, capsys):
    _, model, trace = tiny
    assert confirm(own_copy, model, "--trace", trace, "--methods", "h2o", "--draws", 2) == 0
    capsys.readouterr()
    assert command.main(["formats", own_copy]) == 0
    table = [re.split(r"  +", line) for line in capsys.readouterr().out.splitlines()]
    at = {name: place for place, name in enumerate(table[0])}
    int4 = {"name": "int4", "group": 4}
    [row] = [row for row in whole(own_copy) if json.loads(row["given"]).get("row_format") == int4]
    [line] = [line for line in table if line[at["format"]] == "int4 group=4"]
    mean, _, error = line[at["KLD mean"]].split()
    assert float(mean) == pytest.approx(float(row["kld_mean"]), rel=5e-3)
    over_both = math.hypot(float(row["kld_mean_se"]), float(row["kl_mean_sd"]) / math.sqrt(2))
    assert float(error) == pytest.approx(over_both, rel=5e-3)
    assert float(line[at["99 %"]]) == pytest.approx(float(row["kld_p99"]), rel=5e-3)
    assert len(table) == 1 + len(whole(own_copy))
