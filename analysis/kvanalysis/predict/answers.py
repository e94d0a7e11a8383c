"""Which number of a replay ranks methods as the share of right answers does."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from kvtrace.trace import Trace

from ..data.arrays import held_by_some
from ..data.confirm_csv import RECORDED
from ..data.confirmed import INSTANCE, whole_rows
from ..stats.intervals import used_rows
from ..stats.ranks import drawn_spearmans, method_draws, percentile_intervals, spearmans
from .correlations import mean_without_nan
from .instances import POINT
from .measures import COMPRESSED, GRADIENT, RUN
from .needle_mass import needle_masses
from .retrieval import ENOUGH, group_names, places

FEWEST = 5  # with fewer points no rank correlation is computed
EVERY_TASK = ""  # in place of a group's name: the mean over groups


@dataclass(frozen=True)
class Predictor:
    """A number that may predict which answers are lost; more of it means more lost answers.

    `column`: of `answer_rows`. `needs`: RUN (traces alone), GRADIENT (traces with one), COMPRESSED (measured
    in the compressed run, so it predicts nothing).
    """

    name: str
    words: str
    needs: str = RUN


@dataclass(frozen=True)
class Needle:
    """spans [n, 2]: a prompt's needle tokens; masses: see needle_masses."""

    spans: np.ndarray
    masses: dict


# The simplest first.
PREDICTORS = (
    Predictor("rel_err_out_mean", "relative error, mean"),
    Predictor("cosine_distance", "cosine distance, mean"),
    Predictor("cosine_distance_sq", "squared cosine distance, mean"),
    Predictor("cosine_late", "cosine distance, last third of layers"),
    Predictor("missing_mass", "attention mass missed, mean"),
    Predictor("needle_evicted", "needle's tokens evicted, mean over heads"),
    Predictor("needle_lost", "needle's tokens evicted in every head"),
    Predictor("missing_needle_mass", "attention mass missed on the needle, mean"),
    Predictor("missing_needle_mass_weighed", "attention mass missed on the needle, heads weighed by it"),
    Predictor("predicted_kl", "predicted KL", GRADIENT),
    Predictor("answer_distance", "squared cosine distance at the answer", GRADIENT),
    Predictor("answer_first_order", "first order of the answer's log-odds", GRADIENT),
    Predictor("answer_loss_predicted", "predicted loss of the answer's log-likelihood", GRADIENT),
    Predictor("answer_wrong_predicted", "predicted share of wrong answers", GRADIENT),
    Predictor("kl_mean", "measured KL", COMPRESSED),
    Predictor("answer_loss", "measured loss of the answer's log-likelihood", COMPRESSED),
)
NAMES = [each.name for each in PREDICTORS]
COLUMNS = [
    "group",
    "scope",
    "predictor",
    "needs",
    "spearman",
    "low",
    "high",
    "n_points",
    "n_methods",
    "n_prompts",
]


def answer_rows(frame, confirmation, losses=None):
    """A row for each POINT (trace, prompt, label, budget; seeds averaged) whose answer the model wrote:
    method, oracle, group, place, n_prefill, wrong (1 - score), wrong_full, bytes_share (bytes of the prompt
    after its cut, over those of the full cache), and the PREDICTORS, NaN where unknown.

    frame: `load`'s table of one trace; confirmation: its Confirmed; losses: its predicted Losses, if known.
    """
    rows = whole_rows(confirmation.losses)
    if "answer_correct" not in rows:
        return pd.DataFrame()
    rows = rows[rows["answer_correct"].notna() & (rows["selection"] == RECORDED)]
    if rows.empty:
        return rows
    rows = rows.assign(
        wrong=1 - rows["answer_correct"],
        wrong_full=1 - rows["answer_correct_full"],
        answer_loss=rows["answer_logprob_full"] - rows["answer_logprob"],
        group=group_names(rows["prompt"]),
        place=places(rows),
    )
    rows = rows.merge(_of_cells(frame), on=INSTANCE, how="left").merge(
        _predicted(losses), on=POINT, how="left"
    )
    known = ["bytes_share", *(name for name in NAMES if name in rows)]
    by_point = rows.groupby([*POINT, "method", "oracle", "group", "place", "n_prefill"], dropna=False)
    found = by_point[["wrong", "wrong_full", *known]].mean().reset_index()
    return found.assign(**{name: np.nan for name in NAMES if name not in known})


def _of_cells(frame):
    """INSTANCE and the predictors that its cells give."""
    cells = used_rows(frame)
    cells = cells.assign(cosine_distance=1 - cells["cosine_mean"], missing_mass=1 - cells["kept_mass_mean"])
    last = cells["layer"] >= np.quantile(cells["layer"].unique(), 2 / 3)
    cells["cosine_late"] = cells["cosine_distance"].where(last)
    for name, column in (("missing_needle_mass", "needle_mass"), ("needle_evicted", "needle_kept")):
        if column in cells:
            cells[name] = 1 - cells[column]
    needles = _needles(frame)
    if "missing_needle_mass" in cells:
        cells = _weighed(cells, needles)
    known = [name for name in NAMES if name in cells]
    groups = cells.groupby(INSTANCE, dropna=False)
    found = groups[known].mean()
    found["bytes_share"] = np.nan  # tables of older versions lack these bytes
    if "prompt_bytes" in cells:
        found["bytes_share"] = groups["prompt_bytes"].sum() / groups["prompt_full_bytes"].sum()
    return found.assign(needle_lost=_lost_needles(frame, groups, needles)).reset_index()


