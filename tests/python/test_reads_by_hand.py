"""Small examples of methods that store everything and read little, by hand. The scale of logits is 1."""

import h5py
import kvreplay as kv
import numpy as np
import pytest
from program_beside_python import made_layer

pytestmark = pytest.mark.filterwarnings("ignore")


def replayed(query, keys, method, budget=None, values=None, prefill=None):
    """One kv head, one query head. query: of the last token; the tokens before it are the prompt."""
    k = np.array(keys, dtype=np.float32)[None]
    q = np.zeros_like(k)
    q[0, -1] = query
    v = np.ones((1, k.shape[1], 1)) if values is None else np.array(values, dtype=float).reshape(1, -1, 1)
    return kv.replay(
        q,
        k,
        v.astype(np.float32),
        prefill=prefill or k.shape[1] - 1,
        methods=method,
        budgets=budget,
        seeds=1,
        scaling=1.0,
        save=["kept", "outputs"],
        precision="double",
    )


def read(run):
    return run.kept(kv_head=0)[-1].tolist()


def with_logits(logits):
    """Keys [n, 2] whose products with (1, 0) are these."""
    return [[x, 0] for x in logits]


BLOCKS = with_logits([3, -1, 1, 1.5, 0])  # two blocks of two, and the newest token


@pytest.mark.parametrize(("name", "tokens"), [("block_mean", [2, 3, 4]), ("block_max", [0, 1, 4])])
def test_blocks_by_their_mean_and_by_their_largest_product(name, tokens):
    """Means 1 and 1.25, largest products 3 and 1.5."""
    method = {"name": name, "block": 2, "sinks": 0, "recent": 1}
    assert read(replayed((1, 0), BLOCKS, method, 4)) == tokens


def test_a_block_that_is_complete_only_now_is_no_candidate():
    keys = with_logits([3, -1, 1, 9])
    method = {"name": "block_mean", "block": 2, "sinks": 0, "recent": 1}
    assert read(replayed((1, 0), keys, method, 4)) == [0, 1, 2, 3]
    assert read(replayed((1, 0), [*keys, [0, 0], [0, 0]], method, 4)) == [2, 3, 4, 5]


SAMPLE = with_logits([*np.log([0.5, 0.1, 0.3, 0.1]), 0])


@pytest.mark.parametrize(("epsilon", "tokens", "tau"), [(0.2, [0, 2, 4], 2.6), (0.1, [0, 1, 2, 3, 4], 2)])
def test_a_sample_is_as_large_as_the_error_of_the_denominator_needs(tmp_path, epsilon, tokens, tau):
    """s = 0.1414 and D = 2.6: 1.94 tokens, below the base sample of two; then 7.8, more than there are."""
    file = tmp_path / "u.h5"
    with h5py.File(file, "w") as out:
        out["p0/000/0/u"] = np.array([0.2, 0.9, 0.1, 0.4, 0.5])
    method = {"name": "vattention", "sinks": 0, "local": 1, "top": 0, "base": 0.5, "delta": 0.1}
    run = replayed((1, 0), SAMPLE, method | {"epsilon": epsilon, "uniforms": str(file)})
    assert read(run) == tokens
    row = run.row(kv_head=0)
    assert row["partition_err_mean"] == pytest.approx(tau / 2 - 1, abs=1e-6)
    assert (row["bound_epsilon"], row["bound_probability"]) == (epsilon, 0.9)
    assert row["bound_holds"] == (1 if tau == 2 else 0)


def test_a_hash_weighs_tokens_by_their_values(tmp_path):
    """Weights 0.896 and 0.104. With value norms 1 and 10 the second token is read, with 1 and 8 the first."""
    with h5py.File(tmp_path / "u.h5", "w") as out:
        out["p0/000/0/U"] = np.array([np.exp(-0.5), 0.0])  # Box-Muller: the plane (1, 0)
    method = {"name": "socket", "K": 1, "L": 1, "tau": 0.5, "sinks": 0, "recent": 1}
    keys = [(1, 0), (-1, 0), (0, 0)]
    for largest, tokens in ((10, [1, 2]), (8, [0, 2])):
        run = replayed((1, 0), keys, method | {"uniforms": str(tmp_path / "u.h5")}, 2, values=[1, largest, 1])
        assert read(run) == tokens


