"""Query-time reads: MagicPIG, RocketKV, PQCache and Double Sparsity.

Sources: MagicPIG (arXiv 2410.16179), RocketKV (arXiv 2502.14051), PQCache (arXiv 2407.12820), Double Sparsity
(arXiv 2408.07092). Nothing is evicted after the prompt; every decode row reads some tokens per query head.
Costs are in numbers (of the trace's dtype) unless a name contains "bytes".
"""

from dataclasses import dataclass

import numpy as np

from .common import dots, softmax, stack, top
from .leverage import gaussian_matrix
from .snapkv import snapkv_scores


@dataclass
class Reads:
    """out: [G, n - P, dv]; tokens: the sets of the G heads, per decode row; stored, read: described by each
    method.

    read: numbers per decode row: the index, and d + dv for each token that any head reads.
    """

    out: np.ndarray
    tokens: list
    stored: float
    read: list
    extras: dict


def union_size(sets):
    """Number of tokens that any head of the group reads, each counted once (`gqa.level: kv`)."""
    return len(set().union(*(np.asarray(s).tolist() for s in sets)))


def total_size(sets):
    """Number of tokens read, summed over the heads (`gqa.level: query`)."""
    return sum(len(s) for s in sets)


def attention(head, t, sets):
    """Plain attention of each query head over its set: [G, dv]."""
    rows = [
        softmax(head.scale * dots(q[t], head.k[s])) @ head.v[s] for q, s in zip(head.q, sets, strict=True)
    ]
    return np.array(rows)


def full_cache(head, tokens):
    return tokens * (head.d + head.dv)


# --- MagicPIG ---------------------------------------------------------------------------------------


def collision_probability(q, keys, K, L):
    """u: probability that at least two of L tables of K signs agree between q and each key."""
    cosine = keys @ q / (np.linalg.norm(keys, axis=1) * np.linalg.norm(q))
    p = (1 - np.arccos(np.clip(cosine, -1, 1)) / np.pi) ** K
    return 1 - (1 - p) ** L - L * p * (1 - p) ** (L - 1)


