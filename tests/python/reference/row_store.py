"""The stored entries of one kv head under a row format: when each is coded, and the bytes they take.

A token is exact in the prompt and in its own step. After every step the cache is pruned first, then the
remaining rows are coded, except protected ones. A coded row stays coded.
"""

import numpy as np

from .row_blocks import BLOCK_FORMATS, INDEX_BYTES, SCALE_BYTES
from .row_formats import PartFormat, RowFormat, Turned, coder_of, parse
from .row_rotations import Draws

WIDTH = 4  # bytes per number of the trace


class Exact:
    """One part (keys or values) without coding."""

    def __init__(self, x: np.ndarray):
        self.x, self.d = x.copy(), x.shape[1]

    def settle(self, live: np.ndarray, free: np.ndarray, recent: int) -> None:
        """Codes survivors. free [n]: mask of tokens that are no sinks. The newest `recent` - 1 stay exact."""

    def bytes_of(self, live: np.ndarray) -> tuple[float, float]:
        """What the live rows take: codes and exact rows, and scales."""
        return float(WIDTH * self.d * len(live)), 0.0

    def is_coded(self) -> np.ndarray:
        return np.zeros(len(self.x), dtype=bool)


class Rows(Exact):
    """A format that codes row by row; calibrated formats take their constants from all prompt rows."""

    def __init__(self, x, f: PartFormat, part: str, P: int, rope, draws: Draws):
        super().__init__(x)
        self.turned, self.positions = Turned(f, self.d, rope, draws), np.arange(len(x))
        self.space = self.turned.forward(x, self.positions)
        self.coder = coder_of(f, part, self.d, self.space[:P], draws)
        self.coded = np.zeros(len(x), dtype=bool)
        self.codes, self.scales = np.zeros(len(x)), np.zeros(len(x))

    def code(self, rows: np.ndarray) -> None:
        if len(rows) == 0:
            return
        self.x[rows] = self.turned.back(self.coder.read(self.space[rows]), self.positions[rows])
        self.codes[rows], self.scales[rows] = self.coder.sizes(self.space[rows])
        self.coded[rows] = True

    def settle(self, live, free, recent):
        older = live[: max(0, len(live) - (recent - 1))]
        self.code(older[free[older] & ~self.coded[older]])

    def bytes_of(self, live):
        exact = WIDTH * self.d * int((~self.coded[live]).sum())
        return exact + self.codes[live].sum(), self.scales[live].sum() + self.coder.static

    def is_coded(self):
        return self.coded


class Blocks(Exact):
    """kivi and gear: R waiting keys are coded, oldest first; a value is coded when R newer rows are held.

    Groups are formed of the survivors in order. An evicted token is removed from the residual. Bytes shared
    by several rows are charged until the last of these rows is evicted.
    """

    def __init__(self, x, f: PartFormat, part: str, rope, draws: Draws):
        super().__init__(x)
        self.part, self.coder = part, BLOCK_FORMATS[f.name](part, **f.options)
        self.turned, self.positions = Turned(f, self.d, rope, draws), np.arange(len(x))
        self.space = self.turned.forward(x, self.positions)
        self.block = np.full(len(x), -1)
        self.group = np.full(len(x), -1)  # group of each key
        self.corrections: list[tuple[int, int]] = []  # (rank, outliers) of each block

    def settle(self, live, free, recent):
        older = live if self.part == "key" else live[: max(0, len(live) - self.coder.R)]
        due = older[free[older] & (self.block[older] < 0)]
        if self.part == "key":
            due = due[: len(due) - len(due) % self.coder.R]
        if len(due):
            self.code(due)

    def code(self, rows: np.ndarray) -> None:
        coded, rank, outliers = self.coder.read(self.space[rows])
        self.x[rows] = self.turned.back(coded, self.positions[rows])
        self.block[rows] = len(self.corrections)
        self.group[rows] = self.group.max() + 1 + np.arange(len(rows)) // self.coder.g
        self.corrections.append((rank, outliers))

    def bytes_of(self, live):
        coded = live[self.block[live] >= 0]
        numbers = WIDTH * self.d * (len(live) - len(coded)) + len(coded) * np.ceil(
            self.d * self.coder.bits / 8
        )
        groups = len(np.unique(self.group[coded])) * self.d
        if self.part == "value":
            groups = len(coded) * int(np.ceil(self.d / self.coder.g))
        indices = 0
        for block in np.unique(self.block[coded]):
            rank, outliers = self.corrections[block]
            numbers += WIDTH * (rank * (int((self.block[coded] == block).sum()) + self.d) + outliers)
            indices += INDEX_BYTES * outliers
        return numbers, float(SCALE_BYTES * groups + indices)

    def is_coded(self):
        return self.block >= 0


class Store:
    """Keys [n, d] and values [n, dv] of one head, as read back at present."""

    def __init__(self, head, row_format=None, seed: int = 0, uniforms: dict | None = None):
        f = parse(row_format)
        if f.skips(head.layer, head.n_layers):
            f = RowFormat(PartFormat("source"), PartFormat("source"))
        self.format, draws = f, Draws(seed, uniforms)
        self.parts = {
            part: part_store(head, x, part, getattr(f, part), draws)
            for part, x in (("key", head.k), ("value", head.v))
        }
        self.free = np.arange(head.n) >= f.sinks

    @property
    def k(self) -> np.ndarray:
        return self.parts["key"].x

    @property
    def v(self) -> np.ndarray:
        return self.parts["value"].x

    def arrive(self, t: int) -> None:
        """Row t is written but not yet attended to: `own_row: coded` codes it here."""
        if self.format.own_row == "coded" and self.free[t]:
            for part in self.parts.values():
                if isinstance(part, Rows):
                    part.code(np.array([t]))

    def settle(self, live: np.ndarray) -> None:
        """Called with the survivors after the prompt and after every step."""
        for part in self.parts.values():
            part.settle(np.asarray(live), self.free, self.format.recent)

    def bytes_of(self, live: np.ndarray) -> tuple[float, float]:
        """What the live rows take: codes and exact rows, and scales.

        Rows of turboquant formats are rounded up to an even number of bytes.
        """
        live = np.asarray(live, dtype=int)
        key, value = (part.bytes_of(live) for part in self.parts.values())
        odd = 0.0
        if self.format.key.word and self.format.value.word:
            k, v = self.parts["key"], self.parts["value"]
            total = k.codes + k.scales + v.codes + v.scales
            odd = (total[live] % 2)[k.coded[live]].sum()
        return key[0] + value[0] + odd, key[1] + value[1]


def part_store(head, x: np.ndarray, part: str, f: PartFormat, draws: Draws) -> Exact:
    """The store of one part of a head."""
    if f.name == "source":
        return Exact(x)
    if f.by_block:
        return Blocks(x, f, part, head.rope, draws)
    return Rows(x, f, part, head.P, head.rope, draws)