def test_a_tile_without_weight_is_skipped():
    """Largest weights exp(-3) and exp(-1) against 0.1; beta = 0.2 / 1.8386 where 0.040 is missed."""
    run = replayed(
        (1, 0), with_logits([2, 0, -1, -2, 1, 0]), {"name": "skip_softmax", "tile": 2, "lambda": 0.1}
    )
    assert read(run) == [0, 1, 4, 5]
    row = run.row(kv_head=0)
    assert row["missed_mass_bound_mean"] == pytest.approx(0.2 / 1.8386, abs=1e-4)
    assert 1 - row["kept_mass_mean"] == pytest.approx(0.040, abs=5e-4)
    assert row["bound_holds"] == 1


def test_the_mean_value_takes_the_attention_that_is_not_read():
    """One channel decides: s = 3.464, 0, 1.732; alpha = 37.6 / 38.6."""
    keys = [(1, 0, 0, 0), (0, 0, 0, 0), (0.5, 0, 0, 0)]
    values = np.array([1, 10, 100])
    run = replayed((3, 1, 0, 0), keys, {"name": "sparq", "r": 1, "recent": 1}, 2, values=values)
    assert read(run) == [0, 2]
    s, p = np.exp(np.array([2, 0, 1]) * 3 * np.sqrt(4 / 3) / 2), np.exp([3, 0, 1.5])
    alpha = (s[0] + s[2]) / s.sum()
    assert alpha == pytest.approx(0.974, abs=5e-4)
    exact = (p[0] * 1 + p[2] * 100) / (p[0] + p[2])
    assert run.outputs(kv_head=0)[1].item() == pytest.approx(
        alpha * exact + (1 - alpha) * values.mean(), rel=1e-9
    )


def test_the_main_direction_of_keys_decides():
    """Token 0 is read, although the product with token 2 is larger."""
    keys = [(2, 0), (-2, 0), (0, 1), (0, -1), (0, 0)]
    assert read(replayed((1, 5), keys, {"name": "loki", "r": 1}, 1)) == [0]


def test_the_last_cluster_is_cut():
    """Clusters {0, 3} and {1, 2} with products 2 and 1; the newest token is read beside the budget."""
    keys = [(2, 0), (0, 1), (0, 1), (2, 0), (0, 0)]
    assert read(replayed((1, 1), keys, {"name": "clusterkv", "sinks": 0, "clusters": 2}, 3)) == [0, 1, 3, 4]


def test_the_fewest_tokens_that_hold_a_share_of_the_weights_are_read():
    """Weights 0.6, 0.3, 0.08, 0.02, and 0.85 of them."""
    keys = with_logits(np.log(np.array([0.6, 0.3, 0.08, 0.02]) / 0.02))
    method = {"name": "twilight", "p": 0.85, "dense_layers": []}
    assert read(replayed((1, 0), keys, method, 48)) == [0, 1]


@pytest.mark.parametrize(
    "name", ["block_mean", "block_max", "socket", "sparq", "loki", "retroinfer", "clusterkv"]
)
def test_a_budget_of_all_tokens_is_exact(name):
    draw = np.random.default_rng(4)
    keys, values = draw.standard_normal((60, 8)), draw.standard_normal(60)
    entry = {"name": name}
    entry |= {"retrieval": 1.0, "estimation": 0.0} if name == "retroinfer" else {}
    entry |= {"clusters": 4} if name == "clusterkv" else {}
    entry |= {"sinks": 2, "recent": 4} if name == "socket" else {}
    budget = None if name == "retroinfer" else 64
    run = replayed(draw.standard_normal(8), keys, entry, budget, values=values, prefill=50)
    assert run.row(kv_head=0)["rel_err_out_max"] == pytest.approx(0, abs=1e-9)


