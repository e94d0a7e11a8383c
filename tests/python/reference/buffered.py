"""Eviction in a buffered frame while decoding: R-KV and TriAttention.

Sources: R-KV (arXiv 2505.24133), TriAttention (arXiv 2604.04921). Scores have no unit; sizes are tokens.
"""

from dataclasses import replace

import numpy as np

from .common import Result, aggregate, attend, dots, oneshot, softmax, stack, top
from .tier2_scores import ends, pooled

# --- The frame (D2) ---------------------------------------------------------------------------------


def buffered(head, m, buffer, cut, phase="stream", due=None):
    """Cuts to m tokens at the end of the prompt, then whenever `buffer` more steps are complete.

    cut(live, T) returns the survivors of the live tokens, T = tokens seen so far. due(live): whether a cut is
    due, by default more than m live tokens. Steps count whether or not they end in a cut.
    """
    due = due or (lambda live: len(live) > m)
    return held_by(
        head, *buffered_sets(head.P, head.n if phase == "stream" else head.P, buffer, cut, due), phase
    )


def buffered_sets(P, n, buffer, cut, due):
    """The frame for heads that hold equal tokens: the kept sets after the prompt and after each step up to
    token n, and the set that each step attends to."""
    live = np.arange(P)
    if due(live):
        live = cut(live, P)
    kept, attended = [live], []
    for t in range(P, n):
        live = np.append(live, t)
        attended.append(live)
        if (t + 1 - P) % buffer == 0 and due(live):
            live = cut(live, t + 1)
        kept.append(live)
    return kept, attended


def held_by(head, kept, attended, phase):
    """A head's Result for these sets."""
    if phase == "oneshot":
        return oneshot(head, kept[0])
    return Result(kept, stack(head, [attend(head, head.P + i, live)[1] for i, live in enumerate(attended)]))


def target(B, buffer, buffer_in_budget):
    """Tokens left by a cut: the budget, less the buffer if the buffer counts."""
    return B - buffer if buffer_in_budget else B


# --- R-KV -------------------------------------------------------------------------------------------


def importance(logits, kernel=7, agg="max"):
    """Step 2: attention of the window's rows to the older keys, max pooled. logits: [G, w, older keys].

    The softmax is over the older keys only. `max`: maximum of the logits over the group, before the softmax;
    `sum`: mean of the heads' softmaxes (a sum would only scale it).
    """
    p = softmax(logits.max(axis=0)) if agg == "max" else softmax(logits).mean(axis=0)
    return pooled(p.mean(axis=0), kernel, "max")


def similarity(keys):
    """Step 3: cosines of all live keys, 0 on the diagonal; one summation order, so that equal keys tie."""
    u = keys / (np.sqrt((keys * keys).sum(axis=1)) + 1e-8)[:, None]
    S = dots(u, u)
    np.fill_diagonal(S, 0.0)
    return S


def without_one_copy(S, threshold=0.5, retain="last"):
    """Step 4: zeroes the entry of one similar key in each row; a row without similar keys zeroes key 0.

    `first` takes the smallest index of a list in which every key that is not similar counts as 0. This is
    always key 0, since no key is similar to itself.
    """
    S = S.copy()
    if retain == "none":
        return S
    for row in S:
        similar = np.flatnonzero(row > threshold)
        row[similar[-1] if retain == "last" and len(similar) else 0] = 0.0
    return S


def redundancy(keys, threshold=0.5, retain="last"):
    """Steps 3-5: softmax of the mean similarity over all live keys. One entry per live key."""
    S = without_one_copy(similarity(keys), threshold, retain)
    return softmax(S.sum(axis=0) / len(keys))


def rkv_scores(head, live, T, window=8, kernel=7, blend=0.1, threshold=0.5, retain="last", agg="max"):
    """Step 6: Z of the live keys older than the window; blend is the published lambda."""
    older = live[:-window]
    logits = head.scale * dots(head.q[:, T - window : T], head.k[older])
    redundant = redundancy(head.k[live], threshold, retain)[: len(older)]
    return blend * importance(logits, kernel, agg) - (1 - blend) * redundant


def rkv(head, B, phase="stream", window=8, buffer=128, buffer_in_budget=False, **more):
    """R-KV: keeps important, non-redundant keys and the w newest. `lambda` is passed in `more`."""
    m = target(B, buffer, buffer_in_budget)
    scoring = dict(more)
    scoring["blend"] = scoring.pop("lambda", 0.1)

    def cut(live, T):
        best = top(rkv_scores(head, live, T, window, **scoring), m - window)
        return np.append(live[best], live[-window:])

    return buffered(head, m, buffer, cut, phase)


# --- TriAttention -----------------------------------------------------------------------------------


def pairs_and_rest(x, rope):
    """Vectors [..., d] as complex channel pairs [..., F] and the channels without rotation."""
    x = np.asarray(x, dtype=float)
    F = 0 if rope is None else len(rope.inv_freq)
    if F == 0 or rope.layout == "half_split":
        real, imaginary = x[..., :F], x[..., F : 2 * F]
    else:
        real, imaginary = x[..., 0 : 2 * F : 2], x[..., 1 : 2 * F : 2]
    return real + 1j * imaginary, x[..., 2 * F :]


def frequencies(rope):
    """Radians per position and pair."""
    return np.zeros(0) if rope is None else rope.inv_freq


