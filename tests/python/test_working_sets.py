"""What a step reads, where it would lie and what that would cost: small numbers by hand, and over many
methods an independent computation from the lists of tokens."""

import csv
import itertools
import json

import kvreplay as kv
import numpy as np
import pytest
import yaml
from kvreplay_cli import kvreplay as program
from program_beside_python import made_layer

pytestmark = pytest.mark.filterwarnings("ignore")
PROMPT, TOKENS, WIDTH = 24, 40, 4  # WIDTH: bytes of a number
MACHINE = {"hbm_bytes": 1e9, "hbm_bw": 1e9, "link_bw": 1e6, "weights_bytes": 1e6, "caches": 8}


def replayed(logits, method, budget=None, prefill=2, **words):
    """One kv head of one channel. logits [decode rows, tokens]: of each row and key."""
    rows, n = np.shape(logits)
    keys = np.eye(n)[None].astype(np.float32)
    queries = np.zeros((1, n, n), np.float32)
    queries[0, prefill : prefill + rows] = logits
    values = np.ones((1, n, 1), np.float32)
    return kv.replay(
        queries, keys, values, prefill=prefill, methods=method, budgets=budget, seeds=1, scaling=1.0,
        precision="double", **words,
    ).row(head=0)  # fmt: skip


# ---- by hand


def test_a_tier_of_two_tokens_that_were_used_last():
    """Row 2 asks for 0, which is held; then 0 and 2 are. Row 3 asks for 1, the first of two equals."""
    big = 50
    logits = [[big, 0, 0, 0], [0, big, big, 0]]
    tier = {"hot": 2, "policy": "lru", "request": {"top": 1}}
    row = replayed(logits, "exact", tier=tier)
    assert (row["tier_hit_rate"], row["tier_swap_tokens_per_step"]) == (0.5, 0.5)
    row = replayed(logits, "exact", tier=tier | {"request": {"top": 2}})
    # Row 2 now asks for 0 and, among equals, for 1: both are held. The lower of equal uses stays.
    assert (row["tier_hit_rate"], row["tier_swap_tokens_per_step"]) == (3 / 4, 0.5)
    assert (row["tier_swap_tokens_peak"], row["tier_swap_bytes_per_step"]) == (1, 0.5 * (4 + 1) * WIDTH)


def test_a_row_and_the_row_before_it():
    """C_3 = {1, 2, 3}, C_4 = {2, 3, 4}, C_5 = {3, 4, 5}."""
    row = replayed(np.zeros((3, 6)), {"name": "window"}, 2, prefill=3)
    assert row["overlap_mean"] == 2 / 4
    assert replayed(np.zeros((3, 6)), "exact", prefill=3)["overlap_mean"] == pytest.approx(
        (4 / 5 + 5 / 6) / 2
    )


def test_recall_of_the_best_two_tokens():
    """The window holds tokens 2 and 3 of the row of token 3, whose best tokens are 0 and 3."""
    row = replayed([np.log([4, 1, 2, 3])], {"name": "window"}, 1, prefill=3, recall_k=[2, 3])
    assert row["recall_at_k"] == 1 / 2
    assert row["mass_recall_at_k"] == pytest.approx(3 / 7)
    assert json.loads(row["extras"])["recall_at_3"] == pytest.approx(2 / 3)
    assert json.loads(row["extras"])["mass_recall_at_3"] == pytest.approx(5 / 9)


def test_a_step_of_a_large_model_on_a_fast_card():
    """16 GB of weights and 256 caches of 100,000 bytes at 3.35 TB/s: 4.784 ms."""
    tokens = 100_000 // (8 * 50)  # 49 numbers of a key and one of a value, 4 bytes each
    n = 2 * tokens
    machine = {"hbm_bytes": 80e9, "hbm_bw": 3.35e12, "link_bw": 55e9, "weights_bytes": 16e9, "caches": 256}
    k = np.zeros((1, n + 1, 49), np.float32)
    run = kv.replay(k, k, k[..., :1], prefill=n, methods="window", budgets=n - 1, machine=machine)
    row = run.row(head=0)
    assert row["kv_read_bytes_per_step"] == 100_000
    assert 1 / row["model_tokens_per_s"] == pytest.approx(4.784e-3, rel=1e-3)
    held = 256 * (n - 1) * 50 * WIDTH
    assert row["model_max_batch"] == (0.9 * 80e9 - 16e9) // held


