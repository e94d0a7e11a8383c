"""BalanceKV's halvings compared with samples of equal size: error by layer and kept share of the middle.

The sweep's parameters follow from the trace (`derived_overrides`): the last `scored` rows are the queries,
the first tokens are the sinks, the budgets are sinks + floor(M/2^T). Uniform samples of step `tail` end with
as many tokens of weight 1 as the walks of step `run`, which is only known after step `run`.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ...data.extras import extra
from ...drawing.budget_axes import set_error_axis
from ...drawing.panel_grid import small_panels
from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, PAGE_WIDTH, styles_for
from ...errors import FigureError
from ...stats.paired import lower_everywhere
from ...stats.words import replay_note


@dataclass(frozen=True)
class Sizes:
    """Numbers of tokens: prompt, scored rows after it, sinks; and budgets sinks + floor(M/2^T) by T."""

    prompt: int
    scored: int
    sinks: int
    budgets: list[int]

    def uniform(self, rounds, tail):
        """The uniform sample that keeps as many tokens as `rounds` halvings, `tail` of them exactly."""
        return {"name": "uniform", "sinks": self.sinks, "recent": 0, "rounds": rounds, "tail": tail}


def sizes(run):
    """The Sizes from `figure.options` scored, sinks and rounds on the trace's shortest prompt.

    Sinks are at most a sixteenth of the tokens: 256 of 4096, 64 of 1024.
    """
    trace = run.recorded()
    tokens = min(trace.tensor(p, trace.layers(p)[0], "k").shape[1] for p in trace.prompts())
    scored = min(run.option("scored"), tokens // 2)
    sinks = min(run.option("sinks"), tokens // 16)
    middle = tokens - scored - sinks
    return Sizes(tokens - scored, scored, sinks, [sinks + middle // 2**t for t in run.option("rounds")])


METRICS = {
    "rel_err_out_mean": "|z - o| / |o|",
    "rel_err_clamped": "|z - o| / |max(o, 0)|, the release's metric",
}
LABELS = {"rel_err_out_mean": "mean error", "rel_err_clamped": "clamped error"}
WALK, COIN, UNIFORM = "balancekv", "coin (gamma 0)", "uniform"
DEN_W = ", den w"  # the numerator's weights are also in the denominator; the release uses 2^T there
TAILS = {WALK: "uniform, tail of balancekv", COIN: "uniform, tail of the coin"}
SOURCE = "BalanceKV, Fig. 2 and Section 4.1"
SPREAD = 0.62  # share of the step between two sizes over which the methods of one size are spread
PANEL_HEIGHT = 1.45  # inches
ACROSS = {COLUMN_WIDTH: (2,), PAGE_WIDTH: (4, 3)}


def derived_overrides(run, step):
    """Prompt length, sinks, budgets; for step `tail`, the samples that are paired with step `run`."""
    found = sizes(run)
    if step.name == "tail":
        tails = tails_of(run.frame("run"))
        if any(rounds < 1 for rounds, _ in tails.values()):
            raise FigureError(
                f"{run.config.path}: sizes follow from the trace's {found.prompt + found.scored} tokens,"
                " and with one of them nothing is halved: do not set replay.tokens and replay.prefill for"
                " this figure"
            )
        return {
            "replay.prefill": found.prompt,
            "budget.tokens": [found.budgets[-1]],
            "methods": [found.uniform(rounds, tail) for rounds, tail in sorted(set(tails.values()))],
        }
    protected = {
        f"methods.{index}.{name}": found.sinks
        for index, method in enumerate(run.config.sweep.get("methods", []))
        for name in ("sinks", "recent")
        if isinstance(method, dict) and method.get(name)
    }
    return {"replay.prefill": found.prompt, "budget.tokens": found.budgets} | protected


def tails_of(frame):
    """{(name, rounds): (rounds, tail)}: tokens of weight 1 after the walk, mean over heads and seeds."""
    rows = named(frame)
    rows = rows[rows["name"].isin(TAILS) & (rows["status"] == "ok")]
    means = rows.assign(tail=extra(rows, "tail"), rounds=extra(rows, "rounds")).groupby(["name", "rounds"])
    return {(n, int(r)): (int(r), round(tail)) for (n, r), tail in means["tail"].mean().items()}


def named(frame):
    """`frame` with the column `name`: the name of a method in this figure."""
    return frame.assign(name=[_name(m, p) for m, p in zip(frame["method"], frame["params"], strict=True)])


def _name(method, params):
    if method != "balancekv":
        return method
    name = COIN if params.get("gamma") == 0 else WALK
    return name + (DEN_W if params.get("den") == "w" else "")


def paired_rows(run):
    """All rows with `name`, `rounds` and `tail`; tail-matched samples have the names in TAILS."""
    frame = run.frame("run")
    budgets = sorted(frame["budget_tokens"].dropna().astype(int).unique(), reverse=True)
    rows = named(frame).assign(
        rounds=[budgets.index(int(b)) + 1 for b in frame["budget_tokens"]], tail=extra(frame, "tail")
    )
    samples = run.frame("tail")
    samples = samples.assign(**{n: [p[n] for p in samples["params"]] for n in ("rounds", "tail")})
    matched = [
        samples[(samples["rounds"] == rounds) & (samples["tail"] == tail)].assign(name=TAILS[walk])
        for (walk, _), (rounds, tail) in tails_of(frame).items()
    ]
    return pd.concat([rows, *matched], ignore_index=True)


def averages(rows, metric):
    """Per layer, rounds and name: mean over heads and seeds, and deviation over seeds of the mean over
    heads."""
    used = rows[(rows["status"] == "ok") & rows[metric].notna()]
    by = ["layer", "rounds", "name"]
    seeds = used.groupby([*by, used["seed"].fillna(0)])[metric].mean().groupby(by)
    table = pd.DataFrame({"mean": seeds.mean(), "sd_over_seeds": seeds.std(ddof=1), "n_seeds": seeds.size()})
    cells = used.groupby(by)
    table["n_heads"] = cells[["prompt", "kv_head"]].apply(lambda c: len(c.drop_duplicates()))
    table["kept_tokens"], table["tail"] = cells["peak_kept_tokens"].mean(), cells["tail"].mean()
    return table.reset_index().assign(metric=metric)


def data(run):
    """(all rows by name, {metric: averages by layer, rounds and name})."""
    rows = paired_rows(run)
    shown = [metric for metric in METRICS if metric in rows and rows[metric].notna().any()]
    return rows, {metric: averages(rows, metric) for metric in shown}


def draw(run, found):
    rows, tables = found
    return [_picture(table, metric, rows, _note(run, rows, metric)) for metric, table in tables.items()]


def _picture(table, metric, rows, note):
    styles = styles_for(sorted(table["name"].unique()), {COIN, COIN + DEN_W, *TAILS.values()})

    def paint(axes, layer):
        _panel(axes, table[table["layer"] == layer], styles)
        axes.set_title(f"layer {layer}")
        set_error_axis(axes, table["mean"])

    labels, layers = ("kept of the middle", LABELS[metric]), sorted(table["layer"].unique())
    panels = small_panels(paint, layers, labels, note, ACROSS, PANEL_HEIGHT)
    clamped = "" if metric == "rel_err_out_mean" else ", clamped metric"
    return Picture(
        f"Relative error{clamped} by layer and size", table, panels, _caption(rows, metric), metric
    )


def _panel(axes, table, styles):
    names = sorted(styles)
    for place, name in enumerate(names):
        mine = table[table["name"] == name].sort_values("rounds")
        x = mine["rounds"] + SPREAD * (place / max(1, len(names) - 1) - 0.5)
        style = styles[name]
        bars = mine["sd_over_seeds"].fillna(0).to_numpy()
        low = np.minimum(bars, 0.9 * mine["mean"])  # a logarithmic axis cannot show zero
        axes.errorbar(
            x,
            mine["mean"],
            (low, bars),
            fmt=style.marker,
            color=style.colour,
            ms=2.6,
            elinewidth=0.8,
            label=name,
        )
    rounds = sorted(table["rounds"].unique())
    axes.set_xticks(rounds, [f"1/{2**r}" for r in rounds])
    axes.grid(axis="x", visible=False)


def _note(run, rows, metric):
    found = sizes(run)
    seeds, queries = rows.groupby("name")["seed"].nunique().max(), rows["n_queries"].max()
    return (
        f"{replay_note(rows)} Metric: {METRICS[metric]}, mean of ratios over {queries} of the last"
        f" {found.scored} rows and the heads. The first {found.sinks} tokens are protected (subgen has no"
        f" sinks: its centres start at token 0), the {found.scored} newest are exact. Bars: standard"
        f" deviation, over {seeds} seeds, of the mean over heads (deterministic methods have none). Black and"
        " grey: additional controls, not in the paper."
    )


def _caption(rows, metric):
    tails = rows[rows["name"].isin([WALK, COIN, *TAILS.values()])]
    realised = tails.groupby(["name", "rounds"])["tail"].mean().unstack()
    words = [f"{name} " + " ".join(f"{v:.0f}" for v in values) for name, values in realised.iterrows()]
    return (
        f"{METRICS[metric]}. Exact tail (last middle tokens of weight 1, mean over heads and seeds, for T ="
        f" {' '.join(map(str, realised.columns))}): {'; '.join(words)}. The tail-matched samples use that"
        " mean for all heads and seeds. They and the coins show which part of a gain is due to the walk."
        " With the release's denominator (2^T for all) a long tail biases the output, so walk and coin are"
        " compared with equal denominators. The clamped metric divides by the positive part of the exact"
        " output only and is about sqrt(2) larger."
    )


def claims(_run, found):
    rows, _ = found
    pairs = (
        (WALK, UNIFORM, "BalanceKV has a lower error than uniform sampling of as many tokens"),
        (WALK, TAILS[WALK], "BalanceKV has a lower error than a uniform sample with its exact tail"),
        (WALK, COIN, "BalanceKV's walk has a lower error than fair coins with equal truncation"),
        (WALK + DEN_W, COIN + DEN_W, "The walk has a lower error than fair coins, den w in both"),
    )
    rounds = sorted(rows["rounds"].unique())
    return [
        lower_everywhere(claim, SOURCE, [(f"1/{2**t}", *_two(rows, t, pair)) for t in rounds], "every size")
        for *pair, claim in pairs
    ]


def _two(rows, rounds, names):
    at = rows[rows["rounds"] == rounds]
    return [at[at["name"] == name] for name in names]
