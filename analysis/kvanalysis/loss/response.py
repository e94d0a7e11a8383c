"""How a model answers to hidden tokens: from what the gradient says of errors to what they cost.

A trace with a gradient holds a few runs of the model with most of the prompt hidden at random, their
divergence and their products with the gradient (`masked_kl`, `masked_a`; docs/formats.md). No compression
method has a part in them. They hold what the second order leaves out: pairs of rows, errors that reach the
next layer, and that a model can only be so wrong.
"""

from dataclasses import dataclass

import h5py
import numpy as np

from .estimate import by_row

# Standard deviation of ln(measured / predicted): what errors of one size cost differs by method. Of 249
# instances on the three texts of configs/confirm/texts (docs/prediction.md).
METHODS_APART = 0.22


@dataclass(frozen=True)
class Response:
    """Divergences `kl` [n] of runs whose rows say `row` [n], nats a token, ascending in `row`."""

    row: np.ndarray
    kl: np.ndarray

    def of(self, row, blocks):
        """Nats a token that an error costs whose rows say `row` >= 0, and its blocks of rows `blocks`: linear
        between the runs in logarithms; beyond the severest with the slope of the last two, at most in
        proportion. Small errors cost their second order, `blocks`: below the mildest run its answer gives way
        to that in proportion to the size, as the terms that the second order leaves out do."""
        if row == 0:
            return 0.0
        x, y = np.log(self.row), np.log(self.kl)
        at = np.log(row)
        if at <= x[0]:
            share = row / self.row[0]
            return float(share * row * self.kl[0] / self.row[0] + (1 - share) * blocks)
        if at >= x[-1]:
            slope = np.clip((y[-1] - y[-2]) / (x[-1] - x[-2]), 0, 1)
            return float(np.exp(y[-1] + slope * (at - x[-1])))
        return float(np.exp(np.interp(at, x, y)))


def response_of(path, prompt):
    """The Response of a prompt of a trace file; None where the trace holds none. Raises OSError."""
    with h5py.File(path) as file:
        group = file.get(f"prompts/{prompt}")
        if group is None or "masked_a" not in group:
            return None
        row = np.array([by_row(a) for a in group["masked_a"][()]])
        kl = group["masked_kl"][()].astype(float)
    used = (row > 0) & (kl > 0)
    order = np.argsort(row[used])
    row, kl = row[used][order], kl[used][order]
    return Response(row, np.maximum.accumulate(kl)) if len(row) > 1 else None
