"""What compressed caches do to the recorded answer of a prompt, predicted from its gradient.

To first order, the change of the answer's log-odds is the sum of the errors' products with its gradient.
Errors of compressed caches are large: they reach the next layer. So the recorder hides parts of the prompt.
The trace holds the first order of each mask (`answer_masked_a`) and the measured change of log p(answer)
(`answer_masked_logprob`; docs/formats.md). No compression method is involved.
"""

from dataclasses import dataclass

import numpy as np
from kvtrace.disk_file import open_hdf5
from scipy.optimize import isotonic_regression, minimize
from scipy.special import expit

RIDGE = 0.01  # keeps the logistic curve finite where masks leave all answers, or none


@dataclass(frozen=True)
class AnswerRecord:
    """What a trace says of a prompt's answer: its log-probability in nats and whether the model would say it;
    under each mask the first order [M] and the measured change [M] of that, and whether the model would say
    it [M]."""

    log_prob: float
    exact: bool
    first_order: np.ndarray
    change: np.ndarray
    exact_under: np.ndarray


@dataclass(frozen=True)
class LossCurve:
    """Losses [n] of log p(answer) in nats under masks whose first order predicts `size` [n], ascending."""

    size: np.ndarray
    loss: np.ndarray

    def of(self, size):
        """The loss at a first-order loss: between masks linear in logarithms, below the mildest one
        proportional, beyond the severest one with the slope of the last two, at most proportional."""
        if size <= self.size[0]:
            return float(max(size, 0) * self.loss[0] / self.size[0])
        x, y, at = np.log(self.size), np.log(self.loss), np.log(size)
        if at <= x[-1]:
            return float(np.exp(np.interp(at, x, y)))
        slope = np.clip((y[-1] - y[-2]) / (x[-1] - x[-2]), 0, 1) if len(x) > 1 else 0.0
        return float(np.exp(y[-1] + slope * (at - x[-1])))


def curve_of(record):
    """The LossCurve of a record: the monotone curve that is nearest to the logarithms of the masks' losses.
    None if no mask does what its first order says, a loss."""
    size, loss = -record.first_order, -record.change
    used = (size > 0) & (loss > 0)
    if not used.any():
        return None
    order = np.argsort(size[used], kind="stable")
    size, loss = size[used][order], loss[used][order]
    size, first = np.unique(size, return_index=True)
    return LossCurve(size, np.exp(isotonic_regression(np.log(loss[first])).x))


@dataclass(frozen=True)
class Chance:
    """The probability that the model says an answer, a logistic curve of its log-probability: the logarithm
    of its odds is `odds` at `mean` nats, and rises by `slope` a nat."""

    odds: float
    slope: float
    mean: float

    def of(self, log_prob):
        """The probability at a log-probability in nats."""
        return float(expit(self.odds + self.slope * (log_prob - self.mean)))


def chance_of(log_probs, exact):
    """The Chance of answers with log_probs [n] in nats, of which the model would say those with exact [n]:
    the most likely one, with a weak prior (RIDGE) on odds and slope. None without answers."""
    x, y = np.asarray(log_probs, dtype=float), np.asarray(exact, dtype=float)
    if len(x) == 0:
        return None
    mean, width = x.mean(), x.std() or 1.0
    at = (x - mean) / width

    def cost(found):
        odds = found[0] + found[1] * at
        off = expit(odds) - y
        rest = RIDGE * found
        return np.logaddexp(0, odds).sum() - y @ odds + rest @ found / 2, np.array(
            [off.sum(), off @ at]
        ) + rest

    odds, slope = minimize(cost, np.zeros(2), jac=True).x
    return Chance(odds, slope / width, mean)


@dataclass(frozen=True)
class AnswerResponse:
    """How a prompt's answer responds to errors: its `log_prob` with the full cache, its LossCurve (None: no
    mask gives one) and the Chance of the trace (None: there is none)."""

    log_prob: float
    curve: LossCurve | None = None
    chance: Chance | None = None

    def of(self, first_order):
        """(log-probability of the answer in nats, probability that the model says it) of an instance whose
        first order changes its log-odds by `first_order`; NaN where the trace has no masks."""
        if self.curve is None:
            return np.nan, np.nan
        log_prob = self.log_prob - self.curve.of(-first_order)
        return log_prob, self.chance.of(log_prob) if self.chance else np.nan


def answers_in(path):
    """{prompt: AnswerResponse} of the prompts of a trace file that have an answer with a gradient. Raises
    OSError."""
    with open_hdf5(path) as file:
        found = {prompt: _record_in(group) for prompt, group in file["prompts"].items()}
    records = {prompt: record for prompt, record in found.items() if record is not None}
    curves = {prompt: curve_of(record) for prompt, record in records.items()}
    chance = _chance_of_masks(records)
    return {
        prompt: AnswerResponse(record.log_prob, curves[prompt], chance) for prompt, record in records.items()
    }


def answer_begins(path):
    """{prompt: its answer's first token} of the prompts of a trace file that have an answer, whether or not
    with a gradient. Raises OSError."""
    with open_hdf5(path) as file:
        attributes = {prompt: group.attrs for prompt, group in file["prompts"].items()}
        return {prompt: int(own["answer_from"]) for prompt, own in attributes.items() if "answer_from" in own}


def _record_in(group):
    told = group.attrs
    if "answer_log_prob" not in told:
        return None
    names = ("answer_masked_a", "answer_masked_logprob", "answer_masked_exact")
    masks = [group[name][()] if name in group else np.zeros(0) for name in names]
    return AnswerRecord(float(told["answer_log_prob"]), bool(told["answer_exact"]), *masks)


def _chance_of_masks(records):
    """The Chance over all prompts of a trace, from the measured log-probabilities with and without masks."""
    pairs = [
        (record.log_prob + change, exact)
        for record in records.values()
        for change, exact in zip((0.0, *record.change), (record.exact, *record.exact_under), strict=True)
    ]
    return chance_of(*zip(*pairs, strict=True)) if pairs else None
