"""Tier-2 eviction methods of one kv head: one-shot selections and their streaming forms."""

import numpy as np

from .common import Result, aggregate, per_query_head, softmax, stack, top
from .tier2_formats import attend_stored, make_store, replay_stored
from .tier2_scores import Scored, cosine_to_anchor, dots, ends, last_rows, norms, pooled, protect, score


def ranked(scores, protected):
    """Scores that rank protected tokens before all others."""
    return np.where(protected, np.inf, scores)


def keep_top(scores, protected, B):
    """Keeps the protected tokens and the best others, B in all; everything if it fits.

    Only observation windows can protect more tokens than the budget: then the last B are kept (SnapKV 1), or
    the sinks (C16) and the last of the others.
    """
    P = len(scores)
    if P <= B:
        return np.arange(P)
    if protected.sum() > B:
        sinks = int(np.argmin(protected))
        return np.append(np.arange(sinks), np.arange(P - B + sinks, P))
    return top(ranked(scores, protected), B)


def uniform_weights(kept, protected, P):
    """`reweight: uniform`: (P - p)/(m - p) on kept unprotected prompt tokens, p of them protected."""
    p, m = protected.sum(), len(kept)
    if m == p:
        return np.ones(m)
    return np.where(protected[kept], 1.0, (P - p) / (m - p))


def finish(head, kept, protected, reweight="none", row_format=None):
    """C6: cuts the prompt to `kept` and keeps every later token."""
    num = uniform_weights(kept, protected, head.P) if reweight == "uniform" else None
    return replay_stored(head, kept, None, row_format, num, counted=False)


def select_oneshot(heads, scored, B, reweight="none", row_format=None):
    """One result per kv head: its B best prompt tokens."""
    kept = [keep_top(s, scored.protected, B) for s in scored.scores]
    return [finish(h, s, scored.protected, reweight, row_format) for h, s in zip(heads, kept, strict=True)]


def by_score(
    heads, B, scorer, sinks=0, recent=0, reweight="none", row_format=None, level="kv", skip_layers=(), **o
):
    """Any scorer as a one-shot method: the top B of its scores, combined with the common axes."""
    if heads[0].layer in skip_layers:
        B = heads[0].n
    if level == "query":
        return [
            per_query_head(
                lambda one: by_score([one], B, scorer, sinks, recent, reweight, row_format, **o)[0], head
            )
            for head in heads
        ]
    scored = protect(score(scorer, heads, **o), sinks, recent)
    return select_oneshot(heads, scored, B, reweight, row_format)


def guarded(live, t, sinks, recent):
    """C16 during decoding: mask of the protected live tokens."""
    return (live < sinks) | (np.arange(len(live)) >= len(live) - recent)


def stream(head, start, B, live_scores, sinks=0, recent=0, row_format=None):
    """Streaming eviction by `live_scores(t, live, p, keys)`, higher is better."""

    def evict(t, live, p, keys):
        if len(live) <= B:
            return live
        scores = ranked(live_scores(t, live, p, keys), guarded(live, t, sinks, recent))
        return live[top(scores, B)]

    return replay_stored(head, start, evict, row_format, counted=False)


def tova(head, B, phase="stream", recent=0, sinks=0, agg="sum", level="kv", reweight="none", row_format=None):
    """TOVA: evicts the smallest probability of the current row; the newest token is a candidate."""
    if level == "query":
        return per_query_head(tova, head, B, phase, recent, sinks, agg, "kv", reweight, row_format)
    scored = protect(score("tova", [head], recent=recent, agg=agg), sinks)
    start = keep_top(scored.scores[0], scored.protected, B)
    if phase == "oneshot":
        return finish(head, start, scored.protected, reweight, row_format)
    return stream(head, start, B, lambda t, live, p, keys: aggregate(p, agg), sinks, recent, row_format)


