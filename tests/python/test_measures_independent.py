"""Recomputes every measure of a replayed cell in float64 from the trace and the published sets.

Only the kept sets (kept.h5) and outputs (outputs.h5) come from the engine. Exact attention, normalisers,
masses, errors and bytes follow from the formulas in docs/measures.md.
"""

import json
import math
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise

import h5py
import numpy as np
import pandas as pd
import pytest
from kvreplay_cli import ROOT, kvreplay, synth
from reference.common import Rope, rotate
from reference.row_codes import quantise_rows
from test_sample import widened

SAMPLE = ROOT / "traces/samples/smollm2-135m.h5"
DOUBLE, SINGLE = 1e-6, 1e-4
NEEDLES = {"at": [0, 0.4, 0.9], "tokens": 32}
CODES = 15  # levels of int4
METHODS = [
    {"name": "h2o"},
    {"name": "snapkv", "window": 8},
    {"name": "uniform", "sinks": 2, "recent": 9},
    {"name": "balancekv", "sinks": 2, "recent": 9},
    {"name": "streaming_llm", "positions": "original"},
    {"name": "streaming_llm", "positions": "cache"},
    {"name": "topk_oracle"},
    {"name": "subgen_stream", "delta": 6.0, "t": 3, "s": 40},
    {"name": "subgen_stream", "delta": 6.0, "epsilon": 0.9, "t_max": 5, "s_max": 60},
    {"name": "balancekv_stream", "batch": 32, "levels": 2, "on_fail": "clamp", "r": 4.0, "epsilon": 0.5},
    {"name": "h2o", "row_format": "int4"},
    {"name": "snapkv", "window": 8, "row_format": "int4"},
    {"name": "tova", "phase": "oneshot"},
    {"name": "scissorhands", "hist": 24},
    {"name": "h2o", "page": 8},
    {"name": "h2o", "recent_frac": 0.25, "page": 8, "evict": "page"},
]
BUDGET = 41
# Columns that are not a measure of the replay, or repeat another column.
NOT_RECOMPUTED = {"bound_log10_tokens"}
# test_turns_replay.py recomputes these.
NOT_RECOMPUTED |= {"n_segments", "worst_segment", "worst_rel_err_out_mean", "first_rel_err_out_mean"}
# test_recorded_needles.py computes this one.
NOT_RECOMPUTED |= {"needle_kept"}
# test_reads_by_hand.py computes this one.
NOT_RECOMPUTED |= {"missed_mass_bound_mean"}
# test_working_sets.py recomputes these, and all that methods read.
NOT_RECOMPUTED |= {"index_read_bytes_per_step", "index_stored_bytes", "recall_at_k", "mass_recall_at_k"}
NOT_RECOMPUTED |= {
    "tier_hit_rate",
    "tier_swap_tokens_per_step",
    "tier_swap_tokens_peak",
    "tier_swap_bytes_per_step",
}
NOT_RECOMPUTED |= {"model_tokens_per_s", "model_max_batch", "overlap_mean", "kv_read_bytes_per_step"}
# The memory columns need the method's account, which kept lists of these methods do not contain.
WITHOUT_MEMORY_COLUMNS = {"balancekv_stream"}


@dataclass
class Head:
    """One kv head of a trace. q [G, n, d], k [n, d], v [n, dv]."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: float
    prompt: int
    rope: Rope
    stored: int  # bytes of one number
    g: np.ndarray | None  # [S, G, n - prompt - 1, dv], for every row with a target
    counted: dict = field(default_factory=dict)

    @cached_property
    def logits(self):
        """[G, n, n]; -inf where a row does not see a token."""
        n = len(self.k)
        seen = np.tril(np.ones((n, n), bool))
        return np.where(seen, self.scale * self.q @ self.k.T, -np.inf)

    @cached_property
    def norms(self):
        """Operator norm, Frobenius norm and longest value of tokens 0..t, [n] each."""
        grams = np.cumsum(self.v[:, :, None] * self.v[:, None, :], axis=0)
        largest = np.maximum.accumulate(np.linalg.norm(self.v, axis=1))
        return np.sqrt(np.linalg.eigvalsh(grams)[:, -1]), np.sqrt(np.trace(grams, axis1=1, axis2=2)), largest

    def clusters(self, radius):
        """SubGen's online clusters: how many there are after each token."""
        if radius not in self.counted:
            self.counted[radius] = clusters(self.k, radius)
        return self.counted[radius]


