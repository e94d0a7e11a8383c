"""H2O Fig. 2c: error without the heavy hitters, compared with dropping as many random or light tokens."""

from ...drawing.curve_axes import ERROR, Axis
from ...drawing.curves import Sheet, curves_picture
from ...stats.claims import claims_judged
from ...stats.intervals import head_points
from ...stats.words import BAND_NOTE, replay_note

METHOD = "drop_heavy"
ORDER = ("heavy", "random", "light")


def data(run):
    """Means over heads of `drop_heavy`, a panel for each number of protected sinks."""
    rows = _rows(run)
    rows = rows.assign(**{name: [params[name] for params in rows["params"]] for name in ("drop", "sinks")})
    dropped = 1 - rows["budget_tokens"].astype(float) / rows["n_prefill"].astype(float)
    points = head_points(rows.assign(dropped=dropped), "rel_err_out_mean", ["sinks", "drop", "dropped"])
    points["x"] = 100 * points["dropped"]
    points["label"] = points["drop"] + " tokens dropped"
    points["panel"] = [panel_text(sinks) for sinks in points["sinks"]]
    return points.sort_values(["sinks", "drop", "x"], key=_in_order).reset_index(drop=True)


def draw(run, points):
    sheet = Sheet(
        title="Error without the heavy hitters",
        points=points,
        x=Axis("prompt tokens dropped [%]", "budget", ticks={x: f"{x:.2g}" for x in set(points["x"])}),
        y=Axis(ERROR, "error"),
        note=f"{replay_note(_rows(run))} One-shot cut after the prompt, all later tokens kept. {BAND_NOTE}",
        caption=caption(points),
    )
    return [curves_picture(sheet)]


def claims(run, _points):
    return claims_judged(run, run.frame())


def _rows(run):
    frame = run.frame()
    return frame[frame["method"] == METHOD]


def panel_text(sinks):
    return "all tokens may be dropped" if sinks == 0 else f"the first {sinks} tokens are kept"


def _in_order(column):
    return column.map(ORDER.index) if column.name == "drop" else column


def caption(points):
    """The errors at the smallest share of dropped tokens."""
    texts = []
    for panel, rows in points.groupby("panel", sort=False):
        least = rows[rows["x"] == rows["x"].min()]
        errors = ", ".join(f"{row['drop']} {row['y']:.3g}" for _, row in least.iterrows())
        texts.append(f"{panel}, {least['x'].iloc[0]:.2g} % dropped: {errors}")
    return (
        "Mean relative error (mean of ratios) over heads. "
        + "; ".join(texts)
        + ". Heavy: by the attention received from all"
        " prompt rows. The first token is usually the heaviest, so the second panel keeps the sinks."
    )
