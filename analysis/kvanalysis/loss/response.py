"""The model's response to hidden tokens: from second-order predictions of errors to their real cost.

A trace with a gradient holds a few runs of the model with most of the prompt hidden at random, their
divergence row by row, and their products with the gradient (`masked_kl_rows`, `masked_a`; docs/formats.md).
No compression method is involved. These runs include effects that the second order lacks: pairs of rows,
errors that reach the next layer, and saturation (a model can only be so wrong).

Rows respond differently. Where the model is nearly certain of the next token, drawn labels are nearly always
that token and the gradient is nearly zero. The second order then misses an error that makes the model predict
another token. So rows are divided by the entropy of the model's own prediction into CLASSES of equal size,
and each class has its own curves: over the second order, and over the size of the errors
(the squared cosine distance of attention outputs, `masked_distance2`).
"""

from dataclasses import dataclass

import numpy as np
from kvtrace.disk_file import open_hdf5

from .estimate import by_blocks, by_row

CLASSES = 4
FEWEST_ROWS = 16  # rows of a class: means of fewer are unreliable
# Root mean square of ln(measured / predicted) below one nat: the cost of errors of one size differs by
# method, text and model. 0.29 over four models, 0.26 to 0.32 on each (docs/ranking.md).
METHODS_APART = 0.3


@dataclass(frozen=True)
class Curve:
    """Divergences `kl` [n] of runs, nats a token, whose errors have sizes `row` [n], ascending."""

    row: np.ndarray
    kl: np.ndarray

    def of(self, row, blocks):
        """The cost in nats a token of an error with size `row` >= 0 and second order `blocks` (by blocks of
        rows). Between the runs it is linear in logarithms. Beyond the largest run it has the slope of the
        last two, at most proportional. Small errors cost their second order, `blocks`: below the smallest run
        the curve gives way to it in proportion to the size, as the terms that the second order leaves out
        do."""
        if row < self.row[0]:
            share = row / self.row[0]
            return float(share * self.alone(row) + (1 - share) * blocks)
        return self.alone(row)

    def alone(self, row):
        """The cost without a second order: below the smallest run it is proportional to the size."""
        if row <= self.row[0]:
            return float(row * self.kl[0] / self.row[0])
        x, y = np.log(self.row), np.log(self.kl)
        at = np.log(row)
        if at >= x[-1]:
            slope = np.clip((y[-1] - y[-2]) / (x[-1] - x[-2]), 0, 1)
            return float(np.exp(y[-1] + slope * (at - x[-1])))
        return float(np.exp(np.interp(at, x, y)))


@dataclass(frozen=True)
class Response:
    """`rows` int [n], the tokens whose rows the trace scores, ascending; `classes` int [n], the class of
    each; for each class `by_gradient`, a Curve over the second order of its rows, and `by_distance`, a Curve
    over their squared cosine distance (None if the trace has no distances)."""

    rows: np.ndarray
    classes: np.ndarray
    by_gradient: list
    by_distance: list | None = None

    def of(self, a, rows, distance2=None):
        """The cost of errors in nats a token: the mean over rows of the cost of each class.

        a [n, S]: products of errors with the gradient at `rows` int [n], a subset of the response's rows;
        distance2 [n] or None: the squared cosine distance of each row, mean over layers and query heads. If
        both are known, a class costs the geometric mean of its two curves: the gradient knows which errors
        matter, the distance sees errors that turn a certain prediction into another one.
        """
        whole = by_row(a)
        if whole == 0:
            return 0.0
        pairs = by_blocks(a) / whole
        classes, total = self._classes_of(rows), 0.0
        for number in np.unique(classes):
            own = classes == number
            row = by_row(a[own])
            cost = self.by_gradient[number].of(row, row * pairs)
            if self.by_distance and distance2 is not None:
                cost = np.sqrt(cost * self.by_distance[number].alone(float(np.mean(distance2[own]))))
            total += own.mean() * cost
        return float(total)

    def _classes_of(self, rows):
        if len(self.by_gradient) == 1:
            return np.zeros(len(rows), dtype=int)
        return self.classes[np.searchsorted(self.rows, rows)]


MEASURED = ("masked_a", "masked_kl_rows", "masked_kl", "masked_distance2", "g_entropy")


def response_of(path, prompt):
    """The Response of a prompt in a trace file; None if the trace has none. Raises OSError."""
    with open_hdf5(path) as file:
        group = file.get(f"prompts/{prompt}", {})
        known = {name: group[name][()] for name in MEASURED if name in group}
        return response_in(known, _scored_rows(group))


def response_in(known, rows=None):
    """The Response of a prompt from its datasets {name: array} of MEASURED; None if they have none. Traces of
    older recorders hold no divergence of single rows: all their rows form one class.

    rows: tokens of the rows, from the layers' gradients; 0, 1, ... if None.
    """
    if "masked_a" not in known:
        return None
    a = known["masked_a"].astype(float)
    rows = np.arange(a.shape[1]) if rows is None else np.asarray(rows, dtype=int)
    if "masked_kl_rows" in known and "g_entropy" in known:
        distances = known.get("masked_distance2")
        return _of_classes(
            rows,
            a,
            known["masked_kl_rows"].astype(float),
            _by_entropy(known["g_entropy"]),
            None if distances is None else distances.astype(float),
        )
    curve = _curve(np.array([by_row(of_mask) for of_mask in a]), known["masked_kl"].astype(float))
    return None if curve is None else Response(rows, np.zeros(len(rows), dtype=int), [curve])


def _scored_rows(group):
    """The tokens of the rows of a prompt's gradient; None if no layer stores them."""
    for layer in group.get("layers", {}).values():
        if "g_rows" in layer:
            return layer["g_rows"][()]
    return None


def _by_entropy(entropy):
    """int [n]: the class of each row, rows of lowest entropy first."""
    count = max(min(CLASSES, len(entropy) // FEWEST_ROWS), 1)
    order = np.argsort(entropy, kind="stable")
    classes = np.empty(len(entropy), dtype=int)
    for number, own in enumerate(np.array_split(order, count)):
        classes[own] = number
    return classes


def _of_classes(rows, a, kl, classes, distances):
    """The Response for a [masks, rows, S], kl [masks, rows] and distances [masks, rows] or None; None if no
    curve can be drawn."""
    squares = (a**2).mean(axis=2) / 2
    by_gradient = _curves(squares, kl, classes)
    if by_gradient is None:
        return None
    return Response(
        rows, classes, by_gradient, None if distances is None else _curves(distances, kl, classes)
    )


def _curves(sizes, kl, classes):
    """[Curve] of sizes and kl [masks, rows], one per class; None if even all rows together give no curve. A
    class without a curve uses that of all rows."""
    whole = _curve(sizes.mean(axis=1), kl.mean(axis=1))
    if whole is None:
        return None
    parts = [classes == number for number in range(classes.max() + 1)]
    return [_curve(sizes[:, own].mean(axis=1), kl[:, own].mean(axis=1)) or whole for own in parts]


def _curve(row, kl):
    used = (row > 0) & (kl > 0)
    order = np.argsort(row[used])
    row, kl = row[used][order], kl[used][order]
    return Curve(row, np.maximum.accumulate(kl)) if len(row) > 1 else None
