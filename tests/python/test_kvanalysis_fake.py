"""Plausible results of a run without the engine, used by the other tests of the analysis."""

import csv
import hashlib
import json

import numpy as np
import pandas as pd

# Written out, not imported: this is the contract of the loader.
# fmt: off
COLUMNS = [
    "key", "trace_id", "model", "prompt", "layer", "kv_head", "method", "params", "budget_tokens",
    "seed", "n_prefill", "n_tokens", "n_queries", "rel_err_out_mean", "rel_err_out_p50",
    "rel_err_out_p95", "rel_err_out_max", "rel_err_fro", "cosine_mean", "eps_spectral_mean",
    "eps_spectral_max", "eps_frobenius_mean", "eps_frobenius_max", "partition_err_mean",
    "partition_err_max", "kept_mass_mean", "mass_recall", "index_recall", "peak_kept_tokens",
    "mean_kept_tokens", "peak_attended_tokens", "peak_bytes", "aux_bytes", "total_bytes", "full_bytes",
    "n_evictions", "bound_log10_tokens", "bound_holds", "select_s", "attend_s", "status", "error",
]
# fmt: on
TRACE = "5f0c3a9d1e7b42c8" * 4
PREFILL, TOKENS, ROW_BYTES = 768, 1024, 256
# method, parameters beyond the budget, error at 64 tokens, decay of the error with the budget, seeds
METHODS = (
    ("window", {}, 1.63, 0.20, 1),
    ("streaming_llm", {"positions": "cache", "sinks": 4}, 0.54, 0.36, 1),
    ("streaming_llm", {"positions": "original", "sinks": 4}, 0.59, 0.39, 1),
    ("h2o", {"recent_frac": 0.5}, 0.44, 0.62, 1),
    ("snapkv", {"window": 32}, 0.26, 0.49, 1),
    ("tova", {}, 0.36, 0.50, 1),
    ("balancekv", {"rounds": 2}, 0.48, 0.55, 5),
    ("topk_oracle", {"extra": 1}, 0.28, 0.61, 1),
)
BUDGETS, LAYERS, KV_HEADS = (64, 128, 256, 512), (0, 7, 15, 23, 29), 3


def fake_row(
    method="h2o", params=None, budget=64, seed=0, layer=0, kv_head=0, rel_err=0.25, given=None, **changes
):
    """One finished cell as a dict of the contract's columns and `given` (default: `params`), updated with
    `changes`."""
    oracle = method == "topk_oracle"
    kept = TOKENS if oracle or budget == "" else budget
    row = dict.fromkeys(COLUMNS, "")
    row |= {
        "trace_id": TRACE,
        "model": "SmolLM2-135M-Instruct",
        "prompt": "p0",
        "layer": layer,
        "kv_head": kv_head,
    }
    row |= {
        "method": method,
        "params": json.dumps(params or {}, sort_keys=True),
        "budget_tokens": budget,
        "seed": seed,
    }
    row["given"] = json.dumps(params or {} if given is None else given, sort_keys=True)
    row |= {"n_prefill": PREFILL, "n_tokens": TOKENS, "n_queries": TOKENS - PREFILL, "status": "ok"}
    row |= {"rel_err_out_mean": rel_err, "rel_err_out_p50": rel_err * 0.8, "eps_spectral_mean": rel_err / 9}
    row |= {"partition_err_mean": rel_err / 3, "kept_mass_mean": 1 - rel_err / 3, "peak_kept_tokens": kept}
    row |= {
        "peak_bytes": (kept + 1) * ROW_BYTES,
        "aux_bytes": 8 * kept,
        "total_bytes": (kept + 1) * ROW_BYTES,
    }
    row |= {"full_bytes": TOKENS * ROW_BYTES, "n_evictions": 0 if oracle or budget == "" else TOKENS - budget}
    row |= changes
    row["key"] = changes.get("key", hashlib.sha256(repr(row).encode()).hexdigest()[:16])
    return row


def failed_row(message="empty denominator", status="failed", **place):
    """A failed cell: every measure is an empty field."""
    row = fake_row(**place)
    identity = COLUMNS[: COLUMNS.index("n_queries") + 1]
    return {name: row[name] if name in identity else "" for name in COLUMNS} | {
        "given": row["given"],
        "status": status,
        "error": message,
    }


def fake_rows():
    """A budget sweep of several methods over heads, layers and seeds, shaped like a real run."""
    random = np.random.default_rng(7)
    places = [(layer, head) for layer in LAYERS for head in range(KV_HEADS)]
    difficulty = {place: np.exp(random.normal(0, 0.35)) for place in places}
    rows = []
    for layer, head in places:
        at = {"layer": layer, "kv_head": head}
        rows.append(fake_row("exact", budget="", rel_err=0.0, **at))
        rows.append(
            fake_row(
                "subgen_stream", budget="", rel_err=0.9 * difficulty[layer, head], peak_kept_tokens=2600, **at
            )
        )
        for method, params, start, decay, seeds in METHODS:
            for budget in BUDGETS:
                error = start * (budget / 64) ** -decay * difficulty[layer, head]
                for seed in range(seeds):
                    noisy = error * np.exp(random.normal(0, 0.05))
                    resolved = params | ({"recent": budget // 2} if method == "h2o" else {})
                    rows.append(fake_row(method, resolved, budget, seed, rel_err=noisy, given=params, **at))
    return rows


FAKE_META = {
    "kvreplay_version": "0.1.0",
    "git_commit": "0123abc",
    "created_utc": "2026-01-02T03:04:05Z",
    "isa": "avx2",
    "versions": {"hdf5": "1.10.8", "compiler": "g++ 12.2.0"},
    "config": {"schema": 1, "name": "smol-budget-sweep", "budget": {"tokens": list(BUDGETS)}},
    "traces": [{"trace_id": TRACE, "path": "traces/samples/smollm2-135m.h5"}],
}


def write_results(folder, rows, meta=None, columns=(*COLUMNS, "given")):
    """Writes OUT/results.csv and, with `meta`, OUT/results.meta.json; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    if meta is not None:
        (folder / "results.meta.json").write_text(json.dumps(meta))
    return folder


def test_the_fake_results_hold_exactly_the_columns_of_the_contract(tmp_path):
    write_results(tmp_path, fake_rows(), FAKE_META, COLUMNS)
    table = pd.read_csv(tmp_path / "results.csv")
    assert list(table.columns) == COLUMNS
    assert len(COLUMNS) == 42
    assert not table["key"].duplicated().any()
