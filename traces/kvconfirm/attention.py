"""Attention of decode rows over the rows of a compressed cache."""

from dataclasses import dataclass

import torch

from .rotation import turn


@dataclass(frozen=True)
class LogitRule:
    """Logits l = scaling <q, k>, then softcap * tanh(l / softcap) if softcap > 0. `sinks` [Hq] or None: one
    extra logit per head that counts in the denominator and has no value."""

    scaling: float
    softcap: float = 0.0
    sinks: torch.Tensor | None = None

    def logits(self, products):
        """Logits of products <q, k>."""
        scaled = products * self.scaling
        return self.softcap * torch.tanh(scaled / self.softcap) if self.softcap else scaled


def bias_of(num):
    """Additive mask [1, S, R, T] from weights [S, R, T]: their logarithm, -inf for tokens that a row does not
    attend to."""
    return num.log()[None]


def attend(q, k, v, rows, rule, rotary=None):
    """The general estimator o = sum num exp(l) v / sum den exp(l), [Hq, R, Dv].

    q [Hq, R, D]; k [H, T, D], v [H, T, Dv] for kv heads or for series; rows: LayerRows of tensors; rule: a
    LogitRule; rotary: the layer's Rotary, needed if keys move.
    """
    group = q.shape[0] // k.shape[0]
    series = rows.num.shape[0]
    heads_each = q.shape[0] // series
    out = []
    for s in range(series):
        heads = slice(s * heads_each, (s + 1) * heads_each)
        kv = heads.start // group
        sinks = None if rule.sinks is None else rule.sinks[heads]
        one = LogitRule(rule.scaling, rule.softcap, sinks)
        out.append(_attend_series(q[heads], k[kv], v[kv], rows, s, one, rotary))
    return torch.cat(out)


def _attend_series(q, k, v, rows, s, rule, rotary):
    logits = q @ k.T
    if rows.moved is not None:
        _turn_logits(logits, q, k, rows.moved[s], rotary)
    sink = None if rule.sinks is None else rule.sinks[:, None, None]
    return estimate(rule.logits(logits), rows.num[s], rows.den[s], v, sink)


def estimate(logits, num, den, v, sink=None):
    """o = sum num exp(l) v / sum den exp(l), [..., R, Dv].

    logits [..., R, T]; num, den: weights that broadcast to them, one tensor if they are equal; v [..., T,
    Dv]; sink: one extra logit for each row of the denominator, [..., 1, 1] or [..., R, 1].
    """
    shown = num != 0 if num is den else (num != 0) | (den != 0)
    top = logits.masked_fill(~shown, -torch.inf).amax(-1, keepdim=True)
    extra = 0
    if sink is not None:
        top = torch.maximum(top, sink)
        extra = (sink - top).exp()
    e = (logits - top).exp().masked_fill(~shown, 0)
    return (e * num) @ v / ((e * den).sum(-1, keepdim=True) + extra)


def _turn_logits(logits, q, k, moved, rotary):
    """Replaces the logits of keys whose position differs from the recorded one."""
    row, token = torch.nonzero(moved, as_tuple=True)
    turned = turn(k[token], moved[row, token], rotary)
    for head in range(q.shape[0]):
        logits[head, row, token] = (q[head, row] * turned).sum(-1)
