"""kivi and gear: row formats that code many rows at one time.

Keys are quantised per channel in groups of g consecutive rows, values per row in groups of g channels. A
block is the rows of a kv head that are coded at the same time.
"""

import numpy as np

from .common import bottom, top
from .row_codes import quantise_columns, quantise_rows

INDEX_BYTES = 4  # an outlier's index in its block
SCALE_BYTES = 4  # a group's offset and step


class Kivi:
    """KIVI. part: key or value."""

    def __init__(self, part: str, bits: int = 4, g: int = 32, R: int = 128):
        self.part, self.bits, self.g, self.R = part, bits, g, R

    def quantised(self, x: np.ndarray) -> np.ndarray:
        change = quantise_columns if self.part == "key" else quantise_rows
        return change(x, self.g, 2**self.bits - 1)

    def read(self, x: np.ndarray) -> tuple[np.ndarray, int, int]:
        """Returns a block [m, d] as read back, the rank of its correction and the number of its outliers."""
        return self.quantised(x), 0, 0

    def row_bytes(self, d: int) -> tuple[float, float]:
        """Codes and scales of one row; keys share the scales of their group."""
        scales = d / self.g if self.part == "key" else np.ceil(d / self.g)
        return float(np.ceil(d * self.bits / 8)), SCALE_BYTES * float(scales)


class Gear(Kivi):
    """GEAR, in the order of the released code (`order: outliers_first`); `order: residual` is ours.

    outliers_first: a line is a channel of the block (keys) or a row of the block (values), with m numbers.
    Its outliers are its floor(outliers/200 * m) smallest and as many largest numbers, ties to the earlier
    one. They are set to the mean of the whole line, outliers included, and the block is quantised as kivi
    does; then the outliers are restored exactly. The remaining difference from the input, 0 at outliers, gets
    a rank-r approximation, which is added to the whole block, including its outliers. A line shorter than
    200/outliers has none, such as rows of 64 values at 2 per cent.

    residual: the quantised block plus the rank-r approximation of its error; then the floor(outliers/100 *
    size) numbers of the block with the largest errors are restored exactly.

    The release starts the power iteration at random; here it starts from unit vectors. The release counts a
    channel's outliers by the width of the layer, not by the length of the channel.
    """

    def __init__(
        self,
        part: str,
        bits: int = 4,
        g: int = 32,
        R: int = 128,
        rank: int = 4,
        outliers: float = 2,
        order: str = "outliers_first",
    ):
        super().__init__(part, bits, g, R)
        self.rank, self.outliers, self.order = rank, outliers, order

    def read(self, x: np.ndarray) -> tuple[np.ndarray, int, int]:
        rank = min(self.rank, *x.shape)
        if self.order == "residual":
            return self.residual_first(x, rank)
        lines = x.T if self.part == "key" else x
        count = int(self.outliers * lines.shape[1] / 200)
        out = np.zeros(lines.shape, dtype=bool)
        for line, mask in zip(lines, out, strict=True):
            mask[np.concatenate([bottom(line, count), top(line, count)])] = True
        filled = np.where(out, lines.mean(axis=1, keepdims=True), lines)
        if self.part == "key":
            filled, out = filled.T, out.T
        coded = np.where(out, x, self.quantised(filled))
        return coded + low_rank(x - coded, rank), rank, 2 * count * len(lines)

    def residual_first(self, x: np.ndarray, rank: int) -> tuple[np.ndarray, int, int]:
        coded = self.quantised(x)
        restored = coded + low_rank(x - coded, rank)
        missed = np.abs(x - restored).ravel()
        worst = np.argsort(-missed, kind="stable")[: int(self.outliers * missed.size / 100)]
        restored.ravel()[worst] = x.ravel()[worst]
        return restored, rank, len(worst)


BLOCK_FORMATS = {"kivi": Kivi, "gear": Gear}


def orthonormal(x: np.ndarray) -> np.ndarray:
    """Gram-Schmidt on the columns; dependent columns become zero."""
    out = np.zeros_like(x)
    for j in range(x.shape[1]):
        column = x[:, j] - out[:, :j] @ (out[:, :j].T @ x[:, j])
        column = column - out[:, :j] @ (out[:, :j].T @ column)
        length = np.sqrt(column @ column)
        if length > 1e-12 * max(1e-300, np.sqrt(x[:, j] @ x[:, j])):
            out[:, j] = column / length
    return out


def low_rank(residual: np.ndarray, r: int) -> np.ndarray:
    """Rank-r approximation by 2 power iterations, started from the first r unit vectors."""
    if r == 0:
        return np.zeros_like(residual)
    right = np.eye(residual.shape[1])[:, :r]
    for _ in range(2):
        left = orthonormal(residual @ right)
        right = residual.T @ left
    return left @ right.T