# ---- against an independent computation


def layer():
    return made_layer(3, tokens=TOKENS, v_dim=8)


READS = [
    {"name": "quest", "page": 4, "dense_layers": []},
    {"name": "quest", "page": 4, "dense_layers": [], "gqa": {"level": "kv"}},
    {"name": "block_mean", "block": 4, "sinks": 2, "recent": 3},
    {"name": "block_max", "block": 4},
    {"name": "sparq", "r": 3},
    {"name": "loki", "r": 3},
    {"name": "socket", "K": 3, "L": 4, "sinks": 1, "recent": 2},
    {"name": "shadowkv", "chunk": 2, "local": 1, "rank": 4},
    {"name": "clusterkv", "sinks": 2, "clusters": 3, "update": 8},
    {"name": "twilight", "page": 4, "p": 0.5, "dense_layers": []},
    {"name": "retroinfer", "sinks": 1, "recent": 2, "cluster_size": 4, "retrieval": 0.3, "estimation": 0.3},
]  # fmt: skip
NO_SCORES = [
    {"name": "vattention", "sinks": 2, "local": 2, "top": 2, "base": 0.2},
    {"name": "skip_softmax", "lambda": 0.3, "tile": 4},
    {"name": "skip_softmax", "lambda": 0.3, "tile": 4, "gqa": {"level": "query"}},
    {"name": "topk_oracle"},
    {"name": "pqcache", "bits": 2, "sinks": 2, "recent": 2},
]
EVICTORS = [
    {"name": "window"},
    {"name": "h2o"},
    {"name": "h2o", "gqa": {"level": "query"}},
    {"name": "h2o", "order": "evict_then_attend"},
    {"name": "tova", "page": 4},
    {"name": "snapkv", "window": 4},
    {"name": "knorm", "phase": "oneshot"},
    {"name": "exact"},
]
NO_BUDGET = {"exact", "skip_softmax", "vattention", "retroinfer"}


def run_of(method, **words):
    q, k, v = layer()
    budget = None if method["name"] in NO_BUDGET else 12
    return kv.replay(
        q, k, v, prefill=PROMPT, methods=method, budgets=budget, seeds=1, rope={"theta": 1e4},
        precision="double", save="kept", **words,
    )  # fmt: skip


def sets_of(run, method, head):
    """Tokens that each query head attends to, [heads][rows], from the lists that the run keeps."""
    lists = [set(s.tolist()) for s in run.kept(head=head)]
    rows, group = TOKENS - PROMPT, 2
    if method["name"] in {m["name"] for m in READS + NO_SCORES}:
        return (
            [lists[h * rows : (h + 1) * rows] for h in range(group)] if len(lists) > rows else [lists] * group
        )
    per_head = 1 if len(lists) == 1 else rows + 1
    series = [lists[i : i + per_head] for i in range(0, len(lists), per_head)]
    if per_head == 1:  # cut once: all later tokens stay
        of_head = [[kept | set(range(PROMPT, t + 1)) for t in range(PROMPT, TOKENS)] for (kept,) in series]
    elif method.get("order"):
        of_head = [own[1:] for own in series]
    else:
        of_head = [[kept | {t} for t, kept in enumerate(own[:-1], PROMPT)] for own in series]
    return of_head if len(of_head) == group else of_head * group


def probabilities(head):
    q, k, _ = layer()
    group = q.shape[0] // k.shape[0]
    logits = (
        q[head * group : (head + 1) * group, PROMPT:].astype(float)
        @ k[head].astype(float).T
        / np.sqrt(k.shape[2])
    )
    logits = np.where(np.arange(TOKENS) <= np.arange(PROMPT, TOKENS)[:, None], logits, -np.inf)
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def best(x, count):
    return set(np.lexsort((np.arange(len(x)), -x))[:count].tolist())


