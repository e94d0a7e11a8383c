"""TriAttention where heads cut together (`level: head`, `level: union`): all of them hold the same tokens."""

import numpy as np

from .buffered import calibrate, standardised, target, tri_scores
from .common import Result, aggregate, attend, oneshot, stack, top
from .tier2_scores import ends


def proposed(scores, m):
    """`union`: every query head proposes its top m; of these the m largest by the maximum over all heads,
    filled up by that maximum. scores: [query heads of the model, candidates]."""
    largest = scores.max(axis=0)
    some = np.zeros(len(largest), dtype=bool)
    for own in scores:
        some[top(own, m)] = True
    taken = np.flatnonzero(some)
    best = taken[top(largest[taken], m)]
    if len(best) < m:
        rest = np.setdiff1d(np.arange(len(largest)), best)
        best = np.append(best, rest[top(largest[rest], m - len(best))])
    return np.sort(best)


def triattention(
    layers,
    B,
    level,
    phase="stream",
    buffer=128,
    buffer_in_budget=False,
    group="max",
    normalise=True,
    keep_prompt=False,
    sinks=0,
    recent=0,
    **more,
):
    """A Result for each head of each layer; layers: [[Head]], as many heads in each."""
    m = target(B, buffer, buffer_in_budget)
    heads = [h for same in layers for h in same]
    stats = {id(h): calibrate(h) for h in heads}
    P, n = heads[0].P, heads[0].n

    def of(head, candidates, T):
        scores = tri_scores(head, stats[id(head)], candidates, T, **more)
        return standardised(scores) if normalise else scores

    def cut(together, live, T):
        held = ends(len(live), 0, recent) | (live < (P if keep_prompt else sinks))
        count = (P if keep_prompt else 0) + m - held.sum()
        candidates = live[~held]
        scores = [of(h, candidates, T) for h in together]
        if level == "union":
            best = proposed(np.concatenate(scores), count)
        else:
            best = top(np.mean([aggregate(s, group) for s in scores], axis=0), count)
        return np.sort(np.append(live[held], candidates[best]))

    def sets(together):
        due = (lambda live: (live >= P).sum() > m) if keep_prompt else (lambda live: len(live) > m)
        live = np.arange(P)
        live = cut(together, live, P) if due(live) else live
        kept, attended = [live], []
        for t in range(P, n if phase == "stream" else P):
            live = np.append(live, t)
            attended.append(live)
            if (t + 1 - P) % buffer == 0 and due(live):
                live = cut(together, live, t + 1)
            kept.append(live)
        return kept, attended

    def result(head, kept, attended):
        if phase == "oneshot":
            return oneshot(head, kept[0])
        outs = [attend(head, P + i, live)[1] for i, live in enumerate(attended)]
        return Result(kept, stack(head, outs))

    if level == "union":
        shared = sets(heads)
        return [[result(h, *shared) for h in same] for same in layers]
    by_head = [sets([same[i] for same in layers]) for i in range(len(layers[0]))]
    return [[result(h, *by_head[i]) for i, h in enumerate(same)] for same in layers]
