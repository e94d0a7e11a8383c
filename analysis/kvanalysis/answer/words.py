"""An answer in words: one sentence that can be quoted, what limits it, and its table."""

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtrit

from ..stats.families import ONESHOT, STREAM
from ..stats.format import ABSENT, aligned, interval, percent, significant
from ..stats.intervals import FEWEST_BLOCKS, LEVEL
from ..stats.words import count
from .measures import DEFAULT, MAIN, NATS, words_of
from .selection import layer_words
from .sizes import PEAK, PROMPT

if TYPE_CHECKING:
    from .compare import Answer

ENDS = ("difference_low", "difference_high")
NAMED = 3  # labels that a sentence lists; more are counted
NO_WINNER = "no clear winner"
APART = "paired over layers, 95 %, corrected for all pairs"
PHASES = {  # what it means that methods of both phases are ranked
    PEAK: "Bytes are those of the peak: one-shot methods reach it at the last token, streaming ones early"
    " on.",
    PROMPT: "Bytes are those of the prompt after its cut: one-shot methods keep every later token besides,"
    " streaming ones stay within their budget.",
}
ORDERS = {  # how a measure orders methods of one budget, beside the model's own loss
    MAIN: "The mean relative error hardly orders methods of one budget as models’ own losses do"
    " (docs/ranking.md): look at --measure distance, too.",
    DEFAULT: "On four models this measure orders methods of one budget as the model’s own loss does with a"
    " rank correlation of 0.71 to 0.89 (docs/ranking.md); nats predicted from a gradient reach 0.85 to 0.89.",
    NATS: "On four models predicted nats order methods of one budget as the model’s own loss does with a rank"
    " correlation of 0.85 to 0.89; the interval of a ratio of two held 95 % of the measured ratios"
    " (docs/ranking.md).",
}
MOST_TIMES = 1e6  # with all their digits
TWICE = 2  # as large a loss that is not sure needs a reason
MOST_LAYERS = 200  # beyond, more layers are no advice
SHARE = "% of full"  # the peak's; of other bytes it is named after them
HEADER = (
    *(
        "method",
        "loss",
        "95 % interval",
        SHARE,
        "more than the first",
        "95 % of that",
        "in layers",
        "p",
    ),
    *("apart", "phase", "how"),
)


def sentence(answer: "Answer") -> str:
    """Who loses least, by how much, whether that is significant, and on what it rests."""
    found = verdict(answer)
    if answer.measure == NATS:
        return f"At {100 * answer.share:.3g} % of {answer.size.of}, {found} ({basis(answer)})."
    there_is = "there is " if found.startswith(NO_WINNER) else ""
    rests_on = basis(answer) if len(answer.compared) else "see what is left out"
    return (
        f"At {100 * answer.share:.3g} % of {answer.size.of}, {there_is}{found} ({rests_on}).{_nats(answer)}"
    )


def _nats(answer: "Answer") -> str:
    """What the first is predicted to cost the model, and who costs least by that."""
    rows = answer.compared[answer.compared["nats"].notna()]
    if rows.empty:
        return ""
    first, least = rows.iloc[0], rows.loc[rows["nats"].astype(float).idxmin()]
    said = f" Predicted loss of {first['name']}: {_nats_of(first)}"
    if first["name"] == least["name"]:
        return f"{said}, the least of {len(rows)}."
    return f"{said}; {least['name']} costs the model least, {_nats_of(least)}."


def _nats_of(row) -> str:
    return f"{significant(row['nats'])} nats a token [{interval(row['nats_low'], row['nats_high'])}]"


def basis(answer: "Answer") -> str:
    """What the loss is, and by what test it differs significantly."""
    if answer.measure == NATS:
        return f"{scope(answer)}; significant: 95 %, corrected for all pairs"
    return f"loss: {scope(answer)}; told apart: {APART}"


def verdict(answer: "Answer") -> str:
    """The part of the sentence that differs from share to share."""
    rows = answer.compared
    if rows.empty:
        return "none of these methods was replayed"
    first, others = rows.iloc[0], rows.iloc[1:]
    if others.empty:
        return f"{first['name']} alone was replayed, its loss {significant(first['error'])}"
    if answer.measure == NATS:
        return _cheapest(first, others)
    if others["decided"].all():
        return _clear(first, others)
    sure, unsure = others[others["decided"]], others[~others["decided"]]
    near = _listed([f"{row.name} (+{significant(row.difference)})" for row in unsure.itertuples()])
    least = f"{NO_WINNER}: {first['name']} has the least loss, {significant(first['error'])}"
    if sure.empty and len(unsure) > 1:
        return f"{least}, and none of the {len(unsure)} others is told apart from it: {near}"
    more = f"; {_listed(sure['name'])} {_lose(sure)} more for sure" if len(sure) else ""
    return f"{least}, not told apart from {near}{more}"