@dataclass(eq=False)
class Cell:
    """Kept sets and outputs of one cell. Row r is token `head.prompt + r`."""

    head: Head
    row: dict
    params: dict
    z: np.ndarray  # [G, R, dv]
    resident: list  # [R + 1] (tokens, num, den) after the prompt and after each step
    attended: list = field(default_factory=list)  # for query-time methods only

    @property
    def method(self):
        return self.row["method"]

    @property
    def oneshot(self):
        return self.params["phase"] == "oneshot"

    @property
    def coded(self):
        return self.params["row_format"]["name"] == "int4"

    def held(self, r):
        """C_t: (tokens, num, den), ascending."""
        t = self.head.prompt + r
        if self.attended:
            return self.attended[r], *np.ones((2, len(self.attended[r])))
        if self.method in ("subgen_stream", "balancekv_stream"):  # a token is added before its step attends
            return self.resident[r + 1]
        tokens, num, den = self.resident[0 if self.oneshot else r]
        new = np.arange(self.head.prompt if self.oneshot else t, t + 1)
        one = np.ones(len(new))
        return np.r_[tokens, new], np.r_[num, one], np.r_[den, one]


def load_heads(trace, layer):
    with h5py.File(trace) as f:
        prompt = next(iter(f["prompts"].values()))
        group = prompt[f"layers/{layer:03d}"]
        source = group["q"].id.get_type().get_size()
        read = widened if source == 2 else (lambda x: x[:].astype(float))
        q, k, v = (read(group[name]) for name in "qkv")
        rope = json.loads(f.attrs["rope_json"])
        rope = Rope(np.array(rope["inv_freq"]), rope["layout"])
        g = len(q) // len(k)
        place = (float(group.attrs["scaling"]), int(prompt.attrs["n_prompt"]), rope, source)
        of_heads = [slice(h * g, (h + 1) * g) for h in range(len(k))]
        gradient = [group["g"][:, own].astype(float) if "g" in group else None for own in of_heads]
        return [Head(q[own], k[h], v[h], *place, gradient[h]) for h, own in enumerate(of_heads)]


def add_gradient(trace, layer):
    """Adds gradients of three samples, with numbers that are exact in bfloat16."""
    with h5py.File(trace, "r+") as f:
        prompt = next(iter(f["prompts"].values()))
        group = prompt[f"layers/{layer:03d}"]
        rows = np.arange(prompt.attrs["n_prompt"], group["k"].shape[1] - 1)
        shape = (3, len(group["q"]), len(rows), group["v"].shape[-1])
        group["g"] = (np.random.default_rng(7).integers(-64, 65, shape) / 16).astype(np.float32)
        group["g_rows"] = rows.astype(np.int32)
    return trace


def split(group, name, values):
    return np.split(values, group[f"{name}_off"][1:-1]) if f"{name}_off" in group else []


def load_cells(out, heads):
    rows = pd.read_csv(out / "results.csv", dtype={"bound_holds": float})
    cells = []
    with h5py.File(out / "kept.h5") as kept, h5py.File(out / "outputs.h5") as outputs:
        for row in rows.to_dict("records"):
            assert row["status"] == "ok", row["error"]
            group = kept[row["key"]]
            flat = group["kept_flat"][:] if "kept_flat" in group else np.zeros(0, int)
            one = np.ones(len(flat))
            num, den = (group[x][:].astype(float) if x in group else one for x in ("num", "den"))
            resident = list(zip(*(split(group, "kept", x) for x in (flat, num, den)), strict=True))
            attended = split(group, "attended", group["attended_flat"][:]) if "attended_flat" in group else []
            z = outputs[row["key"]]["out"][:].astype(float)
            params = json.loads(row["params"])
            if not isinstance(params["row_format"], dict):
                params["row_format"] = {"name": params["row_format"]}
            cells.append(Cell(heads[row["kv_head"]], row, params, z, resident, attended))
    return cells


# --- One row ---------------------------------------------------------------------------------------------


def row_logits(cell, t, tokens):
    """[G, |C|]: the method's logits of row t."""
    head = cell.head
    if cell.params["positions"] == "cache":
        shift = (t - tokens) - (len(tokens) - 1 - np.arange(len(tokens)))
        return head.scale * head.q[:, t] @ rotate(head.k[tokens], shift, head.rope).T
    if not cell.coded:
        return head.logits[:, t, tokens]
    keys = quantise_rows(head.k[tokens], 64, CODES)
    keys[-1] = head.k[t]  # exact in its own step
    return head.scale * head.q[:, t] @ keys.T


