"""Error and size against a guaranteed epsilon, for methods whose size follows from it."""

import numpy as np
import pandas as pd

from ...data.extras import extra
from ...errors import FigureError
from ...stats.fits import slope
from ...stats.intervals import mean_interval, unit_means, used_rows

# Method: the left side of its theorem, the exponent of memory in epsilon, the source (SubGen: t and s grow as
# eps^-2; BalanceKV: t grows as eps^-1).
THEOREMS = {
    "subgen_stream": ("eps_spectral", -2.0, "SubGen, Theorem 1"),
    "balancekv_stream": ("eps_frobenius", -1.0, "BalanceKV, Theorem 3.1"),
}
# Settings that distinguish curves; t, s and batch are swept with epsilon.
SETTINGS = {"subgen_stream": ("delta", "delta_rel"), "balancekv_stream": ("on_fail",)}
CONSTANTS = ("c_t", "c_s")
SIZE_SLACK = 0.01  # tolerance of a log10, because t and s are rounded up
MEASURES = ["measured", "total_bytes", "measured_max", "capped", "log10_theory", "held", "full_bytes"]


def swept(frame, where):
    """The used rows that have an epsilon and a theorem. Added columns: `epsilon`; `measured`, `measured_max`,
    the left side of the theorem; `capped`, 1 if fewer rows are held than the theorem requires;
    `log10_theory`, the required rows; `held`, the rows of the cache at its peak; `curve`, the settings that
    distinguish curves.

    Raises FigureError, which begins with `where`, for fewer than two values of epsilon.
    """
    rows = used_rows(frame)
    rows = rows[rows["method"].isin(THEOREMS)]
    epsilon = np.array([params.get("epsilon") or np.nan for params in rows["params"]], dtype=float)
    rows = rows.assign(epsilon=epsilon)[np.isfinite(epsilon)]
    if rows["epsilon"].nunique() < 2:
        known = " or ".join(THEOREMS)
        raise FigureError(f"{where}: epsilon_sweep needs at least two values of epsilon, of {known}")
    return rows.assign(
        measured=_left_side(rows, "mean"),
        measured_max=_left_side(rows, "max"),
        capped=_capped(rows),
        log10_theory=rows["bound_log10_tokens"],
        held=rows["peak_attended_tokens"],
        curve=[curve_name(*pair) for pair in zip(rows["method"], rows["params"], strict=True)],
    )


def _left_side(rows, ending):
    """eps_spectral or eps_frobenius of every row, as in its method's theorem."""
    spectral = rows["method"].map(lambda method: THEOREMS[method][0]) == "eps_spectral"
    return rows[f"eps_spectral_{ending}"].where(spectral, rows[f"eps_frobenius_{ending}"])


def _capped(rows):
    """Whether a cell was capped: as the run reports, or by its sizes."""
    said = extra(rows, "bound_capped")
    fewer = np.log10(rows["peak_attended_tokens"]) < rows["bound_log10_tokens"] - SIZE_SLACK
    return np.where(np.isfinite(said), said, fewer)


def curve_name(method, params):
    """The method, its SETTINGS, and the theory's constants that are not 1."""
    shown = [name for name in SETTINGS.get(method, ()) if params.get(name) is not None]
    shown += [name for name in CONSTANTS if params.get(name, 1) != 1]
    return " ".join([method, *(f"{name}={params[name]}" for name in shown)])


def points(rows, step):
    """A row per epsilon of one curve: means over heads with intervals, and the slopes of the whole curve."""
    by_epsilon = unit_means(rows, MEASURES, ["epsilon"]).groupby("epsilon", sort=True)
    table = pd.DataFrame([(epsilon, *_means(units)) for epsilon, units in by_epsilon], columns=_COLUMNS)
    for name, fitted in _slopes(rows).items():
        values = (fitted.value, fitted.low, fitted.high) if fitted else (np.nan,) * 3
        table[[f"{name}_slope", f"{name}_slope_low", f"{name}_slope_high"]] = values
    method = rows["method"].iloc[0]
    return table.assign(
        step=step, curve=rows["curve"].iloc[0], method=method, theory_slope=THEOREMS[method][1]
    )


_COLUMNS = [
    *("epsilon", "error", "error_low", "error_high", "bytes", "bytes_low", "bytes_high"),
    *("error_max", "capped", "log10_theory", "held", "full_bytes", "n_heads"),
]


def _means(units):
    rest = units[["capped", "log10_theory", "held", "full_bytes"]].mean()
    intervals = *mean_interval(units["measured"]), *mean_interval(units["total_bytes"])
    return *intervals, units["measured_max"].max(), *rest, len(units)


def _slopes(rows):
    return {
        "error": slope(rows, "epsilon", "measured"),
        "bytes": slope(rows, "epsilon", "total_bytes"),
        "bytes_by_error": slope(rows, "measured", "total_bytes", by="epsilon"),
    }


def slope_text(row, name):
    value, low, high = (row[f"{name}_slope{end}"] for end in ("", "_low", "_high"))
    return f"{value:.2f}" + ("" if np.isnan(low) else f" [{low:.2f}, {high:.2f}]")
