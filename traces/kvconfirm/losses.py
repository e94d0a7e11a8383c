"""Losses of a compressed run relative to the full one, by row and by distance from the prompt's end."""

from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np

from .measures import measures

# Columns of older versions: the numbers of these measures.
OLD_NAMES = {
    "loss_increase": "ln_ppl_ratio",
    "kl_mean": "kld_mean",
    "kl_p95": "kld_p95",
    "top1_agreement": "same_top",
}
# Distances after the prompt, in rows, at which a range begins: errors may grow or shrink with the distance.
EDGES = (0, 16, 64, 256, 1024, 4096, 16384, 65536)
BLOCK = 1 << 22  # how many logits are compared at a time, in double precision


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
        found = measures(self.kl[part], self.same_top[part], self.loss[part], self.loss_full[part])
        return {
            "n_rows": last - first,
            "loss_full": float(self.loss_full[part].mean()),
            "loss": float(self.loss[part].mean()),
            **{old: found[name] for old, name in OLD_NAMES.items()},
            **found,
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
    p, q = full.double(), compressed.double()
    wanted = targets[:, None]
    log_p, log_q = p.logsumexp(-1), q.logsumexp(-1)
    losses = (log_p - p.gather(1, wanted)[:, 0], log_q - q.gather(1, wanted)[:, 0])
    same_top = p.argmax(-1) == q.argmax(-1)  # the lowest id of several largest
    weights = (p - log_p[:, None]).exp_()
    # A token to which the full model gives no probability adds nothing.
    kl = (p - q).masked_fill_(weights == 0, 0).mul_(weights).sum(-1) - (log_p - log_q)
    return [column.cpu().numpy() for column in (*losses, kl, same_top)]
