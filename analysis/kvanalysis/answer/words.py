"""An answer in words: a sentence to quote, and its limits."""

import numpy as np
from kvbase.selections import layer_words
from scipy.special import stdtrit

from ..stats.families import ONESHOT, STREAM
from ..stats.format import aligned, interval, significant
from ..stats.intervals import FEWEST_BLOCKS, LEVEL
from ..stats.words import count
from .measures import DEFAULT, MAIN, NATS
from .ranked import Ranked
from .sizes import PEAK, PROMPT
from .table import cells

NAMED = 3  # a sentence lists at most so many labels, and counts the rest
NO_WINNER = "no clear winner"
TEST = "significantly worse: ruled out as the best, with 95 % confidence for all methods together"
TESTS = {  # how that is tested: by nats, else by layers
    True: "multiple comparisons with the best",
    False: "paired t tests of the logarithm of the ratio over layers, multiple comparisons with the best",
}
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
TWICE = 2  # an error larger by this factor and yet not significantly larger needs an explanation
MOST_LAYERS = 200  # a larger number of layers is no useful advice


def sentence(answer: Ranked) -> str:
    """The best method, or all that may be the best, and the evidence: text to quote."""
    evidence = [f"{capital(line)}." for line in basis(answer)] if len(answer.compared) else []
    return " ".join([statement(answer), *evidence, *_nats(answer)])


def statement(answer: Ranked) -> str:
    """One sentence: which methods may have the lowest error or loss at the share."""
    found = verdict(answer)
    there_is = "there is " if found.startswith(NO_WINNER) else ""
    return f"At {100 * answer.share:.3g} % of {answer.size.of}, {there_is}{found}."


def basis(answer: Ranked) -> list[str]:
    """The measure with its evidence, and the test of significance."""
    named = "" if answer.measure == NATS else "error: "
    return [f"{named}{scope(answer)}", f"{TEST} ({TESTS[answer.measure == NATS]})"]


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _nats(answer: Ranked) -> list[str]:
    """The loss predicted for the first method, and the method with the lowest predicted loss."""
    rows = answer.compared[answer.compared["nats"].notna()]
    if rows.empty or answer.measure == NATS:
        return []
    first, least = rows.iloc[0], rows.loc[rows["nats"].astype(float).idxmin()]
    beside = f"Predicted loss of {first['name']}: {_nats_of(first)}"
    if first["name"] == least["name"]:
        return [f"{beside}, the lowest of {len(rows)}."]
    return [f"{beside}; {least['name']} has the lowest, {_nats_of(least)}."]


def _nats_of(row) -> str:
    nats = f"{significant(row['nats'])} nats a token"
    return nats if np.isnan(row["nats_low"]) else f"{nats} [{interval(row['nats_low'], row['nats_high'])}]"


def headline(answer: Ranked) -> str:
    """The verdict in a few words, with which its sentence begins: the best method if all others are
    significantly worse, else how many may be the best."""
    rows = answer.compared
    if rows.empty:
        return "none of these methods has a number: replay them at this share"
    near = int((~rows["decided"].iloc[1:]).sum())
    if near == 0:
        return rows["name"].iloc[0]
    return NO_WINNER if near == len(rows) - 1 else f"{near + 1} of {len(rows)} methods may be the best"


def verdict(answer: Ranked) -> str:
    """The part of the sentence that differs from share to share."""
    rows, found = answer.compared, headline(answer)
    if rows.empty:
        return found
    first, others = rows.iloc[0], rows.iloc[1:]
    if others.empty:
        return f"{found} is the only method with a number, its {_quantity(answer)} {_value(answer, first)}"
    worse, near = others[others["decided"]], others[~others["decided"]]
    lowest = f"the lowest {_quantity(answer)}"
    if near.empty:
        return f"{found} has {lowest}, {_value(answer, first)}; {_lead(answer, others)}"
    if worse.empty:
        least = f"{first['name']} has {lowest}, {_value(answer, first)}"
        return f"{found}: {least}, and {_none_of(others)} significantly worse{_missing(answer)}"
    best = _listed([f"{first['name']} with {lowest} ({_value(answer, first)})", *near["name"]], NAMED + 1)
    return f"{found}: {best}; significantly worse: {_listed(worse['name'])}"