def _cheapest(first, others) -> str:
    """The least predicted nats, how many times as much the next costs, and who costs significantly more."""
    second, dearer = others.iloc[0], others[others["decided"]]
    least = f"{first['name']} is predicted to cost the model least, {_nats_of(first)}"
    if first["error"] > 0:
        ends = [(first["error"] + second[end]) / first["error"] for end in ENDS]
        times = f"{second['error'] / first['error']:.2f} times as much [{interval(*ends)}]"
    else:
        times = _nats_of(second)
    more = f"{len(dearer)} of {count(len(others), 'other')} cost significantly more"
    if 0 < len(dearer) <= NAMED:
        more = f"{_listed(dearer['name'])} {'costs' if len(dearer) == 1 else 'cost'} significantly more"
    return f"{least}; {second['name']}, the next, {times}; {more}"


def _clear(first, others) -> str:
    second = others.iloc[0]
    ends = interval(second["difference_low"], second["difference_high"])
    lead = f"{significant(second['difference'])} [{ends}] less than {second['name']}"
    rest = f", the next; all {len(others)} others lose more for sure" if len(others) > 1 else ""
    return f"{first['name']} loses least: {significant(first['error'])}, {lead}{rest}"


def scope(answer: "Answer") -> str:
    """What the loss is and on what it was measured."""
    return f"{words_of(answer.measure)} over {_evidence(answer)}"


def _evidence(answer: "Answer") -> str:
    texts = f", {count(answer.n_texts, 'text')}, {answer.model.split('/')[-1] or 'unnamed model'}"
    return f"{count(answer.n_units, 'kv head')} of {count(len(answer.layers), 'layer')}{texts}"


def _blocks(answer: "Answer") -> str:
    """The evidence that is counted: layers, those of several texts apart."""
    of_texts = f" of {answer.n_texts} texts" if answer.n_texts > 1 else ""
    return count(answer.n_blocks, "layer") + of_texts


def _lose(rows) -> str:
    return "loses" if len(rows) == 1 else "lose"


def _listed(labels) -> str:
    labels = list(labels)
    more = len(labels) - NAMED
    if more > 1:
        return f"{', '.join(labels[:NAMED])} and {more} others"
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"


def caveats(answer: "Answer") -> list[str]:
    """What a reader must know before quoting the sentence; each is one sentence."""
    rows = answer.compared
    of_test = _of_prediction if answer.measure == NATS else _of_layers
    return [
        *of_test(answer, rows),
        *_one_kind_of_text(answer),
        *_interpolated(rows),
        *left_out(answer),
        *_both_phases(answer, rows),
        *_main_measure(answer),
    ]


def _of_layers(answer: "Answer", rows) -> list[str]:
    """What limits a test over layers."""
    return [
        *_few_blocks(answer, rows),
        *_chosen_afterwards(answer, rows),
        *_contrary_layers(answer, rows),
        *_more_layers(answer, rows),
    ]


def _of_prediction(answer: "Answer", rows) -> list[str]:
    """What limits predicted nats."""
    layers = count(len(answer.layers), "layer")
    texts = [f"The loss is what errors of {layers} cost: of fewer than the model’s it is a lower bound."]
    if len(rows) < 2:
        return texts
    return [
        *texts,
        f"The first was picked afterwards out of {len(rows)}: significant is what Holm’s correction over"
        f" {count(answer.n_pairs, 'pair')} leaves at {100 * (1 - LEVEL):.0f} %, by how far predicted and"
        " measured ratios of two methods lie apart.",
    ]


def _one_kind_of_text(answer: "Answer") -> list[str]:
    if answer.n_texts == 0:
        return []
    return [f"Layers of {count(answer.n_texts, 'text')} are no evidence on other texts or models."]


def _few_blocks(answer: "Answer", rows) -> list[str]:
    if answer.n_blocks >= FEWEST_BLOCKS or len(rows) < 2:
        return []
    return [
        f"With {_blocks(answer)} nothing can be told apart: it takes {FEWEST_BLOCKS}, since"
        " heads of one layer err alike."
    ]


def _chosen_afterwards(answer: "Answer", rows) -> list[str]:
    if len(rows) < 2:
        return []
    return [
        f"The first was picked afterwards out of {len(rows)}: told apart is what a paired t test over layers"
        f" leaves after Holm’s correction over {count(answer.n_pairs, 'pair')} at {100 * (1 - LEVEL):.0f} %."
    ]