def tova_layer(heads, B, phase="stream", recent=0, sinks=0, row_format=None):
    """TOVA variant `layer`: one set per layer by the mean over all heads; the newest token is always kept."""
    scored = protect(score({"name": "tova", "variant": "layer"}, heads, recent=recent), sinks)
    live = keep_top(scored.scores[0], scored.protected, B)
    if phase == "oneshot":
        return [finish(h, live, scored.protected, row_format=row_format) for h in heads]
    stores = [make_store(h, row_format) for h in heads]
    kept, outs, ones = [live], [], np.ones(heads[0].n)
    for store in stores:
        store.settle(live)
    for t in range(heads[0].P, heads[0].n):
        live = np.append(live, t)
        step = [attend_stored(h, s, t, live, ones) for h, s in zip(heads, stores, strict=True)]
        outs.append([out for _, out in step])
        if len(live) > B:
            mean = np.concatenate([p for p, _ in step]).mean(axis=0)
            live = live[top(ranked(mean, guarded(live, t, sinks, max(1, recent))), B)]
        kept.append(live)
        for store in stores:
            store.settle(live)
    return [Result(kept=kept, out=stack(h, [o[i] for o in outs])) for i, h in enumerate(heads)]


def knorm(head, B, phase="oneshot", recent=0, sinks=0, skip_layers=(), reweight="none", row_format=None):
    """Keeps the keys with the smallest norms; layers in `skip_layers` stay exact."""
    if head.layer in skip_layers:
        B = head.n
    scored = protect(score("knorm", [head], recent=recent), sinks)
    start = keep_top(scored.scores[0], scored.protected, B)
    if phase == "oneshot":
        return finish(head, start, scored.protected, reweight, row_format)
    return stream(head, start, B, lambda t, live, p, keys: -norms(keys[live]), sinks, recent, row_format)


def keydiff_block(head, B, block, recent=0, sinks=0):
    """KeyDiff over the prompt in blocks: holds the first B, then rescores held and next block, keeps B."""
    held = np.arange(min(B, head.P))
    for start in range(B, head.P, block):
        held = np.append(held, np.arange(start, min(head.P, start + block)))
        scores = -cosine_to_anchor(head.k[held])
        held = held[top(ranked(scores, guarded(held, start, sinks, recent)), B)]
    return held


def keydiff(head, B, phase="oneshot", recent=0, block=0, sinks=0, reweight="none", row_format=None):
    """Keeps keys that point away from the mean direction; the anchor is the mean of the current
    candidates."""
    scored = protect(score("keydiff", [head], recent=recent), sinks)
    start = keep_top(scored.scores[0], scored.protected, B)
    if block and head.P > B:
        start = keydiff_block(head, B, block, recent, sinks)
    if phase == "oneshot":
        return finish(head, start, scored.protected, reweight, row_format)
    return stream(
        head, start, B, lambda t, live, p, keys: -cosine_to_anchor(keys[live]), sinks, recent, row_format
    )


# --- Wrappers over the heads of a layer -----------------------------------------------------------


def wrapped_scores(heads, scorer, sinks, recent):
    """A wrapper's scores; under adakv, Expected Attention adds its `eps` to all of them."""
    return protect(score(scorer, heads), sinks, recent)


def with_adakv_eps(scorer):
    """Under adakv the default `eps` of expected_attention is 1e-2."""
    spec = {"name": scorer} if isinstance(scorer, str) else dict(scorer)
    return {"eps": 1e-2} | spec if spec["name"] == "expected_attention" else spec


