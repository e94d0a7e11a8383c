"""A row format for each layer, chosen at a price per byte."""

from collections.abc import Sequence

import numpy as np

from ..errors import ConfigError
from .budget_curves import MethodCurves
from .marginals import HALVINGS, largest_gain, tokens_at


def cheapest_formats(options: Sequence[MethodCurves], layers: np.ndarray, total: float) -> np.ndarray:
    """[H] the number of each head's option, one for all heads of a layer (`layers` [H]), at the lowest price
    per byte at which all heads together take at most `total` bytes.

    At a price, every layer independently chooses the option with the lowest loss plus price times bytes. The
    result is the best for the bytes that it takes; the unused part of `total` is smaller than one layer's
    change of format. Raises ConfigError if even the smallest options take more.
    """
    groups = np.unique(layers, return_inverse=True)[1]
    smallest, need = _choice(options, groups, np.inf)
    if need > total:
        raise ConfigError(
            f"--budget: {total:.0f} bytes in all, but the smallest budgets and row formats take {need:.0f}:"
            " raise it"
        )
    low, high, best = *_log_prices(options), smallest
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        chosen, taken = _choice(options, groups, np.exp(middle))
        if taken <= total:
            high, best = middle, chosen
        else:
            low = middle
    return best


def _log_prices(options):
    """Logarithms of prices that bracket all choices: from any loss for one byte down to a tiny fraction of
    it."""
    losses = max(option.curves.kl.max() for option in options)
    gains = [largest_gain(option.curves, np.maximum(option.rates, 1e-9)) for option in options]
    most = max(losses, *gains, 1e-300)
    return np.log(most) - 70, np.log(most) + 1


def _choice(options, groups, price):
    """([H] the option of each head, total bytes) at a price per byte in nats a token; inf: the smallest."""
    heads = np.arange(len(groups))
    losses, held = (np.array(each) for each in zip(*(_at(option, price) for option in options), strict=True))
    worth = held if np.isinf(price) else losses + price * held
    of_layers = np.array([np.bincount(groups, weights=each) for each in worth])
    chosen = of_layers.argmin(axis=0)[groups]
    return chosen, float(held[chosen, heads].sum())


def _at(option, price):
    """([H] loss, [H] bytes) of one option at a price."""
    if np.isinf(price):
        tokens = option.curves.tokens[:, 0]
    else:
        tokens = tokens_at(option.curves, np.maximum(price * option.rates, 1e-300))
    return option.curves.at(tokens), option.bytes_at(tokens)
