"""Attention of several answers over a layer's rows: what each has kept of one prompt, and the tokens behind
it."""

from dataclasses import dataclass
from itertools import chain

import torch

from .attention import estimate
from .row_weights import first_seen


@dataclass(frozen=True)
class KeptTokens:
    """Tokens of a prompt that one answer attends to: int64 [m], and their weights, float32 [m]."""

    tokens: torch.Tensor
    num: torch.Tensor
    den: torch.Tensor

    @classmethod
    def all_of(cls, prompt):
        """Every token of a prompt of that length."""
        ones = torch.ones(prompt)
        return cls(torch.arange(prompt), ones, ones)


class KeptPrompt:
    """One layer: n answers, each with what it kept of the prompt, and room for the rows behind it.

    k [Hkv, P, D], v [Hkv, P, Dv]: the prompt's rows. lists: for each answer and kv head one KeptTokens, or
    one for each query head of its group. room: how many rows may follow. sight: the layer's window and
    chunk, see first_seen.
    """

    def __init__(self, k, v, lists, room, sight=(0, 0)):
        each = max(len(head) for of_answer in lists for head in of_answer)
        lists = [list(chain.from_iterable(_spread(head, each) for head in heads)) for heads in lists]
        series = len(k) * each
        self.prompt, self.sight = k.shape[1], sight
        self.series = series
        self.used = max(len(one.tokens) for of_answer in lists for one in of_answer)
        shape = (len(lists), series, self.used + room)
        self.tokens = torch.full(shape, -1, dtype=torch.int64)
        self.num, self.den = torch.zeros(shape), torch.zeros(shape)
        for n, of_answer in enumerate(lists):
            for s, one in enumerate(of_answer):
                at = n, s, slice(len(one.tokens))
                self.tokens[at], self.num[at], self.den[at] = one.tokens, one.num, one.den
        self.tokens, self.num, self.den = (x.to(k.device) for x in (self.tokens, self.num, self.den))
        if torch.equal(self.num, self.den):
            self.den = self.num
        self.k, self.v = (self._gathered(rows) for rows in (k, v))
        self.rows = 0  # rows behind the prompt

    def _gathered(self, rows):
        """The kept rows [n, S, M, width] of a prompt's rows [Hkv, P, width], float32."""
        heads = torch.arange(self.series, device=rows.device) * len(rows) // self.series
        return rows.float()[heads[None, :, None], self.tokens.clamp(min=0)].contiguous()

    def only(self, answers):
        """Drops the answers that are not in this index."""
        tied = self.den is self.num
        self.tokens, self.num, self.k, self.v = (x[answers] for x in (self.tokens, self.num, self.k, self.v))
        self.den = self.num if tied else self.den[answers]

    def attend(self, q, k, v, rule):
        """Outputs [n, Hq, R, Dv] of the next R rows: q [n, Hq, R, D]; k, v [n, Hkv, R, width] are kept."""
        n, heads, added, width = q.shape
        begin, end = self.used + self.rows, self.used + self.rows + added
        each = self.series // k.shape[1]
        self.k[:, :, begin:end] = k.repeat_interleave(each, 1)
        self.v[:, :, begin:end] = v.repeat_interleave(each, 1)
        first = self.prompt + self.rows
        self.tokens[:, :, begin:end] = torch.arange(first, first + added, device=q.device)
        self.num[:, :, begin:end] = 1
        self.den[:, :, begin:end] = 1
        self.rows += added
        group = heads // self.series
        rows = q.float().reshape(n, self.series, group * added, width)
        products = rows @ self.k[:, :, :end].transpose(-1, -2)
        num, den = self._weights(first, added, end, group)
        sink = None if rule.sinks is None else _sinks(rule.sinks, self.series, added)
        out = estimate(rule.logits(products), num, den, self.v[:, :, :end], sink)
        return out.to(q.dtype).reshape(n, heads, added, -1)

    def _weights(self, first, added, end, group):
        """num, den [n, S, group * R or 1, end] of rows first..first + R - 1; one tensor if they are equal."""
        num, den = self.num[:, :, None, :end], self.den[:, :, None, :end]
        if added == 1 and not any(self.sight):
            return num, num if self.den is self.num else den
        rows = torch.arange(first, first + added, device=num.device)
        tokens = self.tokens[:, :, None, :end]
        seen = (tokens <= rows[:, None]) & (tokens >= first_seen(rows, *self.sight)[:, None])
        seen = seen.repeat(1, 1, group, 1)
        return num * seen, num * seen if self.den is self.num else den * seen


def _spread(head, count):
    """`count` KeptTokens of a kv head: its own, or its only one repeated."""
    return head * count if len(head) == 1 else head


def _sinks(sinks, series, rows):
    """Sink logits [S, heads of a series * rows, 1] of the query heads [Hq]."""
    return sinks.view(series, -1, 1).repeat_interleave(rows, 1)
