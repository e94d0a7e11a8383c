"""A trace with prescribed attention rows: unit vectors as keys and values, logarithms as queries.

With scale 1 the logit of token i in row t is ln p_t(i), so the softmax of row t is p_t; over any subset of
kept tokens it is p_t renormalised, and the output of a step is the vector of its probabilities.
"""

import h5py
import numpy as np


def write_toy_trace(path, rows):
    """`rows[t]`: the probabilities of row t over tokens 0..t, positive, summing to 1. Raises ValueError."""
    n = len(rows)
    if n == 0:
        raise ValueError("rows of probabilities are missing")
    for t, row in enumerate(rows):
        if not _is_row(row) or len(row) != t + 1 or not abs(sum(row) - 1) <= 1e-9:
            raise ValueError(f"row {t} must hold {t + 1} positive numbers that sum to 1, not {row}")
    queries = np.zeros((1, n, n), np.float32)
    for t, row in enumerate(rows):
        queries[0, t, : t + 1] = np.log(row)
    unit = np.eye(n, dtype=np.float32)[None]
    with h5py.File(path, "w", libver=("earliest", "v110")) as file:
        facts = {"n_layers": 1, "n_q_heads": 1, "n_kv_heads": 1, "head_dim": n, "v_head_dim": n}
        file.attrs.update({"kvreplay_schema": 1, "complete": 1, "model": "written scores", **facts})
        prompt = file.create_group("prompts/0")
        prompt["tokens"] = prompt["position_ids"] = np.arange(n, dtype=np.int32)
        prompt.attrs.update({"n_prompt": n, "n_generated": 0})
        layer = prompt.create_group("layers/000")
        layer["q"], layer["k"], layer["v"] = queries, unit, unit
        layer.attrs.update({"scaling": 1.0, "rope": "none"})


def _is_row(row):
    return isinstance(row, list | tuple) and all(isinstance(p, int | float) and p > 0 for p in row)
