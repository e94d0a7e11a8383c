"""The section of a run's page on the loss that each method is predicted to cost the model."""

import pandas as pd

from ..data.shares import by_share
from ..loss.agreement import agreement, points
from ..loss.over_texts import over_texts
from ..predict.words import two
from ..stats.families import spread
from ..stats.format import ABSENT, significant
from ..stats.words import count
from .html import Html, html, paragraph, sortable_table

TITLE = "The model’s predicted loss"
MOST_SIZES = 6  # more columns do not fit side by side
NO_SIZE = "no budget"
WHOLE = (
    "Loss in nats a token (KL divergence of the model’s predictions from those without compression; lower"
    " is better), predicted from the gradient in the trace, without running the model with these caches."
)
HEADS = (
    "Loss in nats a token caused by the errors of single query heads, from the gradient in the trace,"
    " summed over heads. Joint effects of heads and rows are missing, so it is mostly too small: use it to"
    " rank methods. Why there is no more"
)
INTERVAL = (
    "Below each number is its 95 % interval. It covers the random labels that the gradient was drawn with,"
    " and the scatter of methods whose errors have one size."
)
TOGETHER = (
    " Over texts it joins the means of the lower and of the upper ends, as if the deviations of all texts"
    " agreed; it does not cover other texts."
)
MEASURED = " In brackets: the loss that `kvreplay confirm` measured by running the model with these caches."
SECOND_ORDER = "Predicted to second order only: the trace holds no masked runs, so there is no interval."
TRUST = (
    "How far to trust it: on four models the measured loss was 0.8 to 1.3 times the predicted one, text by"
    " text, and methods scattered around that by a factor of 1.2 to 1.6 (docs/ranking.md). Two methods differ"
    " significantly from a ratio of about two. tova on Gemma cost 1.4 times the prediction, window on Qwen"
    " 1.5B 3.7 times."
)
LIMIT = (
    "Nats a token are the exception: they estimate the model’s own loss on the recorded text, and say"
    " nothing about the texts that it would write."
)


def loss_section(frame, losses):
    """Parts of the section; [] if nothing is predicted. `losses`: those of `load`'s table, or None."""
    if losses is None:
        return []
    table = over_texts(losses)
    table = table[table["loss"].notna()]
    if table.empty or not table["loss"].max() > 0:
        return []
    return [
        paragraph(_scope(losses, table)),
        _table(_sized(frame, table), int(table["n_texts"].max())),
        *([] if losses.why else [paragraph(_trust(losses), "aside")]),
    ]


def _scope(losses, table):
    """What the numbers are, and how many layers and texts they cover."""
    own, texts = losses.table, int(table["n_texts"].max())
    over = (
        f" {'Means over' if texts > 1 else 'From'} {count(texts, 'text')} and the errors in"
        f" {count(int(own['layers'].min()), 'layer')}; if the model has more layers, the loss is a lower"
        " bound. "
    )
    if losses.why:
        return f"{HEADS}: {losses.why}.{over}"
    whole = WHOLE + (MEASURED if table["n_measured"].any() else "")
    if table["low"].isna().all():
        return f"{whole}{over}{SECOND_ORDER}"
    return f"{whole}{over}{INTERVAL}{TOGETHER if texts > 1 else ''}"


def _trust(losses):
    """How far to trust the prediction, and how near it was here if `kvreplay confirm` has run."""
    found = points(losses.table)
    told = [
        f"{prompt} {two(each.spearman)}" + (f", {each.factor:.2f}" if each.factor == each.factor else "")
        for prompt, own in found.groupby("prompt", sort=True)
        if (each := agreement(own["kl"], own["kl_mean"])) is not None
    ]
    if not told:
        return TRUST
    here = "Here, rank correlation with the measured KL and median ratio of measured to predicted"
    return f"{TRUST} {here}: {'; '.join(told)}."


def _sized(frame, table):
    """Rows of `over_texts` with `size`, a column title, and `place`, its order: the share of the full cache's
    bytes that a budget was requested for, else the budget in tokens. A budget of two shares has two rows."""
    shares = by_share(frame)[["label", "budget_tokens", "share"]].drop_duplicates()
    table = table.merge(shares, on=["label", "budget_tokens"], how="left")
    known = table["share"].notna()
    tokens = table["budget_tokens"].astype(float)
    texts = tokens.map(lambda value: NO_SIZE if pd.isna(value) else f"B = {value:.0f}")
    of_share = table["share"].map(lambda value: f"{100 * value:g} %", na_action="ignore")
    # Shares come first, then tokens, then rows that have neither.
    place = table["share"].where(known, tokens + 1)
    return table.assign(size=of_share.where(known, texts), place=place.fillna(float("inf")))


def _table(table, most_texts):
    sizes = table.drop_duplicates("size").sort_values("place")["size"].tolist()
    sized = spread([size for size in sizes if size != NO_SIZE], MOST_SIZES)
    shown = [*sized, *(size for size in sizes if size == NO_SIZE)]
    cells = {(row.label, row.size): row for row in table.itertuples()}
    middle = shown[max(0, len(sized) - 1) // 2]

    def at_middle(label):
        row = cells.get((label, middle))
        return (row is None, row.loss if row else 0.0)

    order = sorted(table["label"].unique(), key=at_middle)
    rows = [
        [(label, label), *(_cell(cells.get((label, size)), most_texts) for size in shown)] for label in order
    ]
    return sortable_table(["method", *shown], rows)


def _cell(row, most_texts):
    """The number and the measured loss; below them the interval, and texts that are missing."""
    if row is None:
        return (ABSENT, None)
    below = [] if pd.isna(row.low) or not row.loss else [f"{significant(row.low)} … {significant(row.high)}"]
    measured = f" ({significant(row.measured)})" if row.n_measured else ""
    if row.n_texts < most_texts:
        below.append(f"{row.n_texts} of {most_texts} texts")
    if 0 < row.n_measured < row.n_texts:
        below.append(f"measured on {row.n_measured}")
    small = f"<small>{html(' · '.join(below))}</small>" if below else ""
    return (Html(f"{html(significant(row.loss) + measured)}{small}"), row.loss)