def factor(rope):
    """The attention factor: cosine and sine of the rotation were multiplied by it."""
    return 1.0 if rope is None else rope.factor


def unrotated_pairs(x, positions, rope):
    """C15: the pairs of stored vectors [m, d], rotated back by their positions, without the factor."""
    z, rest = pairs_and_rest(x, rope)
    turn = np.exp(-1j * np.asarray(positions, dtype=float)[:, None] * frequencies(rope))
    return z / factor(rope) * turn, rest


def calibrate(head, others=None):
    """Mean pair, mean pair length and mean rest of each query head's un-rotated queries.

    q_mean [G, F] complex, q_abs_mean [G, F], q_rest_mean [G, d - 2F] of the prompt (`calibration: self`).
    With `others` (this head in other texts): each text's mean over all its rows, averaged over the texts.
    """
    if others is not None:
        means = [calibrate(replace(text, P=text.n)) for text in others]
        return tuple(np.mean(same, axis=0) for same in zip(*means, strict=True))
    found = [unrotated_pairs(q[: head.P], np.arange(head.P), head.rope) for q in head.q]
    return (
        np.stack([z.mean(axis=0) for z, _ in found]),
        np.stack([np.abs(z).mean(axis=0) for z, _ in found]),
        np.stack([rest.mean(axis=0) for _, rest in found]),
    )


def distances(offsets=65536):
    """1, 2, 4, ... up to `offsets`: distances of future queries in tokens."""
    return 2.0 ** np.arange(int(np.log2(offsets)) + 1)


def tri_scores(head, stats, live, T, offsets=65536, offset_agg="mean", norm_term="residual", trig_term=True):
    """Steps 1-2: expected logits of future queries for each live key, [G, live]. No softmax, no scale."""
    q_mean, q_abs_mean, q_rest_mean = stats
    kappa, rest = unrotated_pairs(head.k[live], live, head.rope)
    w, ahead = frequencies(head.rope), distances(offsets)
    scores = np.zeros((head.G, len(live)))
    for g in range(head.G):
        length = np.abs(q_mean[g]) * np.abs(kappa)
        phase = np.angle(q_mean[g]) - np.angle(kappa)
        seen = np.zeros((len(ahead), len(live)))
        for i, D in enumerate(ahead if trig_term else []):
            seen[i] = (length * np.cos(w * (T - live + D)[:, None] + phase)).sum(axis=1)
        trig = seen.mean(axis=0) if offset_agg == "mean" else seen.max(axis=0)
        left = q_abs_mean[g] - (np.abs(q_mean[g]) if norm_term == "residual" else 0.0)
        norm = (left * np.abs(kappa)).sum(axis=1)
        scores[g] = factor(head.rope) ** 2 * (trig + norm) + (rest * q_rest_mean[g]).sum(axis=1)
    return scores


def tri_scores_of_stored_keys(head, stats, live, T, offsets=65536):
    """(mean, residual) as in tri_scores, without rotating keys back: the offsets are folded into the
    query."""
    q_mean, q_abs_mean, q_rest_mean = stats
    z, rest = pairs_and_rest(head.k[live], head.rope)
    z = z / factor(head.rope)
    w = frequencies(head.rope)
    folded = np.exp(1j * np.outer(distances(offsets), w)).mean(axis=0)
    found = []
    for g in range(head.G):
        trig = (q_mean[g] * np.exp(1j * w * T) * folded * z.conj()).real
        norm = (q_abs_mean[g] - np.abs(q_mean[g])) * np.abs(z)
        found.append(factor(head.rope) ** 2 * (trig + norm).sum(axis=1) + rest @ q_rest_mean[g])
    return np.stack(found)


def standardised(scores):
    """Step 3: standardised per query head over the candidates; population deviation of at least 1e-6."""
    deviation = np.maximum(scores.std(axis=1, keepdims=True), 1e-6)
    return (scores - scores.mean(axis=1, keepdims=True)) / deviation


def triattention(head, B, group="max", **o):
    """TriAttention, one set per kv head. `keep_prompt`: the budget counts decode tokens only."""

    def best(scores, count):
        return top(aggregate(scores[0], group), count)

    return triattention_together([head], B, best, **o)[0]


def triattention_together(
    heads,
    B,
    best,
    phase="stream",
    buffer=128,
    buffer_in_budget=False,
    normalise=True,
    keep_prompt=False,
    sinks=0,
    recent=0,
    others=None,
    **more,
):
    """One Result per head; all heads hold equal tokens. best(scores, count) selects `count` of the candidates
    from each head's scores [query heads, candidates]."""
    m, P = target(B, buffer, buffer_in_budget), heads[0].P
    stats = [calibrate(head, others) for head in heads]

    def scores_of(head, own, candidates, T):
        scores = tri_scores(head, own, candidates, T, **more)
        return standardised(scores) if normalise else scores

    def cut(live, T):
        held = ends(len(live), 0, recent) | (live < (P if keep_prompt else sinks))
        candidates = live[~held]
        scores = [scores_of(head, own, candidates, T) for head, own in zip(heads, stats, strict=True)]
        chosen = best(scores, (P if keep_prompt else 0) + m - held.sum())
        return np.sort(np.append(live[held], candidates[chosen]))

    def due(live):
        return (live >= P).sum() > m if keep_prompt else len(live) > m

    sets = buffered_sets(P, heads[0].n if phase == "stream" else P, buffer, cut, due)
    return [held_by(head, *sets, phase) for head in heads]
