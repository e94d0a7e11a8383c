"""SubGen's Theorem 1: measured epsilon against the bound, stored rows against n, required rows."""

from functools import partial

import numpy as np

from ...data.extras import extra
from ...drawing.log_ticks import plain_log
from ...drawing.panel_grid import draw_empty_note
from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, DASHED, DOTTED, finish, new_figure, styles_for
from ...errors import FigureError
from ...stats.intervals import UNIT, mean_interval, over_units, used_rows
from ...stats.verdict import UNDECIDED, Verdict, of_counts
from ...stats.words import replay_note

MEASURES = (
    "eps_spectral_mean",
    "eps_spectral_p99",
    "eps_spectral_max",
    "rel_err_out_mean",
    "peak_kept_tokens",
)
THEORY = ("bound_log10_tokens", "bound_holds", "bound_slack")


def cells(frame):
    """One row per (head, epsilon, delta_rel), seeds averaged; `ideal` is sqrt(d/s) for the s that was
    used."""
    rows = used_rows(frame)
    rows = rows[[m == "subgen_stream" and {"epsilon", "delta_rel"} <= set(p) and p["epsilon"] is not None
                 for m, p in zip(rows["method"], rows["params"], strict=True)]]  # fmt: skip
    given = {name: [p[name] for p in rows["params"]] for name in ("epsilon", "delta_rel")}
    rows = rows.assign(**given, **{n: extra(rows, n) for n in ("s", "t", "clusters", "bound_capped")})
    rows = rows.assign(**{name: rows.get(name, np.nan) for name in (*MEASURES, *THEORY)})
    measures = [*MEASURES, *THEORY, "s", "t", "clusters", "bound_capped", "n_tokens"]
    return rows.groupby([*UNIT, "delta_rel", "epsilon"])[measures].mean().reset_index()


def averages(rows):
    """For each (delta_rel, epsilon): means over heads, the largest maximum, the interval of the mean
    epsilon."""
    groups = rows.groupby(["delta_rel", "epsilon"])
    table = groups[[*MEASURES, *THEORY, "s", "t", "clusters", "bound_capped", "n_tokens"]].mean()
    bands = {key: mean_interval(over_units(group, "eps_spectral_mean"))[1:] for key, group in groups}
    table["low"], table["high"] = np.transpose([bands[key] for key in table.index])
    return table.assign(largest=groups["eps_spectral_max"].max(), n_heads=groups.size()).reset_index()


SURE = 0.99  # the theorem's probability, per query
SOURCE = "SubGen, Theorem 1 and Corollary 1"
HEIGHT = 1.75  # inches


def data(run):
    """(a row per head and setting, means over heads)."""
    rows = cells(run.frame())
    if rows.empty:
        raise FigureError(
            f"{run.config.path}: subgen_theorem needs subgen_stream cells with epsilon and delta_rel"
        )
    return rows, averages(rows)


def draw(run, found):
    rows, table = found
    paint = partial(_figure, rows, table, _note(run.frame(), rows))
    title = "Measured epsilon, stored rows, required rows"
    return [Picture(title, table, paint, _caption(rows), more={"heads": rows})]


def claims(_run, found):
    rows = found[0]
    return [_bound(rows), _memory(rows), _asked(rows)]


def _figure(rows, table, note, width):
    figure, wide = new_figure(width), width > COLUMN_WIDTH
    error, stored, asked = figure.subplots(*((1, 3) if wide else (3, 1)))
    styles = styles_for([f"delta {value:g}" for value in sorted(table["delta_rel"].unique())], set())
    for delta, mine in table.groupby("delta_rel"):
        style = styles[f"delta {delta:g}"]
        line = {"color": style.colour, "marker": style.marker}
        style.band(error, mine["epsilon"], mine["low"], mine["high"])
        error.plot(mine["epsilon"], mine["eps_spectral_mean"], **line)
        error.plot(mine["epsilon"], mine["largest"], **line, linestyle=DOTTED, markerfacecolor="white")
        stored.plot(mine["epsilon"], mine["peak_kept_tokens"] / mine["n_tokens"], **line)
    _bounds(error, rows)
    stored.axhline(1, color="#7A7A7A", linestyle=DASHED)
    for axes in (error, stored):
        axes.set(xscale="log", yscale="log", xlabel="requested epsilon")
        plain_log(axes.xaxis)
        plain_log(axes.yaxis, (1,) if axes is error else (1, 2, 5))
    error.set_ylabel("measured epsilon")
    stored.set_ylabel("stored rows / n")
    _draw_asked(asked, rows, styles)
    handles = [error.plot([], [], color=style.colour, marker=style.marker)[0] for style in styles.values()]
    handles.append(
        error.plot([], [], color="#7A7A7A", marker="o", markerfacecolor="white", linestyle=DOTTED)[0]
    )
    handles.append(error.plot([], [], color="#7A7A7A", linestyle=DASHED)[0])
    handles.append(error.plot([], [], color="#000000")[0])
    names = [
        *(f"{name} x median" for name in styles),
        "largest over all queries",
        "bound (first panel), n (others)",
        "sqrt(d/s)",
    ]
    finish(figure, handles, names, note, HEIGHT if wide else 4.2 * HEIGHT, hspace=0.5, wspace=0.42)
    return figure


