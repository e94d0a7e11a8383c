"""H2O Fig. 2b: sorted accumulated attention scores, compared with uniform causal attention."""

from itertools import product

import numpy as np
import pandas as pd

from ...drawing.curve_axes import Axis
from ...drawing.curves import Sheet, curves_picture
from ...stats.clustering import attention_note, scores_of
from ...stats.intervals import mean_interval, over_units
from ...stats.verdict import HOLDS, MIXED, RULE, Verdict, above

NULL = "uniform causal attention"
SHARES = {
    "heads": "query heads, each separately",
    "share": "query heads of a kv head together",
    "null": NULL,
    "token_0": "token 0 alone",
}
TOP = (0.01, 0.05, 0.2)
DRAWN_RANKS = 60


def data(run):
    """(cluster table, {head: its scores}, shares of the top tokens)."""
    table = run.cluster()
    scores = scores_of(table)
    return table, scores, shares_of(scores, head_shares(table), null_shares(table))


def draw(_run, found):
    """Sorted scores (log-log), and the share of the top tokens by layer."""
    table, scores, shares = found
    return [tails(table, scores), tops(table, shares)]


def claims(_run, found):
    table, _, shares = found
    return [heavy_tail_verdict(shares), power_law_verdict(table)]


def null_scores(n):
    """Scores A of n tokens if every row i gives 1/(i+1) to each of its tokens; they fall with the token's
    index."""
    return np.cumsum(1 / np.arange(n, 0, -1))[::-1]


def sorted_share(scores):
    """Scores in descending order, divided by their sum."""
    return np.sort(scores)[::-1] / scores.sum()


def top_share(scores, top):
    """Share of the sum in the largest scores: floor(top * n) of them, at least one, as the program counts."""
    return float(sorted_share(scores)[: max(1, int(top * len(scores)))].sum())


def head_shares(table):
    """{(prompt, layer, kv_head, top): mean over the query heads, each with its own scores}, if available."""
    rows = table[table["measure"] == "top_share_heads"]
    values = rows.assign(x=rows["x"].astype(float), value=rows["value"].astype(float))
    return values.groupby(["prompt", "layer", "kv_head", "x"])["value"].mean().to_dict()


def null_shares(table):
    """{(prompt, layer, kv_head, top): share under uniform attention over the tokens that the recorded rows
    may see}."""
    rows = table[table["measure"] == "top_share_null"]
    rows = rows.assign(top=rows["param"].astype(float), value=rows["value"].astype(float))
    return rows.set_index(["prompt", "layer", "kv_head", "top"])["value"].to_dict()


def shares_of(scores, of_heads, of_null):
    """One row per (prompt, layer, kv head, top): the share for the kv head (query heads summed), the mean
    over its query heads (`heads`), the null's share, and that of token 0."""
    return pd.DataFrame(
        {"prompt": prompt, "layer": layer, "kv_head": head, "top": top, "share": top_share(a, top)}
        | {"heads": of_heads.get((prompt, layer, head, top), np.nan)}
        | {"null": _null(of_null, (prompt, layer, head, top), len(a)), "token_0": a[0] / a.sum()}
        for (prompt, layer, head), a in scores.items()
        for top in TOP
    )


def _null(of_null, place, n):
    """The program's value, which covers strided queries and windows; else that of all rows of a full
    prefix."""
    return of_null[place] if place in of_null else top_share(null_scores(n), place[-1])


def tails(table, scores):
    """Means over heads of the sorted shares, at ranks evenly spaced on a logarithmic axis."""
    frames, longest = [], max(len(a) for a in scores.values())
    for layer in sorted({layer for _, layer, _ in scores}):
        curves = [sorted_share(a) for (_, at, _), a in scores.items() if at == layer]
        length = min(len(curve) for curve in curves)
        frames.append(curve_rows(f"layer {layer}", np.mean([curve[:length] for curve in curves], axis=0)))
    frames.append(curve_rows(NULL, sorted_share(null_scores(longest))))
    sheet = Sheet(
        title="Accumulated attention scores, sorted",
        points=pd.concat(frames, ignore_index=True),
        x=Axis("rank of the token", "log"),
        y=Axis("share of all attention", "log"),
        note=f"{attention_note(table)} Each kv head's scores (column sums over all rows and its query heads)"
        " sorted and divided by their sum; means over heads and texts.",
        caption="A straight line would be a power law; a high R² alone does not prove one. The curve of"
        f" {NULL} falls because early tokens are seen by more rows.",
        markers=False,
    )
    return curves_picture(sheet, "tail")


