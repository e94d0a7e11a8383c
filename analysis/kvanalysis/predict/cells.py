"""Tables on the loss as cells of text: for the terminal, the page and OUT/confirm_retrieval.csv."""

import pandas as pd

from ..stats.format import ABSENT, percent, whole
from ..stats.words import count
from .correlations import MEAN
from .measures import BY_NAME
from .retrieval import ENOUGH
from .words import MOST_TEXTS, two, with_interval

NEEDS = {
    "the run": "traces",
    "the gradient": "traces with gradient",
    "the model": "the model",
    "the compressed model": "no prediction",
}


def correlation_cells(table):
    """(header, rows) from rows of `correlations` of one target and scope: a row per measure and weighting, in
    the order of the table; a cell is (text, sort key)."""
    prompts = [prompt for prompt in dict.fromkeys(table["prompt"]) if prompt != MEAN]
    prompts = prompts if len(prompts) <= MOST_TEXTS else []
    header = ["measure", "over layers", "needs", "Spearman", "95 % interval", "Kendall", *prompts, "gain",
              "95 % of the gain", "first", "instances"]  # fmt: skip
    whole = table[table["prompt"] == MEAN]
    texts = table[table["prompt"] != MEAN].set_index(["measure", "weighting", "prompt"])["spearman"]
    return header, [_cells(row, prompts, texts) for row in whole.itertuples()]


def _cells(row, prompts, texts):
    of_text = [texts.get((row.measure, row.weighting, prompt), float("nan")) for prompt in prompts]
    return [
        (row.measure, row.measure),
        (row.weighting, row.weighting),
        (NEEDS[row.needs], row.needs),
        number(row.spearman),
        _range(row.spearman_low, row.spearman_high),
        *(number(value) for value in (row.kendall, *of_text)),
        _signed(row.gain),
        _range(row.gain_low, row.gain_high, "+.2f"),
        (percent(row.first_share) + ("" if pd.isna(row.first_share) else " %"), _key(row.first_share)),
        (f"{row.n_instances}", row.n_instances),
    ]


def scope_cells(table, choices):
    """(header, rows): a row per scope, the Spearman of each Choice with its interval, and the gain of the
    first over the main measure."""
    whole = table[table["prompt"] == MEAN].set_index(["scope", "measure", "weighting"])
    header = ["scope", "instances", "methods", *(f"{each.words}" for each in choices), "gain"]
    return header, [_scope(scope, whole, choices) for scope in dict.fromkeys(table["scope"])]


def _scope(scope, whole, choices):
    rows = [whole.loc[key] if (key := (scope, each.measure, each.weighting)) in whole.index else None
            for each in choices]  # fmt: skip
    known = next((row for row in rows if row is not None), None)
    counts = [(f"{known[name]}", known[name]) if known is not None else (ABSENT, None)
              for name in ("n_instances", "n_methods")]  # fmt: skip
    return [(scope, scope), *counts, *(_with_interval(row, "spearman", "") for row in rows),
            _with_interval(rows[0], "gain", "+")]  # fmt: skip


def _with_interval(row, name, sign):
    if row is None or pd.isna(row[name]):
        return ABSENT, None
    value, low, high = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
    if not sign:
        return with_interval(value, low, high), value
    return f"{value:+.2f}" + ("" if pd.isna(low) else f" [{low:+.2f}, {high:+.2f}]"), value


def target_cells(table, names):
    """(header, rows): measures at one weighting against every target; `names`: {target: its words}."""
    whole = table[table["prompt"] == MEAN].set_index(["target", "measure", "weighting"])
    header = ["measure", "over layers", *names.values()]
    pairs = dict.fromkeys(zip(table["measure"], table["weighting"], strict=True))
    rows = []
    for pair in pairs:
        row = [whole.loc[(target, *pair)] if (target, *pair) in whole.index else None for target in names]
        rows.append(
            [(pair[0], pair[0]), (pair[1], pair[1]), *(_with_interval(row, "spearman", "") for row in row)]
        )
    return header, rows


def measure_terms(names):
    """[(name, words)] of measures, for a list that explains names."""
    return [(name, BY_NAME[name].words) for name in names]


def number(value):
    return (ABSENT, None) if pd.isna(value) else (two(value), value)


def _signed(value):
    return (ABSENT, None) if pd.isna(value) else (f"{value:+.2f}", value)


def _range(low, high, form=""):
    if pd.isna(low):
        return ABSENT, None
    return (f"{low:{form}} … {high:{form}}" if form else f"{two(low)} … {two(high)}"), low


def _key(value):
    return None if pd.isna(value) else value


SHOWN = ("group", "label", "oracle", "budget", "tokens", "n_prompts", "n_answers", "correct", "correct_low",
         "correct_high", "correct_full", "exact", "exact_low", "exact_high", "exact_full", "rank",
         "rank_full", "logprob", "logprob_full")  # fmt: skip


def group_words(group):
    """What the cells of a group mean, and how well the full model does."""
    first = group.table.iloc[0]
    if group.is_written:
        return _written_words(group, first["correct_full"])
    full = f"the full model answers {first['exact_full'] * group.n_prompts:.0f} of them exactly"
    what = f"{group.name}: {count(group.n_prompts, 'prompt')} with an answer; {full}"
    if group.by_exact:
        return f"{what}. Below: the share of exact answers."
    return (
        f"{what}, no more than {ENOUGH:.0%}, so exact answers say little. Below: the median rank of the"
        f" answer’s worst token; with the full model it is {whole(first['rank_full'])}."
    )


def _written_words(group, full):
    what = f"{group.name}: {count(group.n_prompts, 'prompt')}; the full model scores {percent(full)} %"
    if group.is_ranked:
        return f"{what}. Below: the mean score of the written answers."
    return f"{what}, less than {ENOUGH:.0%}, so this task ranks no method."


def group_cells(group):
    """(header, rows): a row per method, best first, a column per budget; a cell is (text, sort key)."""
    table = group.table
    shown = {key: _cell(group, row) for key, row in zip(_keys(table), table.itertuples(), strict=True)}
    score = table["correct"] if group.is_written else table["exact"] if group.by_exact else -table["rank"]
    order = score.groupby(table["label"]).mean().sort_values(ascending=False, kind="stable").index
    rows = [
        [(label, label), *(shown.get((label, budget), (ABSENT, None)) for budget in group.budgets)]
        for label in order
    ]
    return ["method", *group.budgets], rows


def retrieval_table(groups):
    """All numbers of [(trace_id, [Group])], a row per group, method and budget."""
    tables = [group.table.assign(group=group.name, trace_id=trace) for trace, own in groups for group in own]
    return pd.concat(tables, ignore_index=True)[["trace_id", *SHOWN]]


def _keys(table):
    return zip(table["label"], table["budget"], strict=True)


def _cell(group, row):
    if group.is_written:
        return f"{percent(row.correct)} %", row.correct
    if group.by_exact:
        return f"{row.exact * row.n_answers:.0f}/{row.n_answers}", row.exact
    return whole(row.rank), row.rank
