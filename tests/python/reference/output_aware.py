"""Scores that use the values: OBCache's closed forms, and the wrappers CriticalKV and CAOTE.

Sources: OBCache (arXiv 2510.07651), CriticalKV (arXiv 2502.03805), CAOTE (arXiv 2504.14051). A score in mean
form is a probability averaged over its voting rows (D1); c of CAOTE is a length in the space of outputs.
"""

from dataclasses import dataclass

import numpy as np

from .common import aggregate, causal_probs, dots, oneshot, play, softmax, top
from .h2o import sizes
from .tier2_scores import dots as rowwise
from .tier2_scores import ends, expected_logits, norms, pooled

# --- Scores of single rows --------------------------------------------------------------------------


def obc(score, p, logits, v, out):
    """First-order change of one row's output when a value, a key (logit to 0) or both are dropped.

    p, logits: [..., tokens], out: [..., dv], v: [tokens, dv]; l is the scaled logit.
    """
    if score == "obc_value":
        return p**2 * rowwise(v, v)
    away = v - out[..., None, :]
    if score == "obc_key":
        return p**2 * logits**2 * rowwise(away, away)
    both = v + logits[..., None] * away
    return p**2 * rowwise(both, both)


def prompt_rows(head, first, score="probability"):
    """Scores of prompt rows first..P-1 for each prompt token: [G, rows, P], 0 for tokens a row cannot see."""
    p = causal_probs(head, head.P)[:, first:]
    if score == "probability":
        return p
    logits = head.scale * dots(head.q[:, first : head.P], head.k[: head.P])
    v = head.v[: head.P]
    return np.stack([obc(score, p[g], logits[g], v, p[g] @ v) for g in range(head.G)])


def decode_row(head, t, live, p, score="probability"):
    """Scores of decode row t for its live tokens: [G, live]."""
    if score == "probability":
        return p
    logits = head.scale * dots(head.q[:, t], head.k[live])
    return obc(score, p, logits, head.v[live], p @ head.v[live])


# --- Scorers in mean form ---------------------------------------------------------------------------


@dataclass
class MeanForm:
    """per_head: [G, P] of one kv head; group: [P], their mean, then pooled; protected: [P]."""

    per_head: np.ndarray
    group: np.ndarray
    protected: np.ndarray


def snapkv_mean(head, window=32, kernel=7, pool="max", score="probability", whole=False):
    """SnapKV's votes by row and head. `whole`: the window's tokens score their plain mean, else 0."""
    P, prefix = head.P, head.P - window
    votes = prompt_rows(head, prefix, score).mean(axis=1)

    def pool_prefix(x):
        tail = x[..., prefix:] if whole else np.zeros_like(x[..., prefix:])
        return np.concatenate([pooled(x[..., :prefix], kernel, pool), tail], axis=-1)

    return MeanForm(pool_prefix(votes), pool_prefix(votes.mean(axis=0)), ends(P, recent=window))


def expected_mean(head, n_future=512, sinks=4, covariance=True, whole=False):
    """Expected Attention without the values' norms; the sinks have no score."""
    z = np.stack([expected_logits(head, g, n_future, sinks, covariance)[sinks:] for g in range(head.G)])
    p = np.concatenate([np.zeros((head.G, sinks)), softmax(z)], axis=1)
    return MeanForm(p, p.mean(axis=0), ends(head.P, sinks))


def tova_mean(head, recent=0, score="probability", whole=False):
    """TOVA: scores of the last prompt row."""
    p = prompt_rows(head, head.P - 1, score)[:, 0]
    return MeanForm(p, p.mean(axis=0), ends(head.P, recent=recent))


SCORERS = {"snapkv": snapkv_mean, "expected_attention": expected_mean, "tova": tova_mean}

# --- Wrappers ---------------------------------------------------------------------------------------


def projected_norms(head):
    """N_j = mean over the group of the L1 norm of v_j W_h, over all prompt tokens."""
    return np.mean(
        [np.abs(np.einsum("md,dh->mh", head.v[: head.P], W)).sum(axis=1) for W in head.o_proj], axis=0
    )


