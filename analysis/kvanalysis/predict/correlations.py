"""Which measure ranks instances like the model's loss, and over which instances."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..stats.families import ONESHOT, READS, STREAM, budgets_of
from ..stats.ranks import drawn_spearmans, kendalls, method_draws, percentile_intervals, spearmans
from .instances import LOSS, SAMPLED, TARGETS
from .measures import BY_NAME, COMPRESSED, EVERY_LAYER, MAIN, TOGETHER, WEIGHTINGS, weighted

FEWEST = 5  # with fewer instances no rank correlation is computed
MEAN = ""  # stands in place of a prompt's name: the mean over texts
COLUMNS = [
    *("target", "scope", "measure", "weighting", "needs", "prompt", "spearman", "spearman_low"),
    *("spearman_high", "kendall", "gain", "gain_low", "gain_high", "first_share"),
    *("n_texts", "n_instances", "n_methods"),
]


@dataclass(frozen=True)
class Correlations:
    """Correlations of `measures` [(measure, weighting)] with the `losses` of a scope, on `prompts`. `rho`,
    `tau` [prompts, measures, losses]; `drawn` [prompts, measures, losses, resamples] of rho, or None; `used`
    [prompts, measures]: number of instances with a value. NaN if a text has too few of them."""

    measures: list
    losses: tuple
    prompts: list
    rho: np.ndarray
    tau: np.ndarray
    drawn: np.ndarray | None
    used: np.ndarray

    def place(self, measure, weighting):
        """The index of a measure in `measures`; None if it is not there."""
        pair = (measure, weighting)
        return self.measures.index(pair) if pair in self.measures else None


def correlations(instances, sinks=None):
    """DataFrame of COLUMNS for the Instances of one trace: every scope for the loss; the widest scope also
    for the other targets and for parts of the rows; within each the best first.

    A row with an empty prompt is the mean over the texts: correlations are averaged, never pooled. `spearman`
    has a 95 % percentile interval over resampled methods (`method_draws`). `gain` is the difference from the
    main measure's mean over layers on the same instances, paired by resample; `first_share` is the share of
    resamples in which a measure ranks first.
    """
    tables = [table for scope in scopes(instances, sinks) for table in scope_tables(instances, scope)]
    return pd.concat(tables, ignore_index=True)[COLUMNS]


def scope_tables(instances, scope):
    """[the rows of `correlations` for each loss of one scope]."""
    ranks = scope_correlations(instances, scope)
    methods = instances.table["method"][scope.rows].nunique()
    for number, (name, target, _) in enumerate(scope.losses):
        rows = pd.DataFrame(list(_rows(ranks, number)), columns=_OF_A_ROW)
        rows = rows.sort_values("order", ascending=False, kind="stable")
        yield rows.assign(target=target, scope=name or scope.name, n_methods=methods)


def scope_correlations(instances, scope, resampled=True, measures=None):
    """The Correlations of every measure and weighting, or of `measures` {(name, weighting): [instances]}."""
    values = _values(instances) if measures is None else measures
    wanted = [
        instances.table[target] if part is None else instances.parts[part][target]
        for _, target, part in scope.losses
    ]
    losses = np.array([loss.to_numpy(dtype=float)[scope.rows] for loss in wanted])
    table = instances.table[scope.rows].reset_index(drop=True)
    draws = method_draws(table["method"]) if resampled else None
    xs = np.array([each[scope.rows] for each in values.values()])
    texts = table.groupby("prompt", sort=True).indices
    each = [_of_text(xs[:, rows], losses[:, rows], _strata(table.loc[rows], scope), draws and draws.of(rows))
            for rows in texts.values()]  # fmt: skip
    rho, tau, drawn, used = zip(*each, strict=True)
    return Correlations(list(values), scope.losses, list(texts), np.array(rho), np.array(tau),
                        None if draws is None else np.array(drawn), np.array(used))  # fmt: skip


def _values(instances):
    """{(measure, weighting): [instances]} for all that exist."""
    over_layers = {
        (name, weighting): weighted(layers, weighting)
        for name, layers in instances.measures.items()
        for weighting in WEIGHTINGS
    }
    return over_layers | {(name, TOGETHER): values for name, values in instances.together.items()}


def _strata(rows, scope):
    """[rows of each stratum of one text]."""
    if not scope.strata:
        return [np.arange(len(rows))]
    return list(rows.reset_index(drop=True).groupby(list(scope.strata), dropna=False).indices.values())


def _of_text(xs, ys, strata, draws):
    """(rho, tau [measures, losses], drawn [.., resamples], used [measures]): means over the strata that have
    enough instances."""
    shape = (len(xs), len(ys))
    found, used = [], np.zeros(len(xs), dtype=int)
    for rows in strata:
        known = np.isfinite(xs[:, rows])
        losses = np.isfinite(ys[:, rows]).all(axis=1)
        rho, tau = np.full(shape, np.nan), np.full(shape, np.nan)
        drawn = np.full((*shape, len(draws.counts)), np.nan) if draws else np.empty(0)
        for pattern in np.unique(known, axis=0):
            if pattern.sum() < FEWEST or not losses.any():
                continue
            same, own = (known == pattern).all(axis=1), rows[pattern]
            where, pair = np.ix_(same, losses), (xs[np.ix_(same, own)], ys[np.ix_(losses, own)])
            rho[where], tau[where] = spearmans(*pair), kendalls(*pair)
            if draws:
                drawn[where] = drawn_spearmans(*pair, draws.of(own))
            used[same] += pattern.sum()
        found.append((rho, tau, drawn))
    return *(mean_without_nan(each) for each in zip(*found, strict=True)), used


def mean_without_nan(values):
    """Mean over the first axis, without NaN: a stratum or text with too few instances is left out."""
    values = np.asarray(values)
    known = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.where(known, values, 0).sum(axis=0) / known.sum(axis=0)


_OF_A_ROW = [name for name in COLUMNS if name not in ("target", "scope", "n_methods")] + ["order"]


def _rows(ranks, number):
    """The rows for one of the losses; their `order` is the mean over texts, for all rows of a measure."""
    rho, tau = (_with_mean(values[..., number]) for values in (ranks.rho, ranks.tau))
    drawn = None if ranks.drawn is None else _with_mean(ranks.drawn[:, :, number])
    low, high = _intervals(drawn, rho.shape)
    gain, gain_drawn = (_gains(ranks, values) for values in (rho, drawn))
    gain_low, gain_high = _intervals(gain_drawn, rho.shape)
    first = _first_shares(ranks, drawn)
    for i, prompt in enumerate([MEAN, *ranks.prompts]):
        for j, (measure, weighting) in enumerate(ranks.measures):
            if np.isfinite(rho[i, j]):
                texts = ranks.used[np.isfinite(rho[1:, j]), j] if i == 0 else ranks.used[[i - 1], j]
                yield (measure, weighting, BY_NAME[measure].needs, prompt, rho[i, j], low[i, j], high[i, j],
                       tau[i, j], gain[i, j], gain_low[i, j], gain_high[i, j],
                       first[j] if i == 0 else np.nan, len(texts), texts.sum(), rho[0, j])  # fmt: skip


def _with_mean(values):
    """[1 + prompts, ...]: the mean over texts first."""
    return np.concatenate([mean_without_nan(values)[None], values])


def _intervals(drawn, shape):
    return np.full((2, *shape), np.nan) if drawn is None else percentile_intervals(drawn)


def _gains(ranks, values):
    """Differences from the main measure; NaN if that has other instances."""
    if values is None:
        return None
    main = ranks.place(MAIN, EVERY_LAYER)
    if main is None:
        return np.full_like(values, np.nan)
    same = (ranks.used == ranks.used[:, [main]]).all(axis=0)
    found = values - values[:, [main]]
    found[:, ~same] = np.nan
    return found


def eligible_measures(ranks):
    """[measures] whether a measure is a prediction with a value for every instance, so not one of the
    compressed run."""
    offline = [BY_NAME[measure].needs != COMPRESSED for measure, _ in ranks.measures]
    most = ranks.used.sum(axis=0)
    return np.array(offline) & (most == most.max())


def _first_shares(ranks, drawn):
    """[measures] how often each ranks first; NaN for measures that cannot."""
    rivals = np.flatnonzero(eligible_measures(ranks))
    shares = np.full(len(ranks.measures), np.nan)
    if drawn is not None:
        # A measure that is constant in a resample does not rank first there.
        of_rivals = np.nan_to_num(drawn[0, rivals], nan=-np.inf)
        of_rivals = of_rivals[:, np.isfinite(of_rivals).any(axis=0)]
        if of_rivals.size:
            wins = np.bincount(of_rivals.argmax(axis=0), minlength=len(rivals))
            shares[rivals] = wins / of_rivals.shape[1]
    return shares


ALL, WITH_ORACLES = "all", "with oracles"
EQUAL_BUDGET, WITH_SINK = "equal budgets", "first token kept"
FAMILY_WORDS = {
    STREAM: "eviction at every step",
    ONESHOT: "one selection after the prompt",
    SAMPLED: "weighted samples and walks",
    READS: "full cache, few tokens read",
}


@dataclass(frozen=True)
class Scope:
    """`rows` [instances] bool; `strata`: columns; ranks are compared within their values and averaged over
    them for each text; `losses`: [(name, target, part)], part the rows of the text that count, None for
    all."""

    name: str
    rows: np.ndarray
    strata: tuple = ()
    losses: tuple = ((None, LOSS, None),)


def scopes(instances, sinks=None):
    """[Scope] for the Instances of one trace: all, equal budgets, families, single budgets, with oracles.

    Oracles see the future, so their results need not hold for methods: they are only in WITH_ORACLES.
    `sinks`: {label: whether it keeps its prompts' first token}, None if the run did not save kept tokens.
    """
    table = instances.table
    real = (~table["oracle"]).to_numpy()
    whole = [(None, target, None) for target in TARGETS]
    parts = [(rows_name(*part), LOSS, part) for part in instances.parts]
    first = Scope(ALL, real, losses=(*whole, *parts))
    others = [(WITH_SINK, table["label"].map(sinks or {}).eq(True))]
    others += [(family, table["family"].eq(family)) for family in FAMILY_WORDS]
    others += [(f"B = {budget}", table["budget_tokens"].eq(budget)) for budget in budgets_of(table)]
    others = [Scope(name, real & rows.fillna(False).to_numpy(dtype=bool)) for name, rows in others]
    others.append(Scope(WITH_ORACLES, np.ones(len(table), dtype=bool)))
    other = [scope for scope in others if scope.rows.any() and (scope.rows != real).any()]
    equal = [Scope(EQUAL_BUDGET, real, ("budget_tokens",))] if table["budget_tokens"].nunique() > 1 else []
    return [first, *equal, *other]


def rows_name(first, last):
    return f"rows {first}–{last - 1}"