def codes(x, phi, K):
    """Signs of the projections as tables: [m, L, K]."""
    return (x @ phi > 0).reshape(len(x), phi.shape[1] // K, K)


def magicpig_row(head, t, middle, centre, phi, K, L, min_tables=2):
    """One row: (outputs [G, dv], sampled middle tokens of each head, u of these tokens)."""
    exact = np.setdiff1d(np.arange(t + 1), middle)
    stored = codes(head.k[middle] - centre, phi, K)
    outs, sampled, chances = [], [], []
    for q in head.q[:, t]:
        agree = (stored == codes(q[None], phi, K)).all(axis=2).sum(axis=1)
        chosen = middle[agree >= min_tables]
        u = collision_probability(q, head.k[chosen] - centre, K, L)
        live = np.concatenate([exact, chosen])
        logits = head.scale * dots(q, head.k[live] - centre)
        weight = np.append(np.ones(len(exact)), 1 / (u + 1e-4))
        e = weight * np.exp(logits - logits.max())
        outs.append(e @ head.v[live] / e.sum())
        sampled.append(chosen)
        chances.append(u)
    return np.array(outs), sampled, chances


def magicpig(
    head, K=10, L=150, sinks=4, local=64, min_tables=2, dense_layers=(0, 16, 32, 48, 64), U=None, seed=0
):
    """Hash tables over the prompt's middle, fixed at its end; tokens are weighted by their sampling
    probability.

    stored: full cache and one norm per middle token; codes, extras["code_bytes"], take 2 L per middle token.
    read: tokens of each head; the L codes a head looks up are extras["code_lookups"] per step.
    """
    middle = np.arange(sinks, max(sinks, head.P - local))
    if head.layer in dense_layers:
        middle = middle[:0]
    centre = head.k[middle].mean(axis=0) if len(middle) else np.zeros(head.d)
    phi = gaussian_matrix(head, head.d, K * L, U, seed)
    outs, tokens, read, largest = [], [], [], 1.0
    for t in range(head.P, head.n):
        out, sampled, u = magicpig_row(head, t, middle, centre, phi, K, L, min_tables)
        exact = np.setdiff1d(np.arange(t + 1), middle)
        outs.append(out)
        tokens.append([np.sort(np.append(exact, s)) for s in sampled])
        read.append(total_size(tokens[-1]) * (head.d + head.dv))
        largest = max([largest, *(1 / (x.min() + 1e-4) for x in u if len(x))])
    extras = {
        "code_bytes": 2 * L * len(middle),
        "code_lookups": L * head.G if len(middle) else 0,
        "largest_weight": largest,
    }
    return Reads(stack(head, outs), tokens, full_cache(head, head.n) + len(middle), read, extras)


# --- RocketKV ---------------------------------------------------------------------------------------


def rocket_capacity(n, P, B):
    """`auto`: tokens of stage 1 and later together, from the ratio of prompt and budget."""
    c = max(1.0, P / B)
    r = min(0.2 + 0.06 * np.log2(c), 0.8)
    return max(int(np.floor(P / c**r)), min(2 * (n - P), P))


def rocket_page(ratio):
    """Tokens per page of stage 2."""
    page = int(np.ceil(np.sqrt(ratio)))
    return 1 if page > ratio else page


def rocket_stage2(q, keys, ratio, count, scale=None):
    """(tokens, channels, score of each page) of stage 2: the best `count` live tokens by the score of their
    page.

    q: [G, d] of one row; keys: [m, d], the live ones. The temperature replaces `scale`: it corrects for the
    omitted channels. A page is cut in the order of its tokens.
    """
    d, page = keys.shape[1], rocket_page(ratio)
    sign = np.where(q.sum(axis=0) > 0, 1.0, -1.0)
    highest = np.array([(sign * keys[i : i + page]).max(axis=0) for i in range(0, len(keys), page)])
    channels = top(np.abs(q).mean(axis=0), max(1, int(np.floor(d * page / ratio))))
    s = (highest[:, channels] * (sign * q)[:, None, channels]).sum(axis=2)
    size = np.abs(q)
    temperature = np.sqrt(d * size[:, channels].sum(axis=1) / size.sum(axis=1))
    of_token = np.repeat(s / temperature[:, None], page, axis=1)[:, : len(keys)]
    return top(softmax(of_token).mean(axis=0), count), channels, s


def rocketkv(head, B, window=32, kernel=63, stage1="auto"):
    """SnapKV to stage1 tokens, then each step exact attention on floor(B/2) tokens of the best pages.

    stored: tokens of stage 1 and later and 2 d numbers per page; read: channels of every page, tokens.
    """
    cap = rocket_capacity(head.n, head.P, B)
    if stage1 == "auto":
        fits = (
            head.P <= B
        )  # C5: nothing is evicted, although the sizes of `auto` always leave room for later tokens
        stage1 = head.P if fits else max(cap - (head.n - head.P), window + 1)
    start = np.arange(head.P)
    if stage1 < head.P:
        votes = snapkv_scores(head, window, kernel, "max", "sum", "before")
        start = np.append(top(votes, stage1 - window), start[head.P - window :])
    ratio = max(1.0, cap / B)
    outs, tokens, read, live = [], [], [], start
    for t in range(head.P, head.n):
        live = np.append(live, t)
        chosen, channels, s = rocket_stage2(head.q[:, t], head.k[live], ratio, B // 2)
        tokens.append([live[chosen]] * head.G)
        outs.append(attention(head, t, tokens[-1]))
        read.append(s.shape[1] * len(channels) + union_size(tokens[-1]) * (head.d + head.dv))
    pages = -(-len(live) // rocket_page(ratio))
    stored = full_cache(head, len(live)) + 2 * head.d * pages
    extras = {"stage1": start, "capacity": cap, "ratio": ratio}
    return Reads(stack(head, outs), tokens, stored, read, extras)


# --- PQCache ----------------------------------------------------------------------------------------


def nearest(points, centres):
    """The nearest centre of each point, ties to the lowest."""
    return ((points[:, None, :] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)


def lloyd(points, count, iterations=25):
    """k-means started at points floor(i*M/count); a centre without points does not move."""
    centres = points[np.arange(count) * len(points) // count].copy()
    for _ in range(iterations):
        of_point = nearest(points, centres)
        for c in np.unique(of_point):
            centres[c] = points[of_point == c].mean(axis=0)
    return centres


def pqcache(head, B, subvectors=2, bits=6, sinks=32, recent=None, iterations=25):
    """Product-quantised keys select the best B - sinks - recent tokens between sinks and recents.

    read: the centroids' numbers and d + dv per token; a code of `bits` bits per token and subspace is
    extras["code_bytes"] of each step.
    """
    recent = B // 2 if recent is None else recent
    keys, count, width = head.k, 2**bits, head.d // subvectors
    parts = [slice(i * width, (i + 1) * width if i + 1 < subvectors else head.d) for i in range(subvectors)]
    prompt = keys[sinks : head.P]
    clustered = len(prompt) >= count
    centres = [lloyd(prompt[:, part], count, iterations) for part in parts] if clustered else []
    outs, tokens, read, code_bytes = [], [], [], []
    for t in range(head.P, head.n):
        middle = np.arange(sinks, max(sinks, t + 1 - recent))
        held = np.setdiff1d(np.arange(t + 1), middle)
        chosen = middle
        if clustered and len(middle) > max(0, B - len(held)):
            rough = np.concatenate(
                [c[nearest(keys[middle][:, part], c)] for c, part in zip(centres, parts, strict=True)], axis=1
            )
            score = softmax(dots(head.q[:, t], rough) / np.sqrt(head.d)).sum(axis=0)
            chosen = middle[top(score, B - len(held))]
        tokens.append([np.union1d(held, chosen)] * head.G)
        outs.append(attention(head, t, tokens[-1]))
        read.append(sum(c.size for c in centres) + union_size(tokens[-1]) * (head.d + head.dv))
        code_bytes.append(len(middle) * subvectors * bits / 8 if clustered else 0.0)
    stored = full_cache(head, head.n) + sum(c.size for c in centres)
    return Reads(stack(head, outs), tokens, stored, read, {"centres": centres, "code_bytes": code_bytes})


# --- Double Sparsity --------------------------------------------------------------------------------


def ranked_channels(texts, count):
    """The `count` channels with the largest mean |q_c k_c|, ascending; each row is paired with its own key.

    texts: [(q, k)] of one query head; averaged over each text's rows, then over the texts.
    """
    return top(np.mean([np.abs(q * k).mean(axis=0) for q, k in texts], axis=0), count)


def coded(x, bits):
    """Rows quantised to 2^bits levels between their minimum and maximum; a constant row stays; 16:
    unchanged."""
    if bits == 16:
        return np.asarray(x, dtype=float)
    low, high = x.min(axis=-1, keepdims=True), x.max(axis=-1, keepdims=True)
    step = (high - low) / (2**bits - 1)
    code = np.rint(np.divide(x - low, step, out=np.zeros_like(x), where=step > 0))
    return low + code * step


def doublesparsity(head, B, group_factor=8, label_bits=4, dense_layers=(0, 1), others=None):
    """The best B tokens of each query head by a few important channels, stored coarsely; exact attention.

    read: two scales per token and query head and d + dv per token of each head; the labels of
    d/group_factor channels are extras["label_bytes"] of each step.
    """
    r = head.d // group_factor
    texts = [(h.q, h.k) for h in others] if others is not None else [(head.q[:, : head.P], head.k[: head.P])]
    channels = [ranked_channels([(q[g], k) for q, k in texts], r) for g in range(head.G)]
    dense = head.layer in dense_layers
    outs, tokens, read, label_bytes = [], [], [], []
    for t in range(head.P, head.n):
        every = np.arange(t + 1)
        sets = [every] * head.G
        if not dense:
            sets = [
                top(dots(coded(q[t, c], label_bits), coded(head.k[: t + 1, c], label_bits)), B)
                for q, c in zip(head.q, channels, strict=True)
            ]
        tokens.append(sets)
        outs.append(attention(head, t, sets))
        read.append((0 if dense else 2 * head.G * (t + 1)) + total_size(sets) * (head.d + head.dv))
        label_bytes.append(0 if dense else head.G * (t + 1) * r * label_bits / 8)
    stored = full_cache(head, head.n) + (0 if dense else 2 * head.G * head.n)
    extras = {"channels": channels, "label_bytes": label_bytes}
    return Reads(stack(head, outs), tokens, stored, read, extras)
