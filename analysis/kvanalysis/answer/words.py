"""An answer in words: one sentence to quote, its limits, and its table."""

from typing import TYPE_CHECKING

import numpy as np
from kvbase.selections import layer_words
from scipy.special import stdtrit

from ..stats.families import ONESHOT, STREAM
from ..stats.format import ABSENT, aligned, interval, percent, significant
from ..stats.intervals import FEWEST_BLOCKS, LEVEL
from ..stats.words import count
from .measures import DEFAULT, MAIN, NATS, words_of
from .sizes import PEAK, PROMPT

if TYPE_CHECKING:
    from .compare import Answer

NAMED = 3  # a sentence lists at most so many labels, and counts the rest
NO_WINNER = "no clear winner"
APART = (
    "×: geometric mean over layers; significant: paired t test of its logarithm, 95 %, multiple comparisons"
    " with the best"
)
PHASES = {  # caveats where one-shot and streaming methods are ranked together
    PEAK: "Bytes are counted at the peak: one-shot methods reach it at the last token, streaming methods"
    " early on.",
    PROMPT: "Bytes are counted after the prompt is cut: one-shot methods also keep every later token,"
    " streaming methods stay within their budget.",
}
ORDERS = {  # how well a measure ranks methods of one budget: agreement with the model's own loss
    MAIN: "At one budget, the mean relative error agrees only partly with the model’s own loss on the order"
    " of methods (docs/ranking.md): look at --measure distance, too.",
    DEFAULT: "On four models, at one budget, this measure’s ranking of methods has a rank correlation of 0.71"
    " to 0.89 with the model’s own loss (docs/ranking.md); nats predicted from a gradient reach 0.85 to"
    " 0.89.",
    NATS: "On four models, at one budget, the ranking by predicted nats has a rank correlation of 0.85 to"
    " 0.89 with the model’s own loss; the intervals of predicted ratios held 95 % of the measured ratios"
    " (docs/ranking.md).",
}
MOST_TIMES = 1e6  # larger ratios are printed with few digits
TWICE = 2  # an error larger by this factor and yet not significantly larger needs an explanation
MOST_LAYERS = 200  # larger numbers of layers are no useful advice
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


def sentence(answer: "Answer") -> str:
    """The best method, its lead, whether the lead is significant, and the evidence."""
    found = verdict(answer)
    if answer.measure == NATS:
        return f"At {100 * answer.share:.3g} % of {answer.size.of}, {found} ({basis(answer)})."
    there_is = "there is " if found.startswith(NO_WINNER) else ""
    rests_on = basis(answer) if len(answer.compared) else "the reasons are below"
    return (
        f"At {100 * answer.share:.3g} % of {answer.size.of}, {there_is}{found} ({rests_on}).{_nats(answer)}"
    )


def _nats(answer: "Answer") -> str:
    """The loss predicted for the first method, and the method with the lowest predicted loss."""
    rows = answer.compared[answer.compared["nats"].notna()]
    if rows.empty:
        return ""
    first, least = rows.iloc[0], rows.loc[rows["nats"].astype(float).idxmin()]
    said = f" Predicted loss of {first['name']}: {_nats_of(first)}"
    if first["name"] == least["name"]:
        return f"{said}, the lowest of {len(rows)}."
    return f"{said}; {least['name']} has the lowest, {_nats_of(least)}."


def _nats_of(row) -> str:
    return f"{significant(row['nats'])} nats a token [{interval(row['nats_low'], row['nats_high'])}]"


def basis(answer: "Answer") -> str:
    """The measure, the evidence, and the test of significance."""
    if answer.measure == NATS:
        return f"{scope(answer)}; significant: 95 %, multiple comparisons with the best"
    return f"error: {scope(answer)}; {APART}"


def verdict(answer: "Answer") -> str:
    """The part of the sentence that differs from share to share."""
    rows = answer.compared
    if rows.empty:
        return "none of these methods was replayed"
    first, others = rows.iloc[0], rows.iloc[1:]
    if others.empty:
        return f"{first['name']} is the only method replayed, its error {significant(first['error'])}"
    if answer.measure == NATS:
        return _cheapest(first, others)
    worse, near = others[others["decided"]], others[~others["decided"]]
    if worse.empty:
        return _undecided(answer, first, others)
    least = f"{first['name']} has the lowest error, {significant(first['error'])}"
    if near.empty:
        second = others.iloc[0]
        lead = f"{second['name']}, the next, has {_ratio(second)} times as much"
        every = {1: "it is", 2: "both are"}.get(len(others), f"all {len(others)} others are")
        ends = interval(second["ratio_low"], second["ratio_high"])
        return f"{least}; {lead} [{ends}]; {every} significantly worse"
    rest = f"significantly worse: {_listed(worse['name'])}; not significantly: {_listed(_with_ratios(near))}"
    return f"{least}; {rest}"


