"""Every method and variant of tier 1: its engine configuration and its reference call."""

from dataclasses import dataclass
from functools import partial

from reference.balance import balancekv, balancekv_stream, self_balancing_walk, uniform
from reference.buzz import buzz
from reference.common import per_query_head, streamed_prompt
from reference.h2o import drop_heavy, h2o, h2o_heavy
from reference.heads import token_classes
from reference.keyformer import fastgen, keyformer
from reference.oracles import static_oracle, topk_oracle, topp
from reference.recency import local, sparse_fixed, sparse_strided, streaming_llm, window
from reference.scissorhands import scissorhands
from reference.snapkv import pyramidkv, snapkv
from reference.subgen import subgen, subgen_stream

BUDGETS = (17, 43)
TRACES = ("grouped", "single")
RANDOM = {"keyformer", "subgen_stream", "uniform", "balancekv", "balancekv_stream", "self_balancing_walk"}


@dataclass(frozen=True)
class Case:
    """entry: one item of `methods:`. call(head, B, seed): the reference. replay: more keys of `replay:`."""

    entry: dict
    call: object
    budgets: tuple | None = BUDGETS
    traces: tuple = TRACES
    replay: tuple = ()

    @property
    def id(self):
        words = [f"{key}={value}" for key, value in self.entry.items() if key != "name"]
        words += [f"{key}={value}" for key, value in self.replay]
        return "-".join([self.entry["name"], *words])

    @property
    def random(self):
        drawn = self.entry["name"] in RANDOM and self.entry.get("noise", True)
        return drawn or "random" in (self.entry.get("first"), self.entry.get("drop"))


def case(function, budgets=BUDGETS, traces=TRACES, name=None, **params):
    """A method whose configuration keys equal the reference's parameter names."""
    entry = {"name": name or function.__name__, **params}
    return Case(entry, partial(call, function, params), budgets, traces)


def call(function, params, head, B, seed):
    return function(head, B, seed=seed, **params)


def by_query_head(function, **params):
    def run(head, B, seed):
        return per_query_head(partial(function, seed=seed, **params), head, B)

    return Case({"name": function.__name__, "gqa.level": "query", **params}, run, traces=("grouped",))


def aggregated(function, agg, **params):
    def run(head, B, seed):
        return function(head, B, seed=seed, agg=agg, **params)

    return Case({"name": function.__name__, "gqa.agg": agg, **params}, run, traces=("grouped",))


def streamed(function, **params):
    def run(head, B, seed):
        return streamed_prompt(partial(function, seed=seed, **params), head, B)

    return Case({"name": function.__name__, **params}, run, replay=(("prompt", "stream"),))


FIXED_BUDGET = (43,)
LONG_BUDGET = (71,)

RECENCY = [
    case(window),
    case(window, name="sliding_window"),
    case(window, phase="oneshot"),
    case(window, order="evict_then_attend"),
    streamed(window),
    case(local),
    case(local, variant="lm_eval"),
    case(local, variant="buzz"),
    case(streaming_llm),
    case(streaming_llm, positions="original"),
    case(streaming_llm, sinks=0),
    case(streaming_llm, sinks=16),
    case(streaming_llm, sinks=17, budgets=FIXED_BUDGET),
    case(streaming_llm, phase="oneshot"),
    case(streaming_llm, phase="oneshot", positions="original", sinks=1),
    case(streaming_llm, room_for=5),
    case(streaming_llm, order="evict_then_attend"),
    streamed(streaming_llm),
]

ORACLES = [
    case(topk_oracle),
    case(topk_oracle, extra=0),
    case(topk_oracle, per_head=True),
    case(topk_oracle, variant="topk_plus_current"),
    case(topk_oracle, variant="topk_plus_current", renormalise=False),
    case(topk_oracle, variant="with_h2o"),
    case(topp, budgets=None),
    case(topp, p=0.5, budgets=None),
    case(topp, p=1e-6, budgets=None),
    case(topp, p=0.8, per_head=True, budgets=None),
    case(static_oracle),
    case(static_oracle, per_head=True),
]

H2O = [
    case(h2o),
    case(h2o, recent_frac=0.3),
    case(h2o, recent_frac=0.0),
    case(h2o, recent_frac=1.0),
    case(h2o, heavy=30, recent=13, budgets=FIXED_BUDGET),
    case(h2o, score_rows="last:8"),
    case(h2o, score_rows="decode_only"),
    case(h2o, score_norm="mean"),
    case(h2o, score_norm="mean", score_rows="last:8"),
    case(h2o, score_norm="mean", score_rows="decode_only"),
    case(h2o, positions="cache"),
    case(h2o, phase="oneshot"),
    case(h2o, phase="oneshot", positions="cache"),
    streamed(h2o),
    by_query_head(h2o),
    by_query_head(h2o, phase="oneshot"),
    aggregated(h2o, "mean"),
    aggregated(h2o, "max"),
    aggregated(h2o, "first"),
    case(h2o, variant="alg1"),
    case(h2o, variant="hf_mask"),
    case(h2o, variant="hf_mask", recent_frac=0.2),
    case(h2o, variant="local_mask"),
    case(h2o, variant="flexgen"),
    case(h2o, variant="oracle_global"),
    case(h2o, variant="observed"),
    case(h2o, variant="kvfactory", budgets=FIXED_BUDGET),
    case(h2o_heavy),
    case(h2o_heavy, variant="strict"),
    case(drop_heavy),
    case(drop_heavy, sinks=3),
    case(drop_heavy, drop="light"),
    case(drop_heavy, drop="random"),
    case(drop_heavy, drop="random", sinks=2),
]