def _contrary_layers(answer: "Answer", rows) -> list[str]:
    """Why a large difference of means is not sure."""
    if answer.n_blocks < FEWEST_BLOCKS:
        return []
    least = rows["error"].iloc[0] if len(rows) else 0
    large = rows.iloc[1:][~rows["decided"].iloc[1:] & (rows["error"].iloc[1:] > TWICE * least)]
    first = rows["name"].iloc[0]
    return [
        f"{row.name} loses {_times(row.error / least)} times as much as {first} on average, but more in only"
        f" {row.layers_more:.0f} of {_blocks(answer)}."
        for row in large.itertuples()
        if row.layers_more < answer.n_blocks
    ]


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < MOST_TIMES else significant(ratio)


def _more_layers(answer: "Answer", rows) -> list[str]:
    """How many layers like these would tell the first from the next."""
    if len(rows) < 2 or rows["decided"].iloc[1] or answer.n_blocks < FEWEST_BLOCKS:
        return []
    second = rows.iloc[1]
    half = (second["difference_high"] - second["difference_low"]) / 2
    if not half > 0 or not second["difference"] > 0:
        return []
    deviation = half / stdtrit(answer.n_blocks - 1, (1 + LEVEL) / 2) * np.sqrt(answer.n_blocks)
    counts = np.arange(FEWEST_BLOCKS, MOST_LAYERS + 1)
    needed = stdtrit(counts - 1, 1 - (1 - LEVEL) / 2 / answer.n_pairs) * deviation / np.sqrt(counts)
    enough = counts[needed < second["difference"]]
    layers = f"about {enough[0]} layers" if len(enough) else f"more than {MOST_LAYERS} layers"
    return [f"Were the difference as large in others, {layers} would tell {_names(rows)} apart."]


def _names(rows) -> str:
    return f"{rows['name'].iloc[0]} and {rows['name'].iloc[1]}"


def _interpolated(rows) -> list[str]:
    between = rows.loc[rows["how"].str.startswith("between"), "name"]
    if between.empty:
        return []
    return [f"Interpolated between two budgets (a power of the bytes, head by head): {_listed(between)}."]


def left_out(answer: "Answer") -> list[str]:
    """Each reason once, with the labels that it holds for."""
    out = answer.ranking[answer.ranking["error"].isna()]
    reasons = out.groupby("how", sort=False)["name"]
    return [f"Not compared: {_listed(own)} ({why})." for why, own in reasons]


def _both_phases(answer: "Answer", rows) -> list[str]:
    if answer.size.name not in PHASES or not {STREAM, ONESHOT} <= set(rows["family"]):
        return []
    return [PHASES[answer.size.name]]


def _main_measure(answer: "Answer") -> list[str]:
    return [ORDERS[answer.measure]] if answer.measure in ORDERS else []


def cells(answer: "Answer"):
    """(header, rows) of the ranking, as `stats.format.aligned` takes them."""
    rows = []
    for row in answer.ranking.itertuples():
        label = f"{row.name} = {row.equals}" if row.equals else row.name
        apart = ABSENT if np.isnan(row.error) or row.Index == 0 else "yes" if row.decided else "no"
        rows.append(
            [
                (label, label), (significant(row.error), row.error),
                (interval(row.low, row.high), row.low), (percent(row.share), row.share),
                (significant(row.difference), row.difference),
                (interval(row.difference_low, row.difference_high), row.difference_low),
                _layers(row, answer), (significant(row.p), row.p), (apart, apart), (row.family, row.family),
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


def _cells_by_nats(answer: "Answer", header, rows):
    """The measure of heads in place of the count of layers, which says nothing here."""
    at = header.index("in layers")
    names = {"loss": "predicted nats", "in layers": "distance", "apart": "significant"}
    distances = [(significant(value), value) for value in answer.ranking["distance"]]
    return [names.get(name, name) for name in header], [
        [*row[:at], distance, *row[at + 1 :]] for row, distance in zip(rows, distances, strict=True)
    ]


def _layers(row, answer: "Answer"):
    """In how many layers a method loses more than the first."""
    if np.isnan(row.error) or row.Index == 0:
        return ABSENT, None
    return f"{row.layers_more:.0f} of {answer.n_blocks}", row.layers_more


def text(answer: "Answer") -> str:
    """The whole answer for a terminal: the sentence, the table, what limits it."""
    named = "" if answer.measure == NATS else "loss: "
    layers = f"Layers {layer_words(answer.layers)}; {named}{words_of(answer.measure)}."
    lines = [
        sentence(answer),
        "",
        aligned(*cells(answer)),
        "",
        layers,
        *(f"- {each}" for each in caveats(answer)),
    ]
    return "\n".join(lines)