def _quantity(answer: Ranked) -> str:
    return "predicted loss" if answer.measure == NATS else "error"


def _value(answer: Ranked, row) -> str:
    return _nats_of(row) if answer.measure == NATS else significant(row["error"])


def _lead(answer: Ranked, others) -> str:
    """How far the next method is behind, where all others are significantly worse."""
    second = others.iloc[0]
    every = {1: "it is", 2: "both others are"}.get(len(others), f"all {len(others)} others are")
    if np.isnan(second["ratio"]):
        behind = f"{significant(second['difference'])} more"
    else:
        typical = "" if answer.measure == NATS else " in the typical layer"
        ends = interval(second["ratio_low"], second["ratio_high"])
        behind = f"{significant(second['ratio'])} times as much{typical} [{ends}]"
    return f"{second['name']}, the next, has {behind}; {every} significantly worse"


def _none_of(others) -> str:
    return f"{others['name'].iloc[0]} is not" if len(others) == 1 else f"none of the {len(others)} others is"


def _missing(answer: Ranked) -> str:
    """The evidence that would make the second method significantly worse."""
    needed = _needed_layers(answer)
    second = answer.compared["name"].iloc[1]
    return f"; with {needed} like these, {second} would be significantly worse" if needed else ""


def scope(answer: Ranked) -> str:
    """The measure, and the heads, layers, texts and model behind it."""
    return f"{answer.measure_words} over {_evidence(answer)}"


def _evidence(answer: Ranked) -> str:
    texts = f", {count(answer.n_texts, 'text')}, {answer.model.split('/')[-1] or 'unnamed model'}"
    return f"{count(answer.n_units, 'kv head')} of {count(len(answer.layers), 'layer')}{texts}"


def _blocks(answer: Ranked) -> str:
    """The number of independent blocks in words: layers, counted for each text."""
    of_texts = f" of {answer.n_texts} texts" if answer.n_texts > 1 else ""
    return count(answer.n_blocks, "layer") + of_texts


def _listed(labels, most: int = NAMED) -> str:
    labels = list(labels)
    more = len(labels) - most
    if more > 1:
        return f"{', '.join(labels[:most])} and {more} others"
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"


def caveats(answer: Ranked) -> list[str]:
    """Limits to know before quoting the sentence, one sentence each."""
    rows = answer.compared
    of_test = _prediction_caveats if answer.measure == NATS else _layer_test_caveats
    return [
        *of_test(answer, rows),
        *_nats_caveat(answer, rows),
        *_text_caveat(answer),
        *_interpolated(rows),
        *left_out(answer),
        *_phase_caveat(answer, rows),
        *_agreement_caveat(answer),
    ]


def _layer_test_caveats(answer: Ranked, rows) -> list[str]:
    """Limits of a test over layers."""
    return [
        *_few_layers_caveat(answer, rows),
        *_contrary_layer_caveats(answer, rows),
        *_needed_layers_caveat(answer, rows),
    ]


def _prediction_caveats(answer: Ranked, rows) -> list[str]:
    """Limits of predicted nats."""
    layers = count(len(answer.layers), "layer")
    return [f"The loss is that of errors in {layers}: if the model has more, it is a lower bound."]


def _nats_caveat(answer: Ranked, rows) -> list[str]:
    """Why predicted nats are shown and do not rank."""
    if answer.measure == NATS or rows.empty or rows["nats"].isna().any() or rows["nats_low"].notna().all():
        return []
    return [
        "Predicted nats do not rank, as they have no interval: that takes a trace of all layers with a"
        " gradient (docs/prediction.md)."
    ]


def _text_caveat(answer: Ranked) -> list[str]:
    if answer.n_texts == 0:
        return []
    return [f"Layers of {count(answer.n_texts, 'text')} are no evidence about other texts or models."]


def _few_layers_caveat(answer: Ranked, rows) -> list[str]:
    if answer.n_blocks >= FEWEST_BLOCKS or len(rows) < 2:
        return []
    return [
        f"With {_blocks(answer)} no difference can be significant: the test needs {FEWEST_BLOCKS}, since"
        " heads of one layer have similar errors."
    ]


