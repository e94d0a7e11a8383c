"""The ranking of an answer as a table for a terminal or a page."""

import numpy as np

from ..stats.format import ABSENT, interval, percent, significant
from .measures import NATS
from .ranked import Ranked

LEAST_P = 1e-3  # smaller probabilities rest on the tails of a distribution that nobody knows so well
SHARE = "% of full"  # the column at the peak; other sizes have names of their own
HEADER = (
    *(
        "method",
        "error",
        "95 % interval",
        SHARE,
        "times the first",
        "95 % of that",
        "in layers",
        "p",
    ),
    *("significant", "phase", "how"),
)


def cells(answer: Ranked):
    """(header, rows) of the ranking, as `stats.format.aligned` expects them."""
    rows = []
    for row in answer.ranking.itertuples():
        label = f"{row.name} = {row.equals}" if row.equals else row.name
        apart = ABSENT if np.isnan(row.error) or row.Index == 0 else "yes" if row.decided else "no"
        rows.append(
            [
                (label, label), (significant(row.error), row.error),
                (interval(row.low, row.high), row.low), (percent(row.share), row.share),
                (significant(row.ratio), row.ratio),
                (interval(row.ratio_low, row.ratio_high), row.ratio_low),
                _layers(row, answer), (_probability(row.p), row.p), (apart, apart), (row.family, row.family),
                (row.how, row.how),
            ]
        )  # fmt: skip
    header = [answer.size.column if name == SHARE else name for name in HEADER]
    if answer.measure == NATS:
        return _cells_by_nats(answer, header, rows)
    if answer.ranking["nats"].isna().all():
        return header, rows
    told = [
        [(significant(row.nats), row.nats), (interval(row.nats_low, row.nats_high), row.nats_low)]
        for row in answer.ranking.itertuples()
    ]
    return [*header[:3], "predicted nats", "95 % of these", *header[3:]], [
        [*row[:3], *nats, *row[3:]] for row, nats in zip(rows, told, strict=True)
    ]


def _probability(p: float) -> str:
    return f"<{LEAST_P:g}" if p < LEAST_P else significant(p)


def _cells_by_nats(answer: Ranked, header, rows):
    """The ranking by nats: the count of layers means nothing here, the measure of heads replaces it."""
    at = header.index("in layers")
    names = {
        "error": "predicted nats",
        "in layers": "distance",
    }
    distances = [(significant(value), value) for value in answer.ranking["distance"]]
    return [names.get(name, name) for name in header], [
        [*row[:at], distance, *row[at + 1 :]] for row, distance in zip(rows, distances, strict=True)
    ]


def _layers(row, answer: Ranked):
    """The number of layers in which a method's error is larger than the first's."""
    if np.isnan(row.error) or row.Index == 0:
        return ABSENT, None
    return f"{row.layers_more:.0f} of {answer.n_blocks}", row.layers_more