def test_the_samples_of_many_seeds_estimate_the_denominator_without_bias():
    """A large epsilon leaves the base sample. The mean of tau / Z is 1 within four standard errors."""
    logits = np.random.default_rng(4).normal(size=24)
    keys = np.array(with_logits([*logits, 0]), dtype=np.float32)[None]
    query = np.zeros_like(keys)
    query[0, -1] = (1, 0)
    method = {
        "name": "vattention",
        "sinks": 1,
        "local": 1,
        "top": 2,
        "base": 0.3,
        "epsilon": 0.99,
        "delta": 0.9,
    }
    run = kv.replay(
        query, keys, keys, prefill=24, methods=method, seeds=200, scaling=1.0, precision="double", save="kept"
    )
    e = np.exp([*logits, 0])
    ratios, sets = [], set()
    for seed in range(200):
        read = run.kept(head=0, seed=seed)[-1]
        always = {0, 24, *(1 + np.argsort(-logits[1:])[:2])}
        sample = [i for i in read if i not in always]
        assert always <= set(read.tolist()) and len(sample) == 6  # floor(0.3 * 21)
        sets.add(tuple(sample))
        ratios.append((e[list(always)].sum() + 21 / 6 * e[sample].sum()) / e.sum())
    assert len(sets) > 150
    assert abs(np.mean(ratios) - 1) < 4 * np.std(ratios, ddof=1) / np.sqrt(200)


NEARLY_EXACT = [
    {"name": "skip_softmax", "lambda": 1e-30, "tile": 4},
    {"name": "skip_softmax", "lambda": 0.5, "tile": 64},
    {"name": "vattention", "sinks": 2, "local": 2, "top": 2, "base": 0.9, "epsilon": 1e-9},
]


@pytest.mark.parametrize("method", NEARLY_EXACT, ids=lambda m: f"{m['name']}-{m.get('tile')}")
def test_a_threshold_or_an_error_near_zero_reads_everything(method):
    q, k, v = made_layer(3, tokens=40, v_dim=8)
    row = kv.replay(q, k, v, prefill=24, methods=method, seeds=1, precision="double").row(head=0)
    assert row["rel_err_out_max"] < 1e-12
    assert row["kv_read_bytes_per_step"] == np.mean(np.arange(25, 41)) * (16 + 8) * 4


BOTH_LEVELS = [
    {"name": "quest", "page": 4, "dense_layers": []},
    {"name": "block_mean", "block": 4},
    {"name": "block_max", "block": 4},
    {"name": "loki", "r": 3},
    {"name": "clusterkv", "sinks": 2, "clusters": 3, "update": 8},
    {"name": "twilight", "page": 4, "p": 0.5, "dense_layers": []},
    {"name": "skip_softmax", "lambda": 0.3, "tile": 4},
]


@pytest.mark.parametrize("method", BOTH_LEVELS, ids=lambda m: m["name"])
def test_a_group_of_one_head_reads_what_the_head_reads(method):
    q, k, v = made_layer(3, heads=2, kv_heads=2, tokens=40, v_dim=8)
    budget = None if method["name"] == "skip_softmax" else 12
    runs = [
        kv.replay(
            q,
            k,
            v,
            prefill=24,
            methods=method | {"gqa": {"level": level}},
            budgets=budget,
            precision="double",
            save="kept",
        )
        for level in ("kv", "query")
    ]
    for head in range(2):
        ours, theirs = ([read.tolist() for read in run.kept(head=head)] for run in runs)
        assert ours == theirs
        same = (
            "rel_err_out_mean",
            "kv_read_bytes_per_step",
            "index_read_bytes_per_step",
            "index_stored_bytes",
        )
        assert all(runs[0].row(head=head)[name] == runs[1].row(head=head)[name] for name in same)


@pytest.mark.parametrize("tile", [1, 4, 16])
def test_no_row_misses_more_than_its_bound(tile):
    q, k, v = made_layer(5, tokens=120, v_dim=8)
    method = {"name": "skip_softmax", "lambda": [0.01, 0.1, 0.5], "tile": tile}
    table = kv.replay(q, 2 * k, v, prefill=64, methods=method).table
    assert (table["bound_holds"] == 1).all()
    assert (table["missed_mass_bound_mean"] > 0).any()
