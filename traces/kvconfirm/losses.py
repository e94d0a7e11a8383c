"""What a compressed run loses against the full one, row by row and by distance from the prompt's end."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

# Rows behind the prompt at which a new range begins: errors grow, or heal, with the distance.
EDGES = (0, 16, 64, 256, 1024, 4096, 16384, 65536)
BLOCK = 256  # rows whose distributions are in memory in double precision


@dataclass
class Answer:
    """A given answer under greedy decoding: whether the model writes it, the worst rank of one of its tokens
    among the vocabulary (1 = all are the most probable ones), and its log-probability in nats."""

    exact: bool
    rank: int
    log_probability: float


def answer_of(logits, targets, first):
    """Answer of logits [R, V] whose rows `first`.. predict the answer's tokens targets[first:].

    Teacher forcing changes nothing here: greedy decoding writes the answer exactly where each of its tokens
    is the most probable one behind those before it.
    """
    part, wanted = logits[first : len(targets)].double().log_softmax(-1), targets[first:, None]
    own = part.gather(1, wanted)
    rank = int((part > own).sum(-1).max()) + 1
    return Answer(rank == 1, rank, float(own.sum()))


@dataclass
class RowLosses:
    """Per row [R - 1], the last has no target: loss (nats) of both runs, KL(full || compressed) in nats, and
    whether the most probable token is the same."""

    loss_full: np.ndarray
    loss: np.ndarray
    kl: np.ndarray
    same_top: np.ndarray

    def ranges(self):
        """[(from, to, means)] of all rows, then of the ranges between EDGES if there are several."""
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


def compare(full, compressed, targets):
    """RowLosses of logits [R, V] of the full and of the compressed run; targets [R - 1] token ids."""
    parts = []
    for first in range(0, len(targets), BLOCK):
        rows = slice(first, min(first + BLOCK, len(targets)))
        parts.append(_compare_block(full[rows], compressed[rows], targets[rows]))
    return RowLosses(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _compare_block(full, compressed, targets):
    p, q = full.double().log_softmax(-1), compressed.double().log_softmax(-1)
    wanted = targets[:, None]
    kl = torch.where(p > -torch.inf, p.exp() * (p - q), 0).sum(-1)
    columns = (-p.gather(1, wanted)[:, 0], -q.gather(1, wanted)[:, 0], kl, p.argmax(-1) == q.argmax(-1))
    return [column.cpu().numpy() for column in columns]