def _bounds(axes, rows):
    """Draws the bound e = epsilon and the ideal sqrt(d/s), which is above it where s was capped."""
    s = rows.groupby("epsilon")["s"].mean()
    dim = (rows["s"] * rows["epsilon"] ** 2)[rows["s"] < rows["s"].max()].median()
    axes.plot(s.index, s.index, color="#7A7A7A", linestyle=DASHED)
    if np.isfinite(dim):
        axes.plot(s.index, np.sqrt(dim / s), color="#000000", linewidth=0.8)


def _draw_asked(axes, rows, styles):
    """Draws log10 of the rows that the theorem requires at the largest epsilon (its lowest demand), by
    layer."""
    easiest = rows[(rows["epsilon"] == rows["epsilon"].max()) & rows["bound_log10_tokens"].notna()]
    if easiest.empty:
        return draw_empty_note(axes)
    layers = sorted(easiest["layer"].unique())
    for place, (delta, mine) in enumerate(easiest.groupby("delta_rel")):
        style = styles[f"delta {delta:g}"]
        x = [layers.index(layer) + 0.22 * (place - 1) for layer in mine["layer"]]
        axes.plot(x, mine["bound_log10_tokens"], style.marker, color=style.colour, markersize=3)
    axes.axhline(np.log10(rows["n_tokens"].max()), color="#7A7A7A", linestyle=DASHED)
    axes.set(ylim=(0, None), xlabel="layer", ylabel="log10 of required rows")
    axes.set_xticks(range(len(layers)), layers)
    return None


def _note(frame, rows):
    return (
        f"{replay_note(frame)} Epsilon: ||z - o|| / (||x|| ||V||), spectral norm; means over queries and"
        " heads, bands 95 % over layers; curves of several delta may coincide. Last panel: one mark"
        " per head, at the largest epsilon, which requires the fewest rows. t and s follow from the theorem"
        f" with constants 1; t is cut to {rows['t'].max():.0f}, s to {rows['s'].max():.0f}."
    )


def _caption(rows):
    means, asked = (
        rows.groupby(["delta_rel", "epsilon"])["eps_spectral_mean"].mean(),
        rows["bound_log10_tokens"],
    )
    n = int(rows["n_tokens"].max())
    return (
        f"Mean epsilon {means.min():.3f} to {means.max():.3f}, largest over all queries"
        f" {rows['eps_spectral_max'].max():.2g}; stored rows {rows['peak_kept_tokens'].min():.0f} to"
        f" {rows['peak_kept_tokens'].max():.0f} where n = {n}; relative error of the output"
        f" {rows['rel_err_out_mean'].min():.2f} to {rows['rel_err_out_mean'].max():.2f} by head. The theorem"
        f" requires 10^{asked.min():.0f} to 10^{asked.max():.0f} rows; t or s was cut in"
        f" {rows['bound_capped'].mean():.0%} of the settings. delta_rel is computed from all keys, including"
        f" future ones.{_slack(rows)}"
    )


def _slack(rows):
    slack = rows["bound_slack"].dropna()
    return f" Requested over measured epsilon: {slack.min():.2g} to {slack.max():.2g}." if len(slack) else ""


def _bound(rows):
    claim = "The output's error is within epsilon ||x|| ||V||_op with probability 0.99"
    how = (
        f"share of queries within the bound, per head and setting: all at least {SURE} holds, all below"
        " fails, else mixed; the queries of a head share one draw of the method"
    )
    shares = rows["bound_holds"].dropna()
    if shares.empty:  # the worst query alone can only confirm the claim
        worst = rows["eps_spectral_max"] > rows["epsilon"]
        text = (
            f"no shares in the results; the worst query is outside in {worst.sum()} of {len(rows)} settings"
        )
        return Verdict(claim, SOURCE, how, UNDECIDED, text)
    good = shares >= SURE
    outcome = of_counts(int(good.sum()), len(good))
    text = f"at least {SURE} in {good.sum()} of {len(good)} settings, smallest share {shares.min():.3f}"
    capped = int((rows.loc[shares.index, "bound_capped"] > 0).sum())
    cut = f"; t or s cut below the theorem's value in {capped} of {len(good)}" if capped else ""
    return Verdict(claim, SOURCE, how, outcome, text + cut)


def _memory(rows):
    stored, n = rows["peak_kept_tokens"], rows["n_tokens"]
    text = f"{stored.min():.0f} to {stored.max():.0f} rows where n = {int(n.max())}"
    return _fewer(
        "SubGen stores fewer rows than the exact cache", "peak of stored rows against n", stored < n, text
    )


def _asked(rows):
    asked = rows["bound_log10_tokens"].dropna()
    text = "" if asked.empty else f"10^{asked.min():.1f} to 10^{asked.max():.1f} rows required"
    claim = "The theorem (constants 1) requires fewer rows than the text has"
    less = asked < np.log10(rows.loc[asked.index, "n_tokens"])
    return _fewer(claim, "log10 of m (t + 1) + s against log10 n", less, text)


def _fewer(claim, what, less, text):
    outcome = of_counts(int(less.sum()), len(less))
    how = f"{what}, per head and setting: all below holds, none fails, else mixed"
    return Verdict(claim, SOURCE, how, outcome, f"below n in {less.sum()} of {len(less)} settings; {text}")
