"""Results of subgen_stream by what was asked of it: epsilon and the radius of a cluster."""

import numpy as np

from ..data.extras import extra
from .stats import UNIT, mean_interval, used_rows

MEASURES = (
    "eps_spectral_mean",
    "eps_spectral_p99",
    "eps_spectral_max",
    "rel_err_out_mean",
    "peak_kept_tokens",
)
THEORY = ("bound_log10_tokens", "bound_holds", "bound_slack")


def cells(frame):
    """One row per (head, epsilon, delta_rel), seeds averaged; `ideal` is sqrt(d/s) of the s that was used."""
    rows = used_rows(frame)
    rows = rows[[m == "subgen_stream" and {"epsilon", "delta_rel"} <= set(p) and p["epsilon"] is not None
                 for m, p in zip(rows["method"], rows["params"], strict=True)]]  # fmt: skip
    given = {name: [p[name] for p in rows["params"]] for name in ("epsilon", "delta_rel")}
    rows = rows.assign(**given, **{n: extra(rows, n) for n in ("s", "t", "clusters", "bound_capped")})
    rows = rows.assign(**{name: rows.get(name, np.nan) for name in (*MEASURES, *THEORY)})
    measures = [*MEASURES, *THEORY, "s", "t", "clusters", "bound_capped", "n_tokens"]
    return rows.groupby([*UNIT, "delta_rel", "epsilon"])[measures].mean().reset_index()


def averages(rows):
    """Per (delta_rel, epsilon): means over heads, the largest maximum, the interval of the mean epsilon."""
    groups = rows.groupby(["delta_rel", "epsilon"])
    table = groups[[*MEASURES, *THEORY, "s", "t", "clusters", "bound_capped", "n_tokens"]].mean()
    bands = {key: mean_interval(group["eps_spectral_mean"].to_numpy())[1:] for key, group in groups}
    table["low"], table["high"] = np.transpose([bands[key] for key in table.index])
    return table.assign(largest=groups["eps_spectral_max"].max(), n_heads=groups.size()).reset_index()