def adakv_kvpress(scored, B, alpha):
    """Kept tokens per head: the safe tokens, then the best of the whole layer until B per head on average.

    The max(1, floor(B*alpha)) safe tokens are the head's highest ranked; protected tokens rank first.
    """
    heads, P = scored.scores.shape
    safe = np.tile(scored.protected, (heads, 1))
    for i in range(heads):
        safe[i, top(ranked(scored.scores[i], scored.protected), max(1, int(B * alpha)))] = True
    flat = top(ranked(scored.scores, safe).ravel(), B * heads)
    return [flat[flat // P == i] % P for i in range(heads)]


def adakv_reference_counts(scores, base, f, normalise):
    """Head budgets outside the window: counts in the layer's top, mixed with an equal part."""
    heads, width = scores.shape
    ordered = -np.sort(-scores, axis=1)
    if normalise:
        total = ordered.sum(axis=1, keepdims=True)
        share = ordered[:, :base].sum(axis=1, keepdims=True) / np.where(total == 0, 1, total)
        scores = scores * share
    winners = top(scores.ravel(), base * heads) // width
    counts = np.bincount(winners, minlength=heads)
    return np.rint(counts * (1 - f) + np.floor(base * f)).astype(int)


def adakv_reference(scored, B, f, normalise):
    """Variant `reference`: protected tokens plus the head's count of the best others."""
    free = np.flatnonzero(~scored.protected)
    held = np.flatnonzero(scored.protected)
    caps = adakv_reference_counts(scored.scores[:, free], B - len(held), f, normalise)
    return [
        np.sort(np.append(held, free[top(s[free], cap)])) for s, cap in zip(scored.scores, caps, strict=True)
    ]


def adakv(
    heads,
    B,
    alpha=0.2,
    variant="kvpress",
    scorer="snapkv",
    normalise=True,
    f=0.2,
    sinks=0,
    recent=0,
    reweight="none",
    row_format=None,
):
    """Ada-KV: the layer's budget goes to the heads whose scores are largest."""
    P = heads[0].P
    scored = wrapped_scores(heads, with_adakv_eps(scorer), sinks, recent)
    if B >= P or scored.protected.sum() >= B:  # nothing to share
        kept = [keep_top(s, scored.protected, B) for s in scored.scores]
    elif variant == "kvpress":
        kept = adakv_kvpress(scored, B, alpha)
    else:
        kept = adakv_reference(scored, B, f, normalise)
    return [finish(h, s, scored.protected, reweight, row_format) for h, s in zip(heads, kept, strict=True)]


def chunk_scores(scored, chunk):
    """Scores summed over the heads, protected tokens lifted above the maximum, mean of every chunk.

    The mean of equal scores is exactly that score, so that chunks of protected tokens tie.
    """
    total = scored.scores.sum(axis=0)
    free = ~scored.protected
    total = np.where(free, total, (total[free].max() if free.any() else 0.0) + 1)
    parts = [total[i : i + chunk] for i in range(0, len(total), chunk)]
    return np.array([part[0] + (part - part[0]).mean() for part in parts])


def chunkkv(heads, B, chunk=20, scorer="snapkv", sinks=0, recent=0, reweight="none", row_format=None):
    """ChunkKV: keeps whole chunks, equal for all heads; the size may differ from B."""
    P = heads[0].P
    scored = wrapped_scores(heads, scorer, sinks, recent)
    if B >= P:
        kept = np.arange(P)
    else:
        means = chunk_scores(scored, chunk)
        best = top(means, max(1, int(len(means) * B / P + 1e-9)))
        kept = np.concatenate([np.arange(c * chunk, min(P, (c + 1) * chunk)) for c in best])
    return [finish(h, kept, scored.protected, reweight, row_format) for h in heads]


# --- Budgets over layers --------------------------------------------------------------------------


def pyramid_budget(B, P, w, layer, layers, beta=20):
    """PyramidKV's budget of one layer, window included; B may be a real number."""
    low = B / beta
    high = 2 * B - low
    if high >= P - w:
        high, low = P - w, 2 * B - (P - w)
    if layers == 1 or not P >= high >= low >= w:
        return round(B)
    return round(high - layer * (high - low) / (layers - 1))


def pyramid(heads, B, scorer="snapkv", beta=20, w=32, **o):
    """`allocator: pyramid` (and pyramidkv): the scorer with the layer's budget."""
    h = heads[0]
    return by_score(heads, pyramid_budget(B, h.P, w, h.layer, h.n_layers, beta), scorer, **o)


def file_allocation(heads, budgets, method, **o):
    """`allocator: file`: one integer per layer (row) and kv head (column)."""
    return [method(h, int(budgets[h.layer][h.kv_head]), **o) for h in heads]


def window_statistics(head, w, gamma):
    """CAKE steps 1-2 for one kv head: its scores, its entropy and its variance over the window rows."""
    x = last_rows(head, w)[:, :, : head.P - w]
    variance = x.var(axis=1, ddof=1)
    scores = pooled(x.mean(axis=1) + gamma * variance, 5, "avg").mean(axis=0)
    return scores, -(x * np.log(x + 1e-10)).sum(), variance.sum()


def hand_out(budgets, more, limit):
    """Hands out tokens in turns to the layers below the limit, one per turn, lower layers first."""
    budgets = list(budgets)
    while more > 0 and min(budgets) < limit:
        for i, b in enumerate(budgets):
            if b < limit and more > 0:
                budgets[i] += 1
                more -= 1
    return budgets


def spread(budgets, total, limit):
    """Cuts budgets above the limit; hands out what was cut, then the rest of the total."""
    excess = sum(max(0, b - limit) for b in budgets)
    budgets = hand_out([min(b, limit) for b in budgets], excess, limit)
    return hand_out(budgets, total - sum(budgets), limit)


def cake_budgets(layers, B, w=32, gamma=200, tau1=1.0, tau2=1.0):
    """CAKE steps 2-3: the budget of every layer, window excluded."""
    found = [[window_statistics(h, w, gamma) for h in heads] for heads in layers]
    entropy = np.array([sum(s[1] for s in heads) for heads in found])
    variance = np.array([sum(s[2] for s in heads) for heads in found])
    preference = entropy ** (1 / tau1) * variance ** (1 / tau2)
    shares = preference / preference.sum()
    total = (B - w) * len(layers)
    return spread([int(s * total) for s in shares], total, layers[0][0].P - w)


def cake(layers, B, w=32, gamma=200, tau1=1.0, tau2=1.0, sinks=0, recent=0):
    """CAKE: a first pass computes each layer's preference, a second pass cuts. One list of results per
    layer."""
    P = layers[0][0].P
    if B >= P:
        return [[finish(h, np.arange(P), np.ones(P, bool)) for h in heads] for heads in layers]
    results = []
    for heads, budget in zip(layers, cake_budgets(layers, B, w, gamma, tau1, tau2), strict=True):
        scores = np.stack([np.append(window_statistics(h, w, gamma)[0], np.zeros(w)) for h in heads])
        scored = protect(Scored(scores, ends(P, recent=w)), sinks, recent)
        results.append(select_oneshot(heads, scored, budget + w))
    return results


def cake_allocated(layers, B, scorer, w):
    """`allocator: cake`: any scorer with CAKE's budgets; w: the scorer's window."""
    if B >= layers[0][0].P:
        return [by_score(heads, B, scorer) for heads in layers]
    budgets = cake_budgets(layers, B, w)
    return [by_score(heads, b + w, scorer) for heads, b in zip(layers, budgets, strict=True)]


# --- Query time -----------------------------------------------------------------------------------


def page_bounds(keys, q, page):
    """Upper bound of <q, k> over every page of consecutive tokens, for queries [..., d]."""
    first = np.arange(0, len(keys), page)
    low, high = (ends.reduceat(keys, first, axis=0) for ends in (np.minimum, np.maximum))
    q = np.asarray(q)[..., None, :]
    return np.maximum(q * low, q * high).sum(axis=-1)


def quest(head, B, page=16, dense_layers=(0, 1), level="query", agg="sum"):
    """Quest: exact attention over the pages with the best bounds; B is a read budget, nothing is evicted."""
    if level == "query":
        return per_query_head(quest, head, B, page, dense_layers, "kv", agg)
    attended, outs = [], []
    for t in range(head.P, head.n):
        tokens = np.arange(t + 1)
        if head.layer not in dense_layers:
            bounds = aggregate(page_bounds(head.k[: t + 1], head.q[:, t], page), agg)
            best = top(bounds, len(bounds) if head.n <= B else max(3, B // page))
            tokens = tokens[np.isin(tokens // page, best)]
        p = softmax(head.scale * dots(head.k[tokens], head.q[:, t, None]))
        attended.append(tokens)
        outs.append(p @ head.v[tokens])
    return Result(kept=None, out=stack(head, outs), attended=attended)
