"""Losses of a compressed run relative to the full one, by row and by distance from the prompt's end."""

from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import torch

# Distances after the prompt, in rows, at which a range begins: errors may grow or shrink with the distance.
EDGES = (0, 16, 64, 256, 1024, 4096, 16384, 65536)
PART = 2048  # how many numbers are summed in single precision
BLOCK = 1 << 24  # how many logits are compared at a time


@dataclass
class Answer:
    """Greedy decoding of a known answer. exact: whether the model writes it. rank: the worst rank of one of
    its tokens in the vocabulary (1: each is the most probable). log_probability: of the answer, in nats."""

    exact: bool
    rank: int
    log_probability: float


def answer_of(logits, targets, first):
    """Answer from logits [R, V] whose rows from `first` on predict the answer's tokens targets[first:].

    Teacher forcing gives the same result as decoding: greedy decoding writes the answer exactly if each of
    its tokens is the most probable one after those before it.
    """
    part, wanted = logits[first : len(targets)].double().log_softmax(-1), targets[first:, None]
    own = part.gather(1, wanted)
    rank = int((part > own).sum(-1).max()) + 1
    return Answer(rank == 1, rank, float(own.sum()))


@dataclass
class RowLosses:
    """Arrays [R - 1], one number per row; the last row has no target. `loss_full`, `loss`: loss in nats of
    the full and the compressed run. `kl`: KL(full || compressed) in nats. `same_top`: whether the most
    probable token is the same (over draws: in which share of them)."""

    loss_full: np.ndarray
    loss: np.ndarray
    kl: np.ndarray
    same_top: np.ndarray

    def ranges(self):
        """[(from, to, means)] for all rows, then for the ranges between EDGES if there are several."""
        total = len(self.loss)
        edges = [edge for edge in EDGES if edge < total] + [total]
        parts = list(pairwise(edges))
        whole = [(0, total)] if len(parts) > 1 else []
        return [(first, last, self._means(first, last)) for first, last in whole + parts]

    def _means(self, first, last):
        part = slice(first, last)
        return {
            "n_rows": last - first,
            "loss_full": float(self.loss_full[part].mean()),
            "loss": float(self.loss[part].mean()),
            "loss_increase": float((self.loss[part] - self.loss_full[part]).mean()),
            "kl_mean": float(self.kl[part].mean()),
            "kl_p95": float(np.quantile(self.kl[part], 0.95)),
            "top1_agreement": float(self.same_top[part].mean()),
        }


def mean_rows(draws):
    """RowLosses with the mean over draws of each row."""
    names = [one.name for one in fields(RowLosses)]
    return RowLosses(*(np.mean([getattr(draw, name) for draw in draws], axis=0) for name in names))


def compare(full, compressed, targets):
    """RowLosses from logits [R, V] of the full and the compressed run; targets: token ids [R - 1]."""
    parts = []
    size = max(BLOCK // full.shape[-1], 1)
    for first in range(0, len(targets), size):
        rows = slice(first, min(first + size, len(targets)))
        parts.append(_compare_block(full[rows], compressed[rows], targets[rows]))
    return RowLosses(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _compare_block(full, compressed, targets):
    p, q = full.float(), compressed.float()
    wanted = targets[:, None]
    e, log_p = _exponentials(p)
    _, log_q = _exponentials(q)
    # A token to which the full model gives no probability adds nothing. Exact to about 1e-7 nats.
    mean = _sum((p - q).masked_fill_(e == 0, 0).mul_(e)) / _sum(e)
    kl = mean - (log_p - log_q)
    losses = (log_p - p.gather(1, wanted)[:, 0], log_q - q.gather(1, wanted)[:, 0])
    columns = (*losses, kl, p.argmax(-1) == q.argmax(-1))
    return [column.cpu().numpy() for column in columns]


def _exponentials(logits):
    """(exp(l - max) [R, V], log-sum-exp [R] in double precision)."""
    top = logits.amax(-1, keepdim=True)
    e = (logits - top).exp_()
    return e, _sum(e).log() + top[:, 0].double()


def _sum(x):
    """Sums [R] of x [R, V] in double precision. Parts are first summed in single precision, which is much
    faster."""
    return torch.stack([part.sum(-1) for part in x.split(PART, -1)], -1).double().sum(-1)
