"""Gives tokens to the heads where they save most: separable convex curves under one budget.

Between their points, curves are linear in log tokens, and convex there. A curve that is convex and falling in
log tokens is convex in tokens, so the gain of one more token shrinks with every token of a head. Giving out
tokens in the order of gain per cost is therefore optimal.
"""

import heapq
from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression

SPAN, HALVINGS = 1e-18, 200  # the search for a price ends at this part of the largest gain


@dataclass(frozen=True)
class Curves:
    """Predicted loss of H heads over tokens, at K points each: `tokens` [H, K] int, ascending (the last ones
    are equal if a head has fewer points); `kl` [H, K] nats a token, falling and convex in log tokens."""

    tokens: np.ndarray
    kl: np.ndarray

    def at(self, tokens: np.ndarray) -> np.ndarray:
        """[H] the loss of each head at its number of tokens [H], between its first and its last point."""
        logs = np.log(self.tokens)
        found = [np.interp(np.log(b), x, y) for b, x, y in zip(tokens, logs, self.kl, strict=True)]
        return np.array(found)

    def slopes(self) -> np.ndarray:
        """[H, K - 1] loss saved per unit of log tokens, at least 0; 0 where two points coincide."""
        widths = np.log(self.tokens[:, 1:] / self.tokens[:, :-1])
        return np.divide(-np.diff(self.kl), widths, out=np.zeros_like(widths), where=widths > 0)


def tokens_at(curves: Curves, price: np.ndarray) -> np.ndarray:
    """[H] the number of tokens that each save at least the head's `price` [H], above 0, in nats a token."""
    slopes, starts = curves.slopes(), curves.tokens[:, :-1]
    with np.errstate(divide="ignore", over="ignore"):
        # Token b + 1 saves slope * log(1 + 1/b), which is the price at b = 1 / (exp(price / slope) - 1).
        last = np.floor(1 / np.expm1(price[:, None] / slopes))
    bought = np.clip(last - starts + 1, 0, np.diff(curves.tokens))
    return curves.tokens[:, 0] + bought.sum(axis=1).astype(np.int64)


def largest_gain(curves: Curves, costs: np.ndarray) -> float:
    """The largest saving of one token per cost, over heads [H]; 0 if no head saves anything."""
    gains = curves.slopes() * np.log1p(1 / curves.tokens[:, :-1])
    return float((gains / costs[:, None]).max(initial=0.0))


def spend(curves: Curves, costs: np.ndarray, budget: float) -> np.ndarray:
    """[H] int tokens of each head with the smallest sum of losses at a cost (the sum of tokens times `costs`
    [H]) of at most `budget`, which covers the first point of every head. Equal gains go to the head with
    fewer tokens, then to the earlier one. With equal costs the budget is spent completely."""
    first = curves.tokens[:, 0].astype(np.int64)
    high = largest_gain(curves, costs)
    if high == 0:
        return _fill(curves, costs, budget, first)
    low, high, best = np.log(high * SPAN), np.log(high) + 1, first
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        tokens = tokens_at(curves, np.exp(middle) * costs)
        if tokens @ costs <= budget:
            high, best = middle, tokens
        else:
            low = middle
    return _fill(curves, costs, budget, best)


def _fill(curves: Curves, costs: np.ndarray, budget: float, tokens: np.ndarray) -> np.ndarray:
    """Gives out the rest of the budget token by token."""
    tokens, left = tokens.copy(), budget - float(tokens @ costs)
    slopes = curves.slopes()

    def offer(head):
        b = tokens[head]
        segment = np.searchsorted(curves.tokens[head], b, side="right") - 1
        return -slopes[head, segment] * np.log1p(1 / b) / costs[head], b, head

    ceilings = curves.tokens[:, -1]
    offers = [offer(head) for head in range(len(tokens)) if tokens[head] < ceilings[head]]
    heapq.heapify(offers)
    while offers:
        head = heapq.heappop(offers)[2]
        if costs[head] > left * (1 + 1e-12):
            continue
        tokens[head] += 1
        left -= float(costs[head])
        if tokens[head] < ceilings[head]:
            heapq.heappush(offers, offer(head))
    return tokens


def falling(kl: np.ndarray) -> np.ndarray:
    """[K] the nearest sequence, in least squares, that never rises: rising neighbours are replaced by their
    mean."""
    return isotonic_regression(kl, increasing=False).x


def convex(tokens: np.ndarray, kl: np.ndarray) -> np.ndarray:
    """[K] the lower convex envelope, over log tokens [K], of a sequence."""
    x, kept = np.log(tokens), []
    for i in range(len(x)):
        while len(kept) > 1 and _above(x, kl, kept[-2], kept[-1], i):
            kept.pop()
        kept.append(i)
    return np.interp(x, x[kept], kl[kept])


def _above(x, y, left, middle, right):
    """Whether the middle point is on or above the line through the others."""
    return (y[middle] - y[left]) * (x[right] - x[left]) >= (y[right] - y[left]) * (x[middle] - x[left])