PATTERNS = [
    case(sparse_strided, budgets=LONG_BUDGET),
    case(sparse_strided),
    case(sparse_strided, w=10, l=20, budgets=FIXED_BUDGET),
    case(sparse_strided, with_h2o=True, budgets=LONG_BUDGET),
    case(sparse_fixed, budgets=LONG_BUDGET),
    case(sparse_fixed, budgets=(33,)),
    case(sparse_fixed, l=12, c=2, budgets=LONG_BUDGET),
    case(sparse_fixed, with_h2o=True, budgets=LONG_BUDGET),
]

SCISSORHANDS = [
    case(scissorhands),
    case(scissorhands, drop=1),
    case(scissorhands, hist=20),
    case(scissorhands, hist=1, recent=0),
    case(scissorhands, recent=3, drop=5),
    case(scissorhands, variant="fraction"),
    case(scissorhands, variant="fraction", hist=30, drop=2),
    case(scissorhands, variant="authors_code", budgets=None),
    by_query_head(scissorhands),
    streamed(scissorhands),
]

SUBGEN = [
    case(subgen_stream, delta=2.5, budgets=None),
    case(subgen_stream, delta=5.0, t=3, s=17, budgets=None),
    case(subgen_stream, delta=7.5, t=8, s=64, sinks=1, budgets=None),
    case(subgen_stream, delta=0.5, t=1, s=5, sinks=3, budgets=None),
    case(subgen_stream, delta=0.05, epsilon=0.9, t_max=6, s_max=40, budgets=None),
    case(subgen_stream, delta=0.05, epsilon=0.9, c_t=0.3, c_s=2.0, budgets=None),
    case(subgen_stream, delta_rel=0.7, budgets=None, traces=("short",)),
    case(subgen),
    case(subgen, recent=0),
    case(subgen, recent=16),
    case(subgen, first=5),
    case(subgen, first="random"),
    case(subgen, weights="cluster_size"),
    case(subgen, weights="cluster_size", first="random", recent=3),
]

BUZZ = [
    case(buzz, budgets=(17, 43, 71)),
    case(buzz, stride=3),
    case(buzz, stride=4, sinks=0),
    case(buzz, stride=6, sinks=1),
    case(buzz, variant="paper"),
    case(buzz, variant="paper", prefill_passes="single"),
    case(buzz, prefill_passes="until_fit"),
    case(buzz, prefill_passes="chunked"),
    case(buzz, variant="paper", prefill_passes="chunked", stride=3),
    case(buzz, sinks=3, window=11, threshold=29, budgets=FIXED_BUDGET),
    case(buzz, mode="no_max"),
    case(buzz, mode="swap"),
    case(buzz, mode="swap", stride=4, prefill_passes="until_fit"),
    case(buzz, log_n="live"),
    case(buzz, log_n="context"),
    case(buzz, positions="cache"),
    case(buzz, positions="cache", variant="paper", stride=3),
    by_query_head(buzz),
]

SAMPLES = [
    case(uniform),
    case(uniform, sinks=2, recent=3),
    case(uniform, sinks=0, recent=0),
    case(uniform, sinks=2, recent=5, m=10, budgets=(17,)),
    case(uniform, weights="none"),
    case(uniform, rounds=3, budgets=FIXED_BUDGET),
    case(uniform, rounds=3, weights="pow2", budgets=FIXED_BUDGET),
    case(uniform, rounds=3, weights="pow2", sinks=3, recent=6, budgets=FIXED_BUDGET),
    case(uniform, tail=4),
    case(uniform, tail=6, sinks=1, recent=2, weights="none"),
    case(uniform, variant="coin"),
    case(uniform, variant="coin", sinks=3, recent=5, rounds=3, budgets=FIXED_BUDGET),
    case(uniform, variant="notebook", rounds=3, sinks=3, recent=5, budgets=FIXED_BUDGET),
    case(uniform, variant="notebook", rounds=4, sinks=0, recent=0, block=7, budgets=FIXED_BUDGET),
]

WALKS = [
    case(self_balancing_walk),
    case(self_balancing_walk, kernel="k"),
    case(self_balancing_walk, kernel="kv", rounds=2),
    case(self_balancing_walk, c=1e-4, on_fail="clamp"),
    case(self_balancing_walk, c=1e-4, on_fail="coin", rounds=3),
    case(self_balancing_walk, c=1e-4, on_fail="fail"),
    case(self_balancing_walk, kernel="k", c=1.0, on_fail="clamp"),
    case(self_balancing_walk, kernel="k", c=2.0, on_fail="coin", rounds=2),
    case(self_balancing_walk, kernel="kv", c=0.3, on_fail="fail"),
    case(self_balancing_walk, kernel="k", c=0.5, r=20.0, on_fail="clamp", sinks=2, recent=6),
    case(self_balancing_walk, delta=0.01, sinks=0, recent=0, rounds=2),
]