def _undecided(answer: "Answer", first, others) -> str:
    """The sentence if no method is significantly worse than the first, and the evidence that is missing."""
    least = f"{NO_WINNER}: {first['name']} has the lowest error, {significant(first['error'])}"
    near = f"{least}, and no other is significantly worse: {_listed(_with_ratios(others))}"
    needed = _needed_layers(answer)
    return f"{near}; with {needed} like these {others.iloc[0]['name']} would be" if needed else near


def _with_ratios(rows) -> list[str]:
    """Names with their ratios to the first."""
    return [
        f"{row['name']} (+{significant(row['difference'])})"
        if np.isnan(row["ratio"])
        else f"{row['name']} (×{_ratio(row)})"
        for _, row in rows.iterrows()
    ]


def _ratio(row) -> str:
    return significant(row["ratio"])


def _cheapest(first, others) -> str:
    """The lowest predicted loss, the ratio of the next to it, and the methods that cost significantly
    more."""
    second, dearer = others.iloc[0], others[others["decided"]]
    least = f"{first['name']} is predicted to cost the model least, {_nats_of(first)}"
    if first["error"] > 0:
        ends = interval(second["ratio_low"], second["ratio_high"])
        times = f"{second['ratio']:.2f} times as much [{ends}]"
    else:
        times = _nats_of(second)
    more = f"{len(dearer)} of {count(len(others), 'other')} cost significantly more"
    if 0 < len(dearer) <= NAMED:
        more = f"{_listed(dearer['name'])} {'costs' if len(dearer) == 1 else 'cost'} significantly more"
    return f"{least}; {second['name']}, the next, {times}; {more}"


def scope(answer: "Answer") -> str:
    """The measure, and the heads, layers, texts and model behind it."""
    return f"{words_of(answer.measure)} over {_evidence(answer)}"


def _evidence(answer: "Answer") -> str:
    texts = f", {count(answer.n_texts, 'text')}, {answer.model.split('/')[-1] or 'unnamed model'}"
    return f"{count(answer.n_units, 'kv head')} of {count(len(answer.layers), 'layer')}{texts}"


def _blocks(answer: "Answer") -> str:
    """The number of independent blocks in words: layers, counted for each text."""
    of_texts = f" of {answer.n_texts} texts" if answer.n_texts > 1 else ""
    return count(answer.n_blocks, "layer") + of_texts


def _listed(labels) -> str:
    labels = list(labels)
    more = len(labels) - NAMED
    if more > 1:
        return f"{', '.join(labels[:NAMED])} and {more} others"
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"


def caveats(answer: "Answer") -> list[str]:
    """Limits to know before quoting the sentence, one sentence each."""
    rows = answer.compared
    of_test = _prediction_caveats if answer.measure == NATS else _layer_test_caveats
    return [
        *of_test(answer, rows),
        *_text_caveat(answer),
        *_interpolated(rows),
        *left_out(answer),
        *_phase_caveat(answer, rows),
        *_agreement_caveat(answer),
    ]


def _layer_test_caveats(answer: "Answer", rows) -> list[str]:
    """Limits of a test over layers."""
    return [
        *_few_layers_caveat(answer, rows),
        *_multiple_testing_caveat(answer, rows),
        *_contrary_layer_caveats(answer, rows),
        *_needed_layers_caveat(answer, rows),
    ]


def _prediction_caveats(answer: "Answer", rows) -> list[str]:
    """Limits of predicted nats."""
    layers = count(len(answer.layers), "layer")
    texts = [f"The loss is that of errors in {layers}: if the model has more, it is a lower bound."]
    if len(rows) < 2:
        return texts
    return [
        *texts,
        f"{_best_of(rows)}; p comes from how far predicted ratios of two methods were from measured ones.",
    ]


def _text_caveat(answer: "Answer") -> list[str]:
    if answer.n_texts == 0:
        return []
    return [f"Layers of {count(answer.n_texts, 'text')} are no evidence about other texts or models."]