def curve_rows(label, shares):
    ranks = np.unique(np.geomspace(1, len(shares), DRAWN_RANKS).round().astype(int))
    return pd.DataFrame({"panel": "", "label": label, "x": ranks, "y": shares[ranks - 1]})


def tops(table, shares):
    """The share of the top 1, 5 and 20 % by layer, with the null's share."""
    layers = sorted(shares["layer"].unique())
    means = shares.groupby(["top", "layer"], as_index=False)[list(SHARES)].mean()
    frames = []
    for (top, name), label in ((pair, SHARES[pair[1]]) for pair in product(TOP, SHARES)):
        rows = means[means["top"] == top].dropna(subset=[name])
        x = [layers.index(layer) for layer in rows["layer"]]
        at = {"panel": f"top {100 * top:g} % of tokens", "label": label, "layer": rows["layer"], "x": x}
        frames.append(pd.DataFrame(at | {"y": rows[name], "ratio_to_null": rows[name] / rows["null"]}))
    sheet = Sheet(
        title="Attention on the top tokens",
        points=pd.concat(frames, ignore_index=True),
        x=Axis("layer (0-based)", ticks={i: str(layer) for i, layer in enumerate(layers)}),
        y=Axis("share of all attention", limits=(0, 1.03)),
        note=f"{attention_note(table)} Means over kv heads and texts.",
        caption=tops_caption(means),
    )
    return curves_picture(sheet, "top")


def tops_caption(means):
    texts = []
    for top, rows in means.groupby("top"):
        for name in ("heads", "share"):
            used = rows.dropna(subset=[name])
            values = ", ".join(f"L{row['layer']:.0f} {row[name]:.2f}" for _, row in used.iterrows())
            texts += [f"top {100 * top:g} %, {SHARES[name]}: {values}"] * (len(used) > 0)
        texts.append(f"{NULL} {rows['null'].mean():.2f}")
    first = means[means["top"] == TOP[0]]
    sink = ", ".join(f"L{row['layer']:.0f} {row['token_0']:.2f}" for _, row in first.iterrows())
    return "Share of all attention. " + "; ".join(texts) + f"; token 0 alone: {sink}."


def heavy_tail_verdict(shares):
    """Heavy-tailed means a larger share than the null's, over heads, for the top 20 %."""
    rows = shares[shares["top"] == TOP[-1]]
    rows = rows.assign(share=rows["heads"].fillna(rows["share"]))
    beyond = over_units(rows, "share") - over_units(rows, "null")
    by_layer = beyond.groupby(level="layer").mean()
    excess, low, high = mean_interval(beyond)
    outcome = above([(low, high)])
    if outcome == HOLDS and not (by_layer > 0).all():
        outcome = MIXED
    return Verdict(
        claim="a small set of tokens receives most attention in every layer",
        source="H2O Fig. 2b, section 3",
        how="share of the top 20 % minus that under uniform causal attention, claimed above zero:"
        f" {RULE}; also mixed if the mean of a layer is below",
        outcome=outcome,
        numbers=f"excess {excess:+.2f} [{low:+.2f}, {high:+.2f}]; "
        + ", ".join(f"L{layer} {value:+.2f}" for layer, value in by_layer.items()),
    )


def power_law_verdict(table):
    """Whether a straight line fits better on log-log axes than on log-linear axes."""
    values = {
        name: table[table["measure"] == name].set_index(["prompt", "layer", "kv_head"])["value"].astype(float)
        for name in ("log_log_r2", "exponential_r2", "log_log_slope")
    }
    more, low, high = mean_interval((values["log_log_r2"] - values["exponential_r2"]).dropna())
    return Verdict(
        claim="sorted scores fall like a power of the rank rather than exponentially",
        source="H2O Fig. 2b",
        how=f"R² of the log-log fit minus R² of the exponential fit, claimed above zero: {RULE};"
        " this compares two fits and does not establish a power law",
        outcome=above([(low, high)]),
        numbers=f"R² {values['log_log_r2'].mean():.2f} against {values['exponential_r2'].mean():.2f},"
        f" difference {more:+.2f} [{low:+.2f}, {high:+.2f}]; slope {values['log_log_slope'].mean():.2f}",
    )