@pytest.mark.parametrize("method", READS + NO_SCORES + EVICTORS, ids=lambda m: "-".join(map(str, m.values())))
def test_measures_are_those_of_the_lists(method):
    run = run_of(method, recall_k=6, tier={"hot": 8, "policy": "lru"}, machine=MACHINE)
    for head in range(2):
        row, attended, x = run.row(head=head), sets_of(run, method, head), probabilities(head)
        unions = [set().union(*step) for step in zip(*attended, strict=True)]
        _, k, v = layer()
        row_bytes = (k.shape[2] + v.shape[2]) * WIDTH
        assert row["kv_read_bytes_per_step"] == pytest.approx(np.mean([len(s) for s in unions]) * row_bytes)
        overlaps = [len(a & b) / len(a | b) for of_head in attended for a, b in itertools.pairwise(of_head)]
        assert row["overlap_mean"] == pytest.approx(np.mean(overlaps))
        hits, masses = recalls(method, attended, x)
        assert row["recall_at_k"] == pytest.approx(hits)
        assert row["mass_recall_at_k"] == pytest.approx(masses)
        misses, requests = lru(unions, 8)
        assert row["tier_hit_rate"] == pytest.approx(1 - sum(misses) / requests)
        assert row["tier_swap_tokens_per_step"] == pytest.approx(np.mean(misses))
        assert row["tier_swap_tokens_peak"] == max(misses)
        hbm = (
            MACHINE["weights_bytes"] + 8 * (row["kv_read_bytes_per_step"] + row["index_read_bytes_per_step"])
        ) / 1e9
        link = 8 * np.mean(misses) * row_bytes / 1e6
        assert row["model_tokens_per_s"] == pytest.approx(1 / max(hbm, link))
        held = 8 * (8 * row_bytes + row["index_stored_bytes"])
        assert row["model_max_batch"] == (0.9e9 - 1e6) // held


def recalls(method, attended, x):
    own = method.get("gqa", {}).get("level") == "query" or method["name"] in {
        "twilight", "loki", "socket", "clusterkv", "vattention", "topk_oracle"
    } or (method["name"] in {"quest", "block_mean"} and "gqa" not in method)  # fmt: skip
    if method["name"] == "topk_oracle":
        own = any(a != b for a, b in zip(attended[0], attended[-1], strict=True))
    hits, masses = [], []
    for h, of_head in enumerate(attended):
        p = x[h] if own else x.mean(0)
        for r, s in enumerate(of_head):
            top = best(p[r], 6)
            hits.append(len(s & top) / 6)
            masses.append(p[r, sorted(s & top)].sum() / p[r, sorted(top)].sum())
    return np.mean(hits), np.mean(masses)


def lru(unions, hot):
    use = dict(enumerate(range(PROMPT)))
    held = set(range(PROMPT - hot, PROMPT))
    misses, requests = [], 0
    for t, asked in enumerate((u - {t} for t, u in enumerate(unions, PROMPT)), PROMPT):
        misses.append(len(asked - held))
        requests += len(asked)
        use |= dict.fromkeys(asked, t) | {t: t}
        held = set(sorted(use, key=lambda token: (-use[token], token))[:hot])
    return misses, requests


@pytest.mark.parametrize("method", EVICTORS, ids=lambda m: "-".join(map(str, m.values())))
def test_what_an_evicting_method_holds_is_its_tier(method):
    """The hit rate is then the share of the best tokens that are stored when a row arrives."""
    run = run_of(method, tier={"policy": "method", "request": {"top": 5}})
    for head in range(2):
        attended, x = sets_of(run, method, head), probabilities(head).mean(0)
        unions = [set().union(*step) for step in zip(*attended, strict=True)]
        stored = [u - {t} for t, u in enumerate(unions, PROMPT)]
        if method.get("order"):  # the row attends after its eviction
            first = set(run.kept(head=head)[0].tolist())
            stored = [first, *unions[:-1]]
        asked = [best(p, 5) - {t} for t, p in enumerate(x, PROMPT)]
        hits = sum(len(a & s) for a, s in zip(asked, stored, strict=True))
        assert run.row(head=head)["tier_hit_rate"] == pytest.approx(hits / sum(map(len, asked)))