def _few_layers_caveat(answer: "Answer", rows) -> list[str]:
    if answer.n_blocks >= FEWEST_BLOCKS or len(rows) < 2:
        return []
    return [
        f"With {_blocks(answer)} no difference can be significant: the test needs {FEWEST_BLOCKS}, since"
        " heads of one layer have similar errors."
    ]


def _multiple_testing_caveat(answer: "Answer", rows) -> list[str]:
    if len(rows) < 2:
        return []
    return [f"{_best_of(rows)}."]


def _best_of(rows) -> str:
    """What significance means, although the first was picked after looking."""
    return (
        f"The first was picked out of {len(rows)}: a significantly worse method cannot be the best, with"
        f" {100 * LEVEL:.0f} % confidence for all together (one-sided p times {len(rows) - 1})"
    )


def _contrary_layer_caveats(answer: "Answer", rows) -> list[str]:
    """Why a large difference of means is not significant."""
    if answer.n_blocks < FEWEST_BLOCKS:
        return []
    least = rows["error"].iloc[0] if len(rows) else 0
    large = rows.iloc[1:][~rows["decided"].iloc[1:] & (rows["error"].iloc[1:] > TWICE * least)]
    first = rows["name"].iloc[0]
    return [
        f"{row.name} has {_times(row.error / least)} times the mean error of {first}, but a higher error in"
        f" only {row.layers_more:.0f} of {_blocks(answer)}."
        for row in large.itertuples()
        if row.layers_more < answer.n_blocks
    ]


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < MOST_TIMES else significant(ratio)


def _needed_layers_caveat(answer: "Answer", rows) -> list[str]:
    """How many layers like these would make the next method significantly worse, where others are."""
    needed = _needed_layers(answer) if len(rows) > 1 and rows["decided"].any() else None
    if not needed:
        return []
    return [f"If other layers differ as much, {needed} would make {_names(rows)} differ significantly."]


def _needed_layers(answer: "Answer") -> str | None:
    """Layers like these that would make the second method significantly worse; None if it is, or if it has
    the lower error in the typical layer."""
    rows = answer.compared
    if rows["decided"].iloc[1] or answer.n_blocks < FEWEST_BLOCKS or not rows["ratio"].iloc[1] > 1:
        return None
    center, low, high = np.log(rows[["ratio", "ratio_low", "ratio_high"]].iloc[1].to_numpy(dtype=float))
    deviation = (high - low) / 2 / stdtrit(answer.n_blocks - 1, (1 + LEVEL) / 2) * np.sqrt(answer.n_blocks)
    counts = np.arange(FEWEST_BLOCKS, MOST_LAYERS + 1)
    needed = stdtrit(counts - 1, 1 - (1 - LEVEL) / (len(rows) - 1)) * deviation / np.sqrt(counts)
    enough = counts[needed < center]
    return f"about {enough[0]} layers" if len(enough) else f"more than {MOST_LAYERS} layers"


def _names(rows) -> str:
    return f"{rows['name'].iloc[0]} and {rows['name'].iloc[1]}"


def _interpolated(rows) -> list[str]:
    between = rows.loc[rows["how"].str.startswith("between"), "name"]
    if between.empty:
        return []
    return [f"Interpolated between two budgets (as a power of the bytes, for each head): {_listed(between)}."]


def left_out(answer: "Answer") -> list[str]:
    """Each reason once, with the labels that it applies to."""
    out = answer.ranking[answer.ranking["error"].isna()]
    reasons = out.groupby("how", sort=False)["name"]
    return [f"Not compared: {_listed(own)} ({why})." for why, own in reasons]


def _phase_caveat(answer: "Answer", rows) -> list[str]:
    if answer.size.name not in PHASES or not {STREAM, ONESHOT} <= set(rows["family"]):
        return []
    return [PHASES[answer.size.name]]


def _agreement_caveat(answer: "Answer") -> list[str]:
    return [ORDERS[answer.measure]] if answer.measure in ORDERS else []


def cells(answer: "Answer"):
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


def _layers(row, answer: "Answer"):
    """The number of layers in which a method's error is larger than the first's."""
    if np.isnan(row.error) or row.Index == 0:
        return ABSENT, None
    return f"{row.layers_more:.0f} of {answer.n_blocks}", row.layers_more


def text(answer: "Answer") -> str:
    """The whole answer for a terminal: the sentence, the table, the limits."""
    named = "" if answer.measure == NATS else "error: "
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