@dataclass
class Row:
    """One row of a cell; arrays over the G query heads."""

    o: np.ndarray
    z: np.ndarray
    x: np.ndarray  # exact probabilities [G, t + 1]
    log_z: np.ndarray  # ln Z
    log_tau: np.ndarray
    tokens: np.ndarray  # C_t
    plain: bool


def exact_over(logits, v):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e @ v / e.sum(-1, keepdims=True)


def make_row(cell, r):
    head, t = cell.head, cell.head.prompt + r
    exact = head.logits[:, t, : t + 1]
    top = exact.max(-1, keepdims=True)
    e = np.exp(exact - top)
    tokens, num, den = cell.held(r)
    own = row_logits(cell, t, tokens)
    peak = own.max(-1, keepdims=True)
    log_tau = np.log((den * np.exp(own - peak)).sum(-1)) + peak[:, 0]
    moved = cell.params["positions"] == "cache" and len(tokens) <= t
    return Row(
        o=e @ head.v[: t + 1] / e.sum(-1, keepdims=True),
        z=cell.z[:, r],
        x=e / e.sum(-1, keepdims=True),
        log_z=np.log(e.sum(-1)) + top[:, 0],
        log_tau=log_tau,
        tokens=tokens[(num != 0) | (den != 0)],
        plain=bool((num == 1).all() and (den == 1).all() and not moved and not cell.coded),
    )


def prefix_errors(cell, t):
    """[G]: errors over prompt tokens only, both in the cache and in exact attention."""
    head = cell.head
    tokens, num, den = cell.resident[0]
    values = quantise_rows(head.v[tokens], 64, CODES) if cell.coded else head.v[tokens]
    keys = quantise_rows(head.k[tokens], 64, CODES) if cell.coded else head.k[tokens]
    own = head.scale * head.q[:, t] @ keys.T
    e = np.exp(own - own.max(-1, keepdims=True))
    z = (num * e) @ values / (den * e).sum(-1, keepdims=True)
    o = exact_over(head.logits[:, t, : head.prompt], head.v[: head.prompt])
    return norm(z - o) / norm(o)


def norm(x):
    return np.linalg.norm(x, axis=-1)


# --- The columns -----------------------------------------------------------------------------------------