def critical_choice(S, N, protected, B, alpha=0.5, eps=1e-4):
    """Keeps protected tokens, then the best by S up to floor(alpha*B) in all, then the best by (S +
    eps)*N."""
    kept = protected.copy()
    for goal, score in ((int(np.floor(alpha * B)), S), (B, (S + eps) * N)):
        free = np.flatnonzero(~kept)
        kept[free[top(score[free], goal - kept.sum())]] = True
    return np.flatnonzero(kept)


def caote_changes(S, v, fast=False):
    """c_j: length of the change of the output sum alpha_j v_j when only token j is evicted; alpha = S/sum S.

    S: [tokens]. `fast` uses the plain mean of v as the output. The norm is not squared.
    """
    alpha = S / S.sum()
    out = v.mean(axis=0) if fast else alpha @ v
    with np.errstate(divide="ignore", invalid="ignore"):
        c = alpha / (1 - alpha) * norms(out - v)
    return np.where(alpha == 1.0, np.inf, c)


def caote_scores(per_head, group, v, level="query", fast=False):
    """`query`: changes of each query head, summed; `kv`: changes of the group's mean."""
    if level == "kv":
        return caote_changes(group, v, fast)
    return sum(caote_changes(S, v, fast) for S in per_head)


def wrapped(head, B, name, wrapper=None, score="probability", **scoring):
    """A one-shot scorer in mean form, with another score per row or inside a wrapper."""
    if head.P <= B:
        return oneshot(head, np.arange(head.P))
    if name == "snapkv" and scoring.get("window", 32) >= B:
        return oneshot(head, np.arange(head.P - B, head.P))
    spec = dict(wrapper or {"name": "none"})
    kind = spec.pop("name")
    if score != "probability":
        scoring = {**scoring, "score": score}
    S = SCORERS[name](head, **scoring, whole=kind == "caote")
    if kind == "critical":
        return oneshot(head, critical_choice(S.group, projected_norms(head), S.protected, B, **spec))
    ranks = S.group
    if kind == "caote":
        ranks = caote_scores(S.per_head, S.group, head.v[: head.P], **spec)
    held = np.flatnonzero(S.protected)
    free = np.flatnonzero(~S.protected)
    return oneshot(head, np.sort(np.append(held, free[top(ranks[free], B - len(held))])))


# --- Streams ----------------------------------------------------------------------------------------


def ranks_of(S, v, wrapper):
    """Scores for ranking, higher is kept. S: [G, live]."""
    if wrapper is None:
        return aggregate(S)
    spec = {k: x for k, x in wrapper.items() if k != "name"}
    return caote_scores(S, S.mean(axis=0), v, **spec)


def tova(head, B, phase="stream", recent=0, wrapper=None, score="probability", play=play):
    """TOVA with another score of the current row, or with the change of its output (`caote`)."""

    def cut(live, S):
        if len(live) <= B:
            return live
        ranks = ranks_of(S, head.v[live], wrapper)
        return live[top(np.where(ends(len(live), 0, recent), np.inf, ranks), B)]

    live = np.arange(head.P)
    start = cut(live, prompt_rows(head, head.P - 1, score)[:, 0])
    return play(head, start, lambda t, live, p: cut(live, decode_row(head, t, live, p, score)), phase)


def h2o(head, B, phase="stream", recent_frac=0.5, heavy=None, recent=None, wrapper=None, score="probability"):
    """H2O (`real_drop`) that accumulates another score, or ranks the accumulated score by `caote`."""
    heavy, recent = sizes(B, recent_frac, heavy, recent)
    A = np.zeros((head.G, head.n))
    A[:, : head.P] = prompt_rows(head, 0, score).sum(axis=1)

    def cut(live):
        if len(live) <= heavy + recent:
            return live
        ranks, old = ranks_of(A[:, live], head.v[live], wrapper), len(live) - recent
        return np.append(live[top(ranks[:old], heavy)], live[old:])

    def evict(t, live, p):
        A[:, live] += decode_row(head, t, live, p, score)
        return cut(live)

    start = cut(np.arange(head.P))
    return play(head, start, evict, phase)
