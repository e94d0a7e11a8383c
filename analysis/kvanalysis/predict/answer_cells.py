"""Tables on written answers as cells of text, for the terminal and the page."""

import pandas as pd

from ..stats.format import ABSENT, percent, significant
from .answers import EVERY_TASK, PREDICTORS
from .cells import NEEDS, number
from .words import with_interval

ALL, EQUAL = "all", "equal budgets"
WORDS = {each.name: each.words for each in PREDICTORS}


def predictor_cells(table, scope=ALL):
    """(header, rows) from `answer_correlations`: a row per predictor, best first, a column for each group of
    prompts; a cell is (text, sort key)."""
    own = table[table["scope"] == scope]
    whole = own[own["group"] == EVERY_TASK]
    groups = [group for group in dict.fromkeys(own["group"]) if group != EVERY_TASK]
    values = own.set_index(["group", "predictor"])["spearman"]
    header = ["predictor", "needs", "all tasks", "95 % interval", *groups]
    rows = [
        [
            (WORDS[row.predictor], row.predictor),
            (NEEDS[row.needs], row.needs),
            number(row.spearman),
            _range(row.low, row.high),
            *(number(values.get((group, row.predictor), float("nan"))) for group in groups),
        ]
        for row in whole.itertuples()
    ]
    return header, rows


def accuracy_cells(table, group):
    """(header, rows) from `answer_tests` of one group: budgets below each other, the best method first."""
    own = table[table["group"] == group]
    header = ["budget", "method", "score", "less the best's", "p (Holm)", "decided"]
    return header, [_accuracy(row) for row in own.itertuples()]


def _accuracy(row):
    best = pd.isna(row.p) and row.label == row.best
    decided = ABSENT if pd.isna(row.p) else "yes" if row.decided else "not decided"
    return [
        (f"{row.place + 1}" if row.place >= 0 else ABSENT, row.place),
        (row.label, row.label),
        (f"{percent(row.accuracy)} %", row.accuracy),
        ("best", 0) if best else (f"{100 * row.difference:+.1f}", row.difference),
        (ABSENT, None) if pd.isna(row.p) else (significant(row.p), row.p),
        (decided, decided),
    ]


def recommendation(table):
    """A sentence: which predictor of the answers to use, from its correlation over all tasks."""
    whole = table[(table["group"] == EVERY_TASK) & (table["scope"] == ALL)]
    offline = whole[whole["needs"] != "the compressed model"]
    if offline.empty:
        return ""
    best = offline.iloc[0]
    level = offline[offline["spearman"] >= best["low"]] if pd.notna(best["low"]) else offline.iloc[:1]
    simple = min(level["predictor"], key=list(WORDS).index)
    text = f"Best predictor of wrong answers: {WORDS[best['predictor']]}, {_rho(best)}."
    if simple == best["predictor"]:
        return text
    other = level.set_index("predictor").loc[simple]
    return f"{text} The simplest within its interval: {WORDS[simple]}, {_rho(other)}."


def _rho(row):
    return f"rank correlation {with_interval(row['spearman'], row['low'], row['high'])}"


def _range(low, high):
    return (ABSENT, None) if pd.isna(low) else (f"{low:.2f} … {high:.2f}", low)