def _contrary_layer_caveats(answer: Ranked, rows) -> list[str]:
    """Methods whose mean and whose layers say different things."""
    if answer.n_blocks < FEWEST_BLOCKS or len(rows) < 2:
        return []
    first, others = rows.iloc[0], rows.iloc[1:]
    lower = others.loc[others["ratio"] < 1, "name"]
    large = others.loc[
        ~others["decided"] & (others["ratio"] > 1) & (others["error"] > TWICE * first["error"]), "name"
    ]
    texts = []
    if len(lower):
        have = "has" if len(lower) == 1 else "have"
        texts.append(
            f"{_listed(lower)} {have} a lower error than {first['name']} in the typical layer (a ratio below"
            " 1), but a higher mean: few layers with large errors decide the mean."
        )
    if len(large):
        texts.append(
            f"Not significant although the mean error is more than twice that of {first['name']}, because"
            f" layers differ: {_listed(large)}."
        )
    return texts


def _needed_layers_caveat(answer: Ranked, rows) -> list[str]:
    """How many layers like these would make the next method significantly worse, where others are."""
    needed = _needed_layers(answer) if len(rows) > 1 and rows["decided"].any() else None
    if not needed:
        return []
    return [f"If other layers differ as much, {needed} would make {_names(rows)} differ significantly."]


def _needed_layers(answer: Ranked) -> str | None:
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
    return f"about {enough[0]} layers" if len(enough) else None


def _names(rows) -> str:
    return f"{rows['name'].iloc[0]} and {rows['name'].iloc[1]}"


def _interpolated(rows) -> list[str]:
    between = rows.loc[rows["how"].str.startswith("between"), "name"]
    if between.empty:
        return []
    return [
        f"Interpolated between two budgets (as a power of the bytes, for each head): {_listed(between)}."
        " Budgets of this share give exact numbers, and perhaps another order."
    ]


def left_out(answer: Ranked, most: int | None = None) -> list[str]:
    """A sentence on methods that cannot be compared, each reason once; only their number if there are more
    than `most` reasons."""
    out = answer.ranking[answer.ranking["error"].isna()]
    reasons = [f"{_listed(own)} ({why})" for why, own in out.groupby("how", sort=False)["name"]]
    if not reasons:
        return []
    if most is not None and len(reasons) > most:
        return [f"Not compared: {len(out)} methods that were not replayed near this size."]
    return [f"Not compared: {'; '.join(reasons)}."]


def _phase_caveat(answer: Ranked, rows) -> list[str]:
    if answer.size.name not in PHASES or not {STREAM, ONESHOT} <= set(rows["family"]):
        return []
    return [PHASES[answer.size.name]]


def _agreement_caveat(answer: Ranked) -> list[str]:
    return [ORDERS[answer.measure]] if answer.measure in ORDERS and len(answer.compared) > 1 else []


def text(answers: list[Ranked]) -> str:
    """Whole answers for a terminal: for each the sentence, the table and its limits; at the end, once, what
    holds for all."""
    limits = [[*_closing(answer), *caveats(answer)] for answer in answers]
    shared = [line for line in limits[0] if all(line in own for own in limits)]
    parts = []
    for answer, lines in zip(answers, limits, strict=True):
        parts += [statement(answer), aligned(*cells(answer)), _bullets(set(lines) - set(shared), lines)]
    title = "For all shares:\n" if len(answers) > 1 else ""
    parts.append(title + _bullets(set(shared), shared))
    return "\n\n".join(part for part in parts if part)


def _bullets(chosen: set[str], lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines if line in chosen)


def _closing(answer: Ranked) -> list[str]:
    """The evidence, and what the columns hold."""
    layers = f"Layers {layer_words(answer.layers)}."
    if len(answer.compared) < 2:
        return [layers]
    measure, test = (f"{capital(line)}." for line in basis(answer))
    if answer.measure == NATS:
        columns = "p comes from how far predicted ratios of two methods were from measured ones; it is"
    else:
        columns = "Times the first is the geometric mean over layers, its interval that of one pair; p is"
    return [measure, layers, f"{columns} one-sided, times the number of comparisons.", test]