@pytest.mark.parametrize("method", READS, ids=lambda m: "-".join(map(str, m.values())))
def test_a_tier_that_holds_everything_misses_nothing(method):
    for policy in ("lru", "method"):
        row = run_of(method, tier={"hot": TOKENS, "policy": policy}).row(head=1)
        assert (row["tier_hit_rate"], row["tier_swap_tokens_peak"]) == (1, 0)


def test_a_tier_holds_the_tokens_of_the_best_scores():
    """What a step always reads comes first, whatever was asked for: the two sinks fill a tier of two."""
    run = run_of(READS[2], tier={"hot": 2, "policy": "method", "request": {"top": 1}})
    asked = [int(np.argmax(p)) for p in probabilities(0).mean(0)]
    held = [{PROMPT - 2, PROMPT - 1}] + [{0, 1}] * (TOKENS - PROMPT - 1)
    hits = sum(a in h for a, h in zip(asked, held, strict=True))
    requests = sum(a != t for t, a in enumerate(asked, PROMPT))
    assert 0 < hits < requests
    assert run.row(head=0)["tier_hit_rate"] == pytest.approx(hits / requests)


def test_the_oracle_of_k_tokens_has_recall_one_at_k():
    row = run_of({"name": "topk_oracle"}, recall_k=12).row(head=0)
    assert row["recall_at_k"] == 1
    assert row["mass_recall_at_k"] == pytest.approx(1)