def error_columns(cell, rows):
    """The error columns, computed over [R, G]."""
    o, z = (np.array([getattr(row, name) for row in rows]) for name in "oz")
    e, size = norm(z - o), norm(o)
    rel = e / size
    tau = np.exp(np.array([row.log_tau - row.log_z for row in rows]))
    sets = [exact_over(cell.head.logits[:, cell.head.prompt + r, row.tokens], cell.head.v[row.tokens])
            for r, row in enumerate(rows)]  # fmt: skip
    found = {
        "n_queries": len(rows),
        "rows_skipped": 0,
        "rel_err_out_mean": rel.mean(),
        "rel_err_out_p50": np.quantile(rel, 0.5),
        "rel_err_out_p95": np.quantile(rel, 0.95),
        "rel_err_out_max": rel.max(),
        "rel_err_fro": math.sqrt((e[-256:] ** 2).sum() / (size[-256:] ** 2).sum()),
        "cosine_mean": ((z * o).sum(-1) / (norm(z) * size)).mean(),
        "cosine_distance_sq": ((1 - (z * o).sum(-1) / (norm(z) * size)) ** 2).mean(),
        "rel_err_clamped": (e / norm(np.maximum(o, 1e-8))).mean(),
        "rmse": math.sqrt((e**2 / o.shape[-1]).mean()),
        "rel_err_set_mean": (norm(np.array(sets) - o) / size).mean(),
        "rel_err_numerator_mean": (norm(z * tau[..., None] - o) / (tau * size)).mean(),
        "rel_err_normaliser_mean": np.abs(1 / tau - 1).mean(),
        "rel_err_prefix_mean": None,
        "kl_head_mean": None,
    }
    if cell.head.g is not None:
        a = np.einsum("sgrc,rgc->sgr", cell.head.g, (z - o)[:-1])
        found["kl_head_mean"] = (a**2).mean(0).sum() / 2 / (len(rows) - 1)
    cuts = [i * len(rows) // 4 for i in range(5)]
    for i in range(4):
        found[f"rel_err_quarter_{i + 1}"] = rel[cuts[i] : cuts[i + 1]].mean()
    if cell.oneshot:
        found["rel_err_prefix_mean"] = np.mean(
            [prefix_errors(cell, cell.head.prompt + r) for r in range(len(rows))]
        )
    return found


def promise_of(cell):
    """(column of the measured value, epsilon, probability, capped) or None."""
    p, head = cell.params, cell.head
    n, d = len(head.k), head.k.shape[1]
    if cell.method == "subgen_stream" and isinstance(p["epsilon"], float):
        r = head.scale * norm(head.q).max()
        log_t = -2 * math.log(p["epsilon"]) + 2 * p["delta"] * r + math.log(math.log(n))
        capped = log_t > math.log(p["t_max"]) or math.ceil(d / p["epsilon"] ** 2) > p["s_max"]
        return "eps_spectral", p["epsilon"], 0.99, capped
    if cell.method == "balancekv_stream":
        dv = head.v.shape[1]
        logs = math.log(dv * n)
        log_t = math.log(logs**2 * math.sqrt(dv) / p["epsilon"]) + 2 * p["r"] ** 2 / math.sqrt(d)
        return "eps_frobenius", p["epsilon"], 1 - n**-2.0, math.log(p["batch"]) < min(log_t, math.log(n))
    return None


def epsilon_columns(cell, rows):
    head, ts = cell.head, cell.head.prompt + np.arange(len(rows))
    operator, frobenius, largest = (x[ts][:, None] for x in head.norms)
    e = norm(np.array([row.z - row.o for row in rows]))
    l2 = np.array([norm(row.x) for row in rows])
    forms = {"eps_spectral": e / (l2 * operator), "eps_frobenius": e / (l2 * frobenius)}
    found = dict.fromkeys(("eps_additive_mean", "bound_epsilon", "bound_slack", "bound_holds"))
    found |= dict.fromkeys(("bound_probability", "bound_capped"))
    for name, form in forms.items():
        found |= {f"{name}_mean": form.mean(), f"{name}_max": form.max()}
        found[f"{name}_p99"] = np.quantile(form, 0.99)
    if cell.method == "balancekv_stream":
        spread = cell.params["r"] ** 2 / math.sqrt(head.k.shape[1])
        mine = np.array([row.z * np.exp(row.log_tau)[:, None] for row in rows])
        exact = np.array([row.o * np.exp(row.log_z)[:, None] for row in rows])
        additive = norm(mine - exact) * math.exp(spread) / ((ts[:, None] + 1) * largest)
        found["eps_additive_mean"] = additive.mean()
    if promise := promise_of(cell):
        form, epsilon, probability, capped = promise
        found["bound_epsilon"], found["bound_probability"] = epsilon, probability
        found["bound_slack"] = epsilon / forms[form].mean()
        found["bound_holds"] = (forms[form] <= epsilon).mean()
        found["bound_capped"] = int(capped)
    return found


def set_columns(cell, rows):
    head = cell.head
    largest = head.norms[2][head.prompt :]
    log_ratio = np.array([row.log_tau - row.log_z for row in rows])
    ratio = np.abs(np.exp(log_ratio) - 1)
    mass = np.array([row.x[:, row.tokens].sum(-1) for row in rows])
    recalls = []
    for row in rows:
        group = row.x.mean(0)
        best = np.argsort(-group, kind="stable")[: len(row.tokens)]
        recalls.append([group[row.tokens].sum() / group[best].sum(), np.isin(row.tokens, best).mean()])
    recalls = np.array(recalls)
    spans = [(math.floor(at * head.prompt), NEEDLES["tokens"]) for at in NEEDLES["at"]]
    marks = [np.arange(begin, min(begin + count, head.prompt)) for begin, count in spans]
    marks.insert(0, np.unique(np.concatenate(marks)))
    needles = [np.mean([row.x[:, np.intersect1d(mark, row.tokens)].sum(-1) / row.x[:, mark].sum(-1)
                        for row in rows]) for mark in marks]  # fmt: skip
    found = {
        "partition_err_mean": ratio.mean(),
        "partition_err_max": ratio.max(),
        "log_partition_err_mean": np.abs(log_ratio).mean(),
        "kept_mass_mean": mass.mean(),
        "kept_mass_min": mass.min(),
        "mass_recall": recalls[:, 0].mean(),
        "mass_recall_min": recalls[:, 0].min(),
        "index_recall": recalls[:, 1].mean(),
        "density_mean": np.mean([len(row.tokens) / row.x.shape[1] for row in rows]),
        "needle_mass": needles[0],
        "needles": needles[1:],
        "missed_gap_mean": None,
        "mass_bound_mean": None,
    }
    if all(row.plain for row in rows):
        gaps, bounds = [], []
        for t, row in enumerate(rows, head.prompt):
            missed = np.setdiff1d(np.arange(t + 1), row.tokens)
            m = row.x[:, missed].sum(-1)
            other = exact_over(head.logits[:, t, missed], head.v[missed]) if len(missed) else row.o
            gaps += list((norm(other - row.z) / norm(row.o))[m > 1e-3])
            bounds += list(2 * m * largest[t - head.prompt] / norm(row.o))
        found |= {"missed_gap_mean": np.mean(gaps) if gaps else None, "mass_bound_mean": np.mean(bounds)}
    return found


def clusters(keys, radius):
    """SubGen's online clusters: how many there are after each token."""
    centres, counts = [], []
    for key in keys:
        if not centres or np.linalg.norm(np.array(centres) - key, axis=1).min() > radius:
            centres.append(key)
        counts.append(len(centres))
    return np.array(counts)


@dataclass
class Ledger:
    """Numbers and bytes of one set of rows."""

    keys: int
    values: int
    bytes: int  # bytes of keys and values together
    weights: int = 0
    scores: int = 0
    sketches: int = 0
    positions: int = 0
    marks: int = 0  # data that decisions read and attention does not
    spare: int = 0  # bytes of slots without a token, in pages that hold one

    @property
    def cache(self):
        return self.bytes + self.spare + 4 * self.weights

    @property
    def aux(self):
        return self.scores + self.sketches + self.marks + self.positions


def ledger(cell, t, tokens, num, den, newest_exact):
    """The Ledger of C_t (its newest row exact) or S_t."""
    head, stored = cell.head, cell.head.stored
    n, d, dv = len(tokens), head.k.shape[1], head.v.shape[1]
    if cell.method == "subgen_stream":
        samples, slots = (cell.params["t"], cell.params["s"])
        if isinstance(cell.params["epsilon"], float):
            extras = json.loads(cell.row["extras"])
            samples, slots = int(extras["t"]), int(extras["s"])
        m = head.clusters(cell.params["delta"])[t]
        keys, values = (slots + m * (samples + 1)) * d, slots * dv
        return Ledger(keys, values, (keys + values) * stored, weights=m + 1)
    coded = (n - newest_exact) if cell.coded else 0
    codes = coded * (math.ceil(d / 2) + math.ceil(dv / 2))  # int4, each part of a row in whole bytes
    numbers = (n - coded) * (d + dv) * stored + codes
    result = Ledger(n * d, n * dv, numbers)
    if page := cell.params.get("page"):
        result.spare = (len(np.unique(tokens // page)) * page - n) * (d + dv) * stored
    result.sketches = coded * 4 * (math.ceil(d / 64) + math.ceil(dv / 64))
    result.scores = 8 * n if cell.method in ("h2o", "scissorhands") else 0
    result.positions = 0 if cell.method in ("streaming_llm", "topk_oracle") else 4 * n
    if cell.method == "scissorhands":  # one mark for each of the last rows
        result.marks = (n * cell.params["hist"] + 7) // 8
    if cell.method == "uniform":
        result.weights = 1
    if cell.method == "balancekv":
        result.weights = int(((num != 1) | (den != 1)).sum())
    return result


def memory_columns(cell, rows):
    if cell.method in WITHOUT_MEMORY_COLUMNS:
        return {}
    head, n_rows = cell.head, cell.z.shape[1]
    d, dv = head.k.shape[1], head.v.shape[1]
    P, n = head.prompt, head.prompt + n_rows
    everything = [(np.arange(P + r), np.ones(P + r), np.ones(P + r)) for r in range(n_rows + 1)]
    if cell.oneshot:
        resident = [cell.resident[0], *(cell.held(r) for r in range(n_rows))]
    else:
        resident = everything if cell.attended else cell.resident
    if cell.method == "subgen_stream":
        held = resident[1:]
    else:
        held = [everything[r + 1] if cell.attended else cell.held(r) for r in range(n_rows)]
    after = [ledger(cell, P - 1 + i, *s, 0) for i, s in enumerate(resident)]
    during = [ledger(cell, P + r, *c, 1) for r, c in enumerate(held)]
    both = after + during
    worst = max(after, key=lambda x: x.aux)
    read = [c.bytes + 4 * before.weights + before.sketches for c, before in zip(during, after, strict=False)]
    if cell.attended:
        read = [len(x) * (d + dv) * head.stored for x in cell.attended]
    ages = [P - 1 - i for i in np.setdiff1d(np.arange(P), resident[0][0])]
    for t, (before, now) in enumerate(pairwise(resident), P):
        ages += [t - i for i in np.setdiff1d(np.r_[before[0], t], now[0])]
    cache = max(x.cache for x in after)
    cache = max(cache, *(c.bytes + c.spare + 4 * s.weights for c, s in zip(during, after, strict=False)))
    found = {
        "peak_kept_tokens": max(x.keys // d for x in after),
        "mean_kept_tokens": np.mean([x.keys // d for x in after]),
        "peak_attended_tokens": max(x.keys // d for x in during),
        "mean_attended_tokens": np.mean([len(row.tokens) for row in rows]),
        "peak_bytes": cache,
        "aux_bytes": worst.aux,
        "total_bytes": cache + worst.aux,
        "full_bytes": n * (d + dv) * head.stored,
        "n_evictions": n - len(resident[-1][0]),
        "n_quantised": 0,
        "n_recoded": 0,
        "mean_bytes": np.mean([x.cache + x.aux for x in after]),
        "final_bytes": after[-1].cache + after[-1].aux,
        "prompt_bytes": after[0].cache + after[0].aux,
        "prompt_full_bytes": P * (d + dv) * head.stored,
        "mean_full_bytes": np.mean(np.arange(P, n + 1)) * (d + dv) * head.stored,
        "equivalent_tokens": max(x.keys + x.values for x in both) / (d + dv),
        "key_floats": max(x.keys for x in both),
        "value_floats": max(x.values for x in both),
        "weight_floats": max(x.weights for x in after),
        "score_bytes": worst.scores,
        "sketch_bytes": worst.sketches + worst.marks,
        "index_bytes": worst.positions,
        "read_bytes_per_step": np.mean(read),
        "median_evicted_age_tokens": np.median(ages) if ages else None,
    }
    if cell.coded:
        found["n_quantised"] = len(set(np.concatenate([s[0] for s in resident])))
    if cell.method == "subgen_stream":  # the peak while the prompt streams in, before the first list
        del found["median_evicted_age_tokens"]
    if page := cell.params.get("page"):
        found |= page_columns([tokens for tokens, _, _ in resident], P, page, (d + dv) * head.stored)
    return found


def page_columns(lists, prompt, page, row_bytes):
    """Columns of pages; lists: tokens after the prompt and after each step."""
    resident = np.array([len(np.unique(tokens // page)) for tokens in lists])
    pages = -(-np.arange(prompt, prompt + len(lists)) // page)
    kept = np.array([len(tokens) for tokens in lists])
    return {
        "resident_pages": resident.mean(),
        "resident_pages_peak": resident.max(),
        "reclaimed_bytes": ((pages - resident) * page * row_bytes).mean(),
        "fragmentation": (1 - kept / (page * resident)).mean(),
    }


@cache
def recomputed(cell):
    """Recomputes all columns of a cell: numbers, or None for an empty field."""
    rows = [make_row(cell, r) for r in range(cell.z.shape[1])]
    found = error_columns(cell, rows) | epsilon_columns(cell, rows) | set_columns(cell, rows)
    return found | memory_columns(cell, rows)


# --- Tests -----------------------------------------------------------------------------------------------

TRACES = {
    "sample": {"layer": 7, "kv_heads": [1], "replay": {"tokens": 688}},
    "synth": {"layer": 0, "kv_heads": [0, 1], "replay": {}},
}
SYNTH = {
    "tokens": 157,
    "prompt": 101,
    "q-heads": 6,
    "kv-heads": 2,
    "head-dim": 10,
    "v-head-dim": 7,
    "sinks": 2,
    "value-norm-spread": 0.5,
    "seed": 5,
    "dtype": "f32",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """runs(trace, precision): the cells of METHODS."""

    @cache
    def heads_of(name):
        """heads_of(name): (trace, its heads); their exact attention is computed once."""
        what, trace = TRACES[name], SAMPLE
        if name == "synth":
            words = (x for k, v in SYNTH.items() for x in (f"--{k}", v))
            path = tmp_path_factory.mktemp("trace") / "synth.h5"
            trace = add_gradient(synth(path, *words), what["layer"])
        heads = load_heads(trace, what["layer"])
        if "tokens" in what["replay"]:
            n = what["replay"]["tokens"]
            for head in heads:
                head.q, head.k, head.v = head.q[:, :n], head.k[:n], head.v[:n]
        return trace, heads

    @cache
    def run(name, precision):
        base, what, (trace, heads) = tmp_path_factory.mktemp("measures"), TRACES[name], heads_of(name)
        config = {
            "schema": 1,
            "name": "measures",
            "traces": [str(trace)],
            "select": {"layers": [what["layer"]], "kv_heads": what["kv_heads"]},
            "replay": {**what["replay"], "needles": NEEDLES},
            "methods": METHODS,
            "budget": {"tokens": [BUDGET]},
            "seeds": {"first": 3, "count": 1},
            "run": {"precision": precision},
            "output": {"save": ["kept", "outputs"]},
        }
        (base / "config.yaml").write_text(json.dumps(config))
        done = kvreplay("run", base / "config.yaml", "-o", base / "out")
        assert done.returncode == 0, done.stderr
        return load_cells(base / "out", heads)

    return run


def differs(found, said, tolerance):
    """Whether a published number differs from the recomputed one; None is an empty field."""
    if found is None or pd.isna(said):
        return (found is None) != bool(pd.isna(said))
    return not math.isclose(found, said, rel_tol=tolerance, abs_tol=tolerance * 1e-3)


@pytest.mark.parametrize("precision, tolerance", [("double", DOUBLE), ("single", SINGLE)])
@pytest.mark.parametrize("trace", TRACES)
def test_every_measure_is_what_numpy_computes(runs, trace, precision, tolerance):
    wrong = []
    for cell in runs(trace, precision):
        found = dict(recomputed(cell))
        needles = found.pop("needles")
        extras = json.loads(cell.row["extras"])
        found |= {f"needle_mass_{i}": x for i, x in enumerate(needles, 1)}
        said = cell.row | {name: extras[name] for name in found if name.startswith("needle_mass_")}
        label = f"{cell.method} {cell.row['params']}"
        wrong += [
            f"{label}: {name} is {said[name]}, numpy says {value}"
            for name, value in found.items()
            if differs(value, said[name], tolerance)
        ]
    assert not wrong, "\n".join(wrong)


def test_no_measure_is_left_out(runs):
    measures = {column["name"] for column in json.loads(kvreplay("list", "metrics", "--json").stdout)}
    found = set().union(*(recomputed(cell) for cell in runs("synth", "double")))
    assert measures - found == NOT_RECOMPUTED


def test_the_clamped_error_divides_by_the_positive_part_of_the_output(runs):
    """The ratio is 1.31 to 1.76 on another text, and about sqrt(2) for balanced signs."""
    inflation = [c.row["rel_err_clamped"] / c.row["rel_err_out_mean"] for c in runs("sample", "double")]
    assert all(1.1 < x < 2.2 for x in inflation), inflation


def test_the_theorem_of_balancekv_bounds_the_queries_after_the_prompt_too(tmp_path):
    """The default r is the largest norm of any key or query, including queries after the prompt."""
    trace = synth(tmp_path / "t.h5", "--tokens", 90, "--prompt", 60, "--q-heads", 1, "--kv-heads", 1)
    with h5py.File(trace, "r+") as file:
        layer = file["prompts/synthetic/layers/000"]
        layer["q"][0, 75] *= 4
        del file.attrs["trace_id"]
        q, k = layer["q"][0].astype(float), layer["k"][0].astype(float)
        d, dv = q.shape[1], layer["v"].shape[2]
    r = max(norm(q).max(), norm(k).max())
    assert norm(q[:60]).max() < r and norm(k).max() < r
    done = kvreplay("run", trace, "--method", "balancekv_stream", "-s", "seeds.count=1", "-o", tmp_path / "o")
    assert done.returncode == 0, done.stderr
    extras = json.loads(pd.read_csv(tmp_path / "o/results.csv")["extras"][0])
    log_t = math.log(math.log(dv * 90) ** 2 * math.sqrt(dv) / 0.1) + 2 * r**2 / math.sqrt(d)
    assert extras["theory_log10_t"] == pytest.approx(log_t / math.log(10))