BALANCE = [
    case(balancekv),
    case(balancekv, block=16),
    case(balancekv, block=20, den="w"),
    case(balancekv, rounds=2, block=16, sinks=3, recent=7),
    case(balancekv, rounds=1, block=7, sinks=0, recent=0, tau=1.0),
    case(balancekv, rounds=3, block=32, gamma=0.5, beta=0.4, c0=0.1),
    case(balancekv, preset="longbench", sinks=4, recent=9),
    case(balancekv, preset="single_layer"),
    case(balancekv, gamma=0.0),
    case(balancekv, gamma=0.0, rounds=2, block=16, den="w"),
    case(balancekv, walk="paper", c="theory"),
    case(balancekv, walk="paper", c=0),
    case(balancekv, walk="paper", c=0, block=16, rounds=2),
    case(balancekv, walk="paper", c=1e-4, block=17, rounds=2, sinks=3, recent=5),
    case(balancekv, walk="paper", c=0.005, temp=0.2, block=16),
    case(balancekv, walk="paper", c="theory", delta=0.01, block=9, rounds=1),
    case(balancekv_stream, budgets=None, batch=16),
    case(balancekv_stream, budgets=None, batch=10, levels=2, c=1e-4, on_fail="clamp"),
    case(balancekv_stream, budgets=None, batch=7, levels=3, c=1e-3, on_fail="coin"),
    case(balancekv_stream, budgets=None, batch=12, centre_keys=True, delta=0.1),
    case(balancekv_stream, budgets=None, batch=8, r=0.5, epsilon=0.9),
    case(balancekv_stream, budgets=None, batch=16, levels=2, r=0.5, epsilon=0.9),
    case(balancekv_stream, budgets=None, batch=16, levels=2, r=0.5, epsilon=0.9, bucket_erase=False),
    case(balancekv_stream, budgets=None, batch=24, levels=1),
    case(balancekv_stream, budgets=None, batch=16, c=1e-3, on_fail="fail"),
    case(balancekv_stream, budgets=None, batch=300),
]

KEYFORMER = [
    case(keyformer),
    case(keyformer, recent_frac=0.0),
    case(keyformer, tau_init=0.7, tau_end=1.4, gen_len=30),
    case(keyformer, noise=False),
]


def by_text(**params):
    def run(head, B, seed):
        return fastgen(head, classes=token_classes(head.n), **params)

    return Case({"name": "fastgen", **params}, run, budgets=None)


FASTGEN = [
    by_text(),
    by_text(recovery=1e-6),
    by_text(recovery=0.3),
    by_text(recovery=0.5, heavy_frac=0.1),
    by_text(recovery=0.7),
    by_text(recovery=0.8, heavy_frac=0.2, local_frac=0.5),
    by_text(recovery=1.0),
]

SNAPKV = [
    case(snapkv),
    case(snapkv, window=8),
    case(snapkv, window=8, kernel=1),
    case(snapkv, window=5, kernel=3, pool="avg"),
    case(snapkv, window=16, pool="avg"),
    case(snapkv, variant="kvpress", window=9),
    case(snapkv, variant="kvpress", budgets=LONG_BUDGET),
    case(snapkv, variant="paper_config", budgets=FIXED_BUDGET),
    case(snapkv, variant="kvfactory"),
    case(snapkv, variant="none_pool", window=8),
    case(snapkv, window=8, when="after"),
    aggregated(snapkv, "mean", window=8, when="after"),
    aggregated(snapkv, "max", window=8),
    aggregated(snapkv, "first", window=8),
    by_query_head(snapkv, window=8),
]

EVERY_LAYER = {"traces": ("layered", "single", "short"), "budgets": (13, 25, 37)}
PYRAMIDKV = [
    case(pyramidkv, window=4, **EVERY_LAYER),
    case(pyramidkv, window=8, beta=3, **EVERY_LAYER),
    case(pyramidkv, traces=("layered", "single"), budgets=(25, 49)),
    case(pyramidkv, window=4, kernel=3, pool="avg", beta=5, **EVERY_LAYER),
    case(pyramidkv, variant="kvpress", window=4, **EVERY_LAYER),
    case(pyramidkv, variant="kvfactory", window=4, beta=7, **EVERY_LAYER),
]

CASES = [
    *RECENCY,
    *ORACLES,
    *H2O,
    *PATTERNS,
    *SCISSORHANDS,
    *SUBGEN,
    *BUZZ,
    *SAMPLES,
    *WALKS,
    *BALANCE,
    *KEYFORMER,
    *FASTGEN,
    *SNAPKV,
    *PYRAMIDKV,
]