def _weighed(cells, needles):
    """The cells with `missing_needle_mass_weighed`, whose mean over an instance's cells weighs heads by the
    full model's mass on the needle."""
    places = zip(cells["trace_id"], cells["prompt"], cells["layer"], cells["kv_head"], strict=True)
    masses = {place: of_prompt.masses for place, of_prompt in needles.items()}
    own = [
        masses.get((trace, prompt), {}).get((layer, head), np.nan) for trace, prompt, layer, head in places
    ]
    weights = pd.Series(own, index=cells.index)
    means = weights.groupby([cells[name] for name in INSTANCE], dropna=False).transform("mean")
    return cells.assign(missing_needle_mass_weighed=cells["missing_needle_mass"] * weights / means)


def _lost_needles(frame, groups, needles):
    """For each group of cells the share of the needle's tokens that no head holds after the prompt; NaN where
    unknown."""
    folders = frame.attrs.get("folders", ())
    kept = Path(folders[0]) / "kept.h5" if len(folders) else None
    if kept is None or not kept.is_file():
        return np.nan
    places = [(place[:2], own["key"]) for place, own in groups]
    return [
        1 - held_by_some(kept, keys, needles[at].spans) if at in needles else np.nan for at, keys in places
    ]


def _needles(frame):
    """{(trace_id, prompt): Needle} of the traces that still are where the run read them."""
    found = {}
    for trace in frame.attrs.get("meta", {}).get("traces") or []:
        path = Path(trace["path"])
        if path.is_file():
            view = Trace(path)
            for prompt in view.prompts:
                found |= _needle(trace["trace_id"], view.prompt(prompt))
    return found


def _needle(trace_id, prompt):
    spans = prompt.needle_tokens
    if spans is None or not len(spans):
        return {}
    return {(trace_id, prompt.id): Needle(spans, needle_masses(prompt, spans))}


def _predicted(losses):
    columns = {"kl": "predicted_kl"}
    empty = pd.DataFrame(columns=[*POINT, *columns.values()])
    if losses is None or losses.why:
        return empty
    table = losses.table.rename(columns=columns)
    if "answer_first_order" in table:
        table = table.assign(
            answer_first_order=-table["answer_first_order"],
            answer_loss_predicted=table["answer_log_prob_full"] - table["answer_log_prob"],
            answer_wrong_predicted=1 - table["answer_probability"],
        )
    known = [each.name for each in PREDICTORS if each.needs == GRADIENT and each.name in table]
    return table.groupby(POINT, dropna=False)[known].mean().reset_index()


def answer_points(rows):
    """Means over the prompts of a group: a row per group, label and place, with n_prompts. Oracles, which see
    the question, are left out."""
    real = rows[~rows["oracle"].astype(bool)]
    by_point = real.groupby(["group", "method", "label", "place"])
    found = by_point[["wrong", "wrong_full", "bytes_share", *NAMES]].mean()
    return found.assign(n_prompts=by_point["prompt"].nunique()).reset_index()


def answer_correlations(rows):
    """DataFrame of COLUMNS: Spearman's correlation of every predictor with the share of wrong answers over
    methods and budgets, with a 95 % percentile interval over resampled methods.

    Scope "all": all budgets together; "equal budgets": the mean over budgets. A group whose full model scores
    less than ENOUGH has no row. The group EVERY_TASK is the mean over the others in the same resamples.
    """
    points = answer_points(rows)
    points = points[1 - points["wrong_full"] >= ENOUGH]
    points = points.groupby("group").filter(lambda own: own["wrong"].nunique() > 1)
    if points.empty:
        return pd.DataFrame(columns=COLUMNS)
    names = sorted(points["method"].unique())
    parts = {group: own.reset_index(drop=True) for group, own in points.groupby("group")}
    tables = []
    for scope, strata in (("all", []), ("equal budgets", ["place"])):
        each = {group: _of_group(own, strata, names) for group, own in parts.items()}
        rho, drawn = (mean_without_nan([found[i] for found in each.values()]) for i in (0, 1))
        each[EVERY_TASK] = rho, drawn
        tables += [_table(group, scope, found, points) for group, found in each.items()]
    return pd.concat(tables, ignore_index=True)[COLUMNS]


def _of_group(own, strata, names):
    """(rho [predictors], drawn [predictors, resamples]) of one group, means over strata."""
    parts = [own] if not strata else [part for _, part in own.groupby(strata)]
    found = [_of_part(part.reset_index(drop=True), names) for part in parts]
    return tuple(mean_without_nan([each[i] for each in found]) for i in (0, 1))


def _of_part(own, names):
    draws = method_draws(names)
    rho = np.full(len(NAMES), np.nan)
    drawn = np.full((len(NAMES), 1 if draws is None else len(draws.counts)), np.nan)
    for i, name in enumerate(NAMES):
        known = own[own[name].notna()]
        if len(known) < FEWEST or known["wrong"].nunique() < 2:
            continue
        x, y = known[[name]].to_numpy(float).T, known[["wrong"]].to_numpy(float).T
        rho[i] = spearmans(x, y)[0, 0]
        if draws is not None:
            at = np.searchsorted(names, known["method"])
            drawn[i] = drawn_spearmans(x, y, type(draws)(draws.counts, at))[0, 0]
    return rho, drawn


def _table(group, scope, found, points):
    rho, drawn = found
    low, high = percentile_intervals(drawn)
    own = points if group == EVERY_TASK else points[points["group"] == group]
    table = pd.DataFrame({"predictor": NAMES, "needs": [each.needs for each in PREDICTORS], "spearman": rho})
    table = table.assign(low=low, high=high, group=group, scope=scope, n_points=len(own))
    table = table.assign(n_methods=own["method"].nunique(), n_prompts=int(own["n_prompts"].max()))
    return table[table["spearman"].notna()].sort_values("spearman", ascending=False, kind="stable")
