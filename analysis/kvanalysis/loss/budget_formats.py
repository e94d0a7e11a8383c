"""Row formats for groups of heads, such as layers, chosen at a price per byte."""

from collections.abc import Sequence

import numpy as np

from ..errors import ConfigError
from .budget_curves import MethodCurves
from .marginals import HALVINGS, largest_gain, tokens_at


def cheapest_formats(
    options: Sequence[MethodCurves], together: np.ndarray, total: float
) -> tuple[np.ndarray, float]:
    """([H] the number of each head's option, one for all heads with an equal number in `together` [H]; the
    price per byte): the lowest price at which all heads together take at most `total` bytes.

    At a price, every group independently chooses the option with the lowest loss plus price times bytes. The
    result is the best for the bytes that it takes; the unused part of `total` is smaller than the change of
    format of the groups that change at this price. Raises ConfigError if even the smallest options take more.
    """
    groups = np.unique(together, return_inverse=True)[1]
    smallest, need = _choice(options, groups, np.inf)
    if need > total:
        raise ConfigError(
            f"{total:.0f} bytes in all, but the smallest budgets and row formats take {need:.0f}: allow more"
        )
    low, high, best = *_log_prices(options), smallest
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        chosen, taken = _choice(options, groups, np.exp(middle))
        if taken <= total:
            high, best = middle, chosen
        else:
            low = middle
    return best, float(np.exp(high))


def least_loss(options: Sequence[MethodCurves], price: float, total: float) -> float:
    """A bound: no choice of an option for each head that takes at most `total` bytes has a smaller sum of
    losses, because at this price none has a smaller sum of losses and costs."""
    losses, held = _all_at(options, price)
    return max(0.0, float((losses + price * held).min(axis=0).sum()) - price * total)


def spend_rest(options: Sequence[MethodCurves], chosen: np.ndarray, total: float) -> np.ndarray:
    """[H] the choice `chosen` after single heads took better options, for options without a choice of tokens:
    always the change that saves most per byte of those that the rest of `total` still pays for."""
    chosen, heads = chosen.copy(), np.arange(len(chosen))
    losses, held = _all_at(options, np.inf)
    while True:
        saved = losses[chosen, heads] - losses
        more = held - held[chosen, heads]
        fits = (saved > 0) & (more <= total - held[chosen, heads].sum())
        if not fits.any():
            return chosen
        gain = np.where(fits, saved / np.maximum(more, 1e-9), -np.inf)
        option, head = np.unravel_index(gain.argmax(), gain.shape)
        chosen[head] = option


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
    losses, held = _all_at(options, price)
    worth = held if np.isinf(price) else losses + price * held
    of_layers = np.array([np.bincount(groups, weights=each) for each in worth])
    chosen = of_layers.argmin(axis=0)[groups]
    return chosen, float(held[chosen, heads].sum())


def _all_at(options, price):
    """([options, H] losses, [options, H] bytes) at a price."""
    return (np.array(each) for each in zip(*(_at(option, price) for option in options), strict=True))


def _at(option, price):
    """([H] loss, [H] bytes) of one option at a price."""
    if option.curves.tokens.shape[1] == 1:
        return option.curves.kl[:, 0], option.bytes_at(option.curves.tokens[:, 0])
    if np.isinf(price):
        tokens = option.curves.tokens[:, 0]
    else:
        tokens = tokens_at(option.curves, np.maximum(price * option.rates, 1e-300))
    return option.curves.at(tokens), option.bytes_at(tokens)
