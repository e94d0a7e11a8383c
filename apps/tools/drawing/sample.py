"""One query head of the sample trace with exact attention in float64, and simple caches to measure on it."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from kvanalysis.data.arrays import Recorded

TRACE = Path(__file__).resolve().parents[3] / "traces/samples/smollm2-135m.h5"
LAYERS = (0, 3, 7, 11, 15, 18, 21, 23, 26, 29)
SINKS = 4


@dataclass(frozen=True)
class Head:
    """One query head.

    x: exact probabilities of its decode rows [R, T]; weights: exp(l - max) [R, T]; k, v [T, D];
    o: exact outputs [R, D]; rows: index of each row's token [R]; prompt: length of the prompt.
    """

    x: np.ndarray
    weights: np.ndarray
    k: np.ndarray
    v: np.ndarray
    o: np.ndarray
    rows: np.ndarray
    prompt: int

    def outputs(self, kept, num=None, den=None):
        """(z [R, D], tau / Z [R]) for a cache that holds `kept` (bool [R, T]) with weights num, den [T]."""
        num = np.ones(len(self.v)) if num is None else num
        den = num if den is None else den
        held = self.weights * kept
        tau = (held * den).sum(1)
        return (held * num) @ self.v / tau[:, None], tau / self.weights.sum(1)

    def relative(self, kept, **weights):
        """‖z − o‖ / ‖o‖ of every row."""
        return norms(self.outputs(kept, **weights)[0] - self.o) / norms(self.o)


def norms(rows):
    return np.linalg.norm(rows, axis=1)


def _trace():
    recorded = Recorded(TRACE)
    return recorded, recorded.prompts()[0]


@cache
def heads_of(layer):
    """Returns (number of query heads, number of kv heads) of a layer."""
    recorded, prompt = _trace()
    return tuple(len(recorded.tensor(prompt, layer, name)) for name in ("q", "k"))


@cache
def attention(layer, query_head):
    """Returns (x, exp(l - max)), both [T, T] and lower triangular; prompt rows are included."""
    recorded, prompt = _trace()
    queries, keys = (recorded.tensor(prompt, layer, name) for name in ("q", "k"))
    key = keys[query_head // (len(queries) // len(keys))]
    logits = queries[query_head] @ key.T * recorded.attribute("scaling", prompt, layer)
    logits[np.triu_indices(len(key), 1)] = -np.inf
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True), weights


@cache
def head(layer=15, query_head=0):
    recorded, prompt = _trace()
    queries, keys = heads_of(layer)
    kv_head = query_head // (queries // keys)
    k, v = (recorded.tensor(prompt, layer, name)[kv_head] for name in ("k", "v"))
    first = int(recorded.attribute("n_prompt", prompt))
    x, weights = (rows[first:] for rows in attention(layer, query_head))
    return Head(x, weights, k, v, x @ v, np.arange(first, len(k)), first)


def value_norms(one):
    """Returns (‖V‖_op, ‖V‖_F), [R] each, of the values up to every row, from their Gram matrices."""
    gram = np.cumsum(one.v[:, :, None] * one.v[:, None, :], 0)[one.rows]
    return np.sqrt(np.linalg.eigvalsh(gram)[:, -1]), np.sqrt(np.trace(gram, axis1=1, axis2=2))


def causal(one):
    """bool [R, T]: the tokens that each row may see."""
    return np.arange(len(one.v)) <= one.rows[:, None]


def window(one, budget, sinks=0):
    """bool [R, T]: the first `sinks` and the newest tokens, `budget` in all, and the row's own token."""
    age = one.rows[:, None] - np.arange(len(one.v))
    return ((age <= budget - sinks) | (np.arange(len(one.v)) < sinks)) & (age >= 0)


def best_per_row(one, budget, of_prompt=False):
    """bool [R, T]: the `budget` tokens with the most attention of each row, of its prompt if `of_prompt`."""
    kept = np.zeros(one.x.shape, bool)
    among = one.x[:, : one.prompt] if of_prompt else one.x
    np.put_along_axis(kept, np.argsort(-among, 1, kind="stable")[:, :budget], True, 1)
    return kept


def one_shot(one, chosen):
    """bool [R, T]: the `chosen` tokens of the prompt, and every later token that the row may see."""
    kept = causal(one)
    kept[:, : one.prompt] = False
    kept[:, chosen] = True
    return kept


def heavy(layer, query_head, budget):
    """Indices of `budget` prompt tokens: half are the newest, half have the largest column sums."""
    one = head(layer, query_head)
    sums = attention(layer, query_head)[0][: one.prompt, : one.prompt].sum(0)
    recent = np.arange(one.prompt - budget // 2, one.prompt)
    sums[recent] = -1
    return np.union1d(recent, np.argsort(-sums, kind="stable")[: budget - len(recent)])