def test_bytes_of_an_index_are_counted_once_for_a_group():
    """Heads that share the full cache share its pages. A 4-bit key is read if some head looks at it."""
    quest, of_group = (run_of(m).row(head=0) for m in READS[:2])
    assert quest["index_stored_bytes"] == of_group["index_stored_bytes"] == 2 * 16 * (TOKENS // 4) * WIDTH
    assert quest["index_read_bytes_per_step"] == of_group["index_read_bytes_per_step"]
    twilight = run_of(READS[9])
    pages = quest["index_read_bytes_per_step"]
    candidates = (twilight.row(head=0)["index_read_bytes_per_step"] - pages) / (16 / 2 + 4)
    assert candidates * (16 + 8) * WIDTH == pytest.approx(quest["kv_read_bytes_per_step"])


@pytest.mark.parametrize(
    ("method", "tier", "says"),
    [
        ("h2o", {"hot": 4, "policy": "method"}, "h2o reads all that it holds, which is its hot tier"),
        ("quest", {"policy": "method"}, "quest stores everything: write how many tokens"),
        ("topk_oracle", {"hot": 4, "policy": "method"}, "topk_oracle gives tokens no scores"),
        ("quest", {"policy": "lru"}, "tier has no hot"),
    ],
)
def test_tiers_that_mean_nothing_are_refused(method, tier, says):
    with pytest.raises(kv.ConfigError, match=says):
        run_of({"name": method}, tier=tier)


def test_a_tier_needs_every_row():
    with pytest.raises(kv.ConfigError, match="follows every row"):
        run_of({"name": "h2o"}, tier={"hot": 4}, queries={"last": 4})


# ---- agreement of heads


def test_the_agreement_of_heads_is_written_and_survives_a_resumed_run(tmp_path):
    trace, out = tmp_path / "t.h5", tmp_path / "out"
    program("synth", "--prompt", 48, "--tokens", 64, "--head-dim", 16, "--v-head-dim", 16, "-o", trace)
    config = {
        "schema": 1, "traces": [str(trace)], "methods": ["knorm", "exact"], "budget": {"tokens": [8]},
        "replay": {"needles": {"at": [0.5], "tokens": 8}},
        "seeds": {"count": 1}, "output": {"dir": str(out), "save": ["consensus", "kept"]},
    }  # fmt: skip
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    for _ in range(2):
        program("run", tmp_path / "c.yaml")
        rows = list(csv.DictReader((out / "consensus.csv").open()))
        (out / "consensus.csv").unlink()
        exact = [r for r in rows if r["method"] == "exact"]
        assert {(float(r["ger"]), float(r["ger_needles"]), float(r["consensus"])) for r in exact} == {
            (0, 0, 1)
        }
        assert {r["layer"] for r in rows} == {"all", "0"}
        lists = [set(s) for s in kept_after_prompt(out, "knorm")]
        layer = next(r for r in rows if r["method"] == "knorm" and r["layer"] == "0")
        held = set().union(*lists)
        assert float(layer["ger"]) == pytest.approx(1 - len(held) / 48)
        assert float(layer["ger_needles"]) == pytest.approx(len(set(range(24, 32)) - held) / 8)
        pairs = [len(a & b) / len(a | b) for a, b in itertools.combinations(lists, 2)]
        assert float(layer["consensus"]) == pytest.approx(np.mean(pairs) if pairs else 1)


def kept_after_prompt(out, method):
    import h5py

    with (out / "results.csv").open() as table, h5py.File(out / "kept.h5") as kept:
        for row in csv.DictReader(table):
            if row["method"] == method:
                group = kept[row["key"]]
                yield group["kept_flat"][: group["kept_off"][1]].tolist()


# ---- corners that an independent reading of the rules found


def far_below(method, precision, budget=4):
    """The step reads four tokens whose logits are all 700 below that of the first one."""
    q, k = np.zeros((1, 20, 4), np.float32), np.zeros((1, 20, 4), np.float32)
    q[..., 0], k[0, 0, 0], k[0, 8:12, 1] = 1, 700, 1
    q[0, 16:, 1] = 1e-3
    v = np.random.default_rng(0).normal(size=(1, 20, 3)).astype(np.float32)
    run = kv.replay(
        q, k, v, prefill=16, methods=method, budgets=budget, seeds=1, scaling=1.0, precision=precision,
        save=["kept", "outputs"], rope="none",
    )  # fmt: skip
    return run, q, k, v


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("method", [
    {"name": "block_mean", "block": 1, "recent": 1, "sinks": 0},
    {"name": "sparq", "r": 1, "recent": 4, "reallocate": False},
    {"name": "sparq", "r": 1, "recent": 4},
    {"name": "vattention", "sinks": 0, "local": 1, "top": 0, "base": 0.1, "epsilon": 0.9, "delta": 0.5},
], ids=lambda m: m["name"])  # fmt: skip
def test_tokens_far_below_the_largest_logit_count_as_among_themselves(method, precision):
    """A sum relative to the largest logit of all tokens would be zero, or lose its digits."""
    run, q, k, v = far_below(method, precision, None if method["name"] == "vattention" else 4)
    assert not len(run.failed)
    assert np.isfinite(run.outputs(head=0)[1]).all()
    if method["name"] != "sparq" or method.get("reallocate", True):
        return
    out = run.outputs(head=0)[1][0]
    for row, tokens in enumerate(run.kept(head=0)):
        logits = (k[0, tokens] @ q[0, 16 + row]).astype(float)
        e = np.exp(logits - logits.max())
        np.testing.assert_allclose(out[row], e @ v[0, tokens] / e.sum(), rtol=1e-5)


@pytest.mark.parametrize("method", [READS[i] for i in (0, 2, 8, 9)], ids=lambda m: m["name"])
def test_query_heads_share_a_cache_and_its_index_in_a_window_too(method):
    of_heads, of_group = (
        run_of(method | {"gqa": {"level": level}}, sliding_window=20).row(head=0) for level in ("query", "kv")
    )
    assert of_heads["index_stored_bytes"] == of_group["index_stored_bytes"] > 0
    assert of_heads["peak_bytes"] == of_group["peak_bytes"]


SCORED = [
    {"name": "loki", "r": 2},
    {"name": "sparq", "r": 2, "recent": 1},
    {"name": "quest", "page": 1, "dense_layers": []},
    {"name": "clusterkv", "sinks": 0, "clusters": 4, "iterations": 0, "update": 1, "update_clusters": 1},
    {"name": "block_mean", "block": 1},
]


@pytest.mark.parametrize("method", SCORED, ids=lambda m: m["name"])
def test_a_tier_holds_the_best_scores_where_a_step_reads_everything(method):
    """Every row asks for token 2, which has the largest score of the four of the prompt."""
    k = np.zeros((1, 8, 2), np.float32)
    k[0, :, 0], k[0, :, 1] = [-5, -4, 6, -1, -3, -2, -2, -2], [1, -1] * 4
    q = np.zeros_like(k)
    q[..., 0] = 1
    tier = {"hot": 2, "policy": "method", "request": {"top": 1}}
    run = kv.replay(q, k, k, prefill=4, methods=method, budgets=8, scaling=1.0, tier=tier)
    assert run.row(head=0)["tier_hit_rate"] == 1


def test_what_kv_heads_share_is_charged_in_equal_parts():
    q, k, v = made_layer(1, heads=3, kv_heads=3, tokens=16, dim=4, v_dim=4)
    method = {"name": "shadowkv", "chunk": 2, "local": 0, "outliers": 0, "rank": 5}
    row = kv.replay(q, k, v, prefill=8, methods=method, budgets=4, rope={"theta": 1e4}, save="kept").row(
        head=0
    )
    assert row["index_stored_bytes"] == pytest.approx(4 * (4 * 4 + 8 * 5 / 3 + 5 * 4))
    assert row["index_read_bytes_per_step"] == pytest.approx(4 * (4 * 4 + 4 * (5 / 3 - 4)))


def test_clusters_form_whether_or_not_a_row_is_scored():
    q, k, v = made_layer(1, heads=1, kv_heads=1, tokens=16, dim=4, v_dim=4)
    method = {"name": "clusterkv", "sinks": 0, "clusters": 2, "update": 1, "update_clusters": 1}
    for queries in ("all", {"last": 3}, {"stride": 5}):
        run = kv.replay(q, k, v, prefill=8, methods=method, budgets=4, queries=queries)
        assert run.row(head=0)["index_stored_bytes"] == 9 * 4 * WIDTH + 4 * 15


def test_chunks_of_one_token_are_equally_alike():
    """Every cosine of a key and its own mean is 1, so the first 48 of 50 chunks are the outliers."""
    for seed in range(6):
        q, k, v = made_layer(seed, heads=1, kv_heads=1, tokens=60, dim=4, v_dim=4)
        method = {"name": "shadowkv", "chunk": 1, "local": 0, "outliers": 48, "rank": 0}
        run = kv.replay(q, k, v, prefill=50, methods=method, budgets=1, rope={"theta": 1e4}, save="kept")
        assert all(set(range(48)) <= set(read.tolist()) for read in run.kept(head=0))


def test_uniforms_may_have_the_shape_of_their_definition(tmp_path):
    import h5py

    planes, draws = (
        np.random.default_rng(2).random((16, 12)),
        np.random.default_rng(3).random((2, 16, TOKENS)),
    )
    runs = []
    for name, shape in (("whole", lambda x: x), ("flat", np.ravel)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as out:
            for head in range(2):
                out[f"p0/000/{head}/U"], out[f"p0/000/{head}/u"] = shape(planes), shape(draws)
        methods = [m | {"uniforms": str(tmp_path / f"{name}.h5")} for m in (READS[6], NO_SCORES[0])]
        runs.append([run_of(m).row(head=0)["rel_err_out_mean"] for m in methods])
    assert runs[0] == runs[1]
