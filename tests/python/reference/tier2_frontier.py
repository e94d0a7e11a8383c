"""Tier-3 methods: sketches, halving with a kernel, low-rank coresets, compaction and a hybrid."""

import numpy as np

from .common import Result, head_uniform, rotate, softmax, stack, top
from .row_store import Store
from .tier2_formats import replay_stored
from .tier2_scores import dots, ends, norms, score, unrotated
from .tier2_select import keep_top

# --- QJL ------------------------------------------------------------------------------------------


def gaussians(head, seed, count):
    """Box-Muller on consecutive pairs of uniforms: the cosine first, then the sine."""
    u = head_uniform(head, seed, "sketch", np.arange(count + count % 2)).reshape(-1, 2)
    radius = np.sqrt(-2 * np.log(np.maximum(u[:, 0], 2.0**-53)))
    pairs = np.stack([radius * np.cos(2 * np.pi * u[:, 1]), radius * np.sin(2 * np.pi * u[:, 1])], axis=1)
    return pairs.ravel()[:count]


def sketch_matrix(head, seed, m):
    """Step 1: d x m Gaussian (row-major), orthogonalised in blocks of d columns, times sqrt(d)."""
    s = gaussians(head, seed, head.d * m).reshape(head.d, m)
    blocks = [np.linalg.qr(s[:, i : i + head.d])[0] for i in range(0, m, head.d)]
    return np.concatenate(blocks, axis=1) * np.sqrt(head.d)


def outlier_channels(keys, outliers):
    """Step 2: mask of the channels of largest norm in one group of tokens."""
    mask = np.zeros(keys.shape[1], dtype=bool)
    mask[top(norms(keys.T), outliers)] = True
    return mask


class Sketched:
    """Step 3: the stored form of one key, and step 4: the estimate of <q, k> from it."""

    def __init__(self, k, mask, sketch, m_in, m_out):
        out = np.sqrt((k[mask] ** 2).sum())
        rest = np.sqrt(max(0.0, (k**2).sum() - out**2))
        self.parts = []
        for channels, length, m in ((~mask, rest, m_in), (mask, out, m_out)):
            signs = np.where(sketch[:, :m].T @ np.where(channels, k, 0.0) >= 0, 1.0, -1.0)
            self.parts.append(
                np.where(channels, np.sqrt(np.pi / 2) / m * length * (sketch[:, :m] @ signs), 0.0)
            )

    @property
    def key(self):
        """The vector whose inner product with a query is the estimate."""
        return self.parts[0] + self.parts[1]

    def product(self, q):
        return self.key @ q


def sketch_tokens(head, first, last, group, outliers, *matrix):
    """The stored keys of tokens first..last-1, in groups with common outlier channels."""
    stored = []
    for start in range(first, last, group):
        keys = head.k[start : min(last, start + group)]
        mask = outlier_channels(keys, outliers)
        stored += [Sketched(k, mask, *matrix) for k in keys]
    return stored


def qjl(head, B=None, seed=0, m_in=256, m_out=256, outliers=8, group=32, buffer=128):
    """QJL: keys as signs of a random projection, values by kivi with 2 bits; nothing is evicted.

    Both sketches use the first columns of one matrix. A buffer's keys are sketched at the end of the step
    that fills it; the kivi of the values has equal group and buffer sizes.
    """
    matrix = (sketch_matrix(head, seed, max(m_in, m_out)), m_in, m_out)
    values = Store(head, {"value": {"name": "kivi", "bits": 2, "g": group, "R": buffer}})
    values.settle(np.arange(head.P))
    stored, outs = [], []
    for t in range(head.P, head.n):
        stored += [s.key for s in sketch_tokens(head, len(stored), t - t % buffer, group, outliers, *matrix)]
        keys = np.concatenate([np.reshape(stored, (-1, head.d)), head.k[len(stored) : t + 1]])
        outs.append(softmax(head.scale * dots(keys, head.q[:, t, None])) @ values.v[: t + 1])
        values.settle(np.arange(t + 1))
    return Result(kept=None, out=stack(head, outs))


# --- Kernel halving -------------------------------------------------------------------------------


def middle_tokens(head, sinks, recent):
    return np.flatnonzero(~ends(head.P, sinks, recent))


def power_of_four(m):
    """The largest k with 4^k <= m."""
    k = 0
    while 4 ** (k + 1) <= m:
        k += 1
    return k


def halving_kernel(k, v, scale):
    """Step 2 over the chosen tokens; V's largest entry is taken over the chosen tokens, too."""
    logits = np.stack([dots(k, x) for x in k])
    products = np.stack([dots(v, x) for x in v])
    return np.exp(scale * (logits - np.diag(logits).max())) * (products + np.abs(v).max() ** 2)


def halve(bucket, K, uniforms, p):
    """Step 4: the walk keeps one member of every pair; returns (kept, complement)."""
    S = len(bucket)
    even, odd = bucket[0::2], bucket[1::2]
    D = K[np.ix_(even, even)] - K[np.ix_(even, odd)] - K[np.ix_(odd, even)] + K[np.ix_(odd, odd)]
    a = np.sqrt(np.maximum(np.diag(D), 0.0))
    c = 0.5 + np.log(2 * S / (p * S**2))
    keep_odd = np.zeros(S // 2, dtype=bool)
    product = np.zeros(S // 2)
    for i in range(S // 2):
        threshold = (2 * uniforms[i] - 1) * c * a[i] * a[: i + 1].max()
        keep_odd[i] = i > 0 and threshold <= product[i]
        product += -D[i] if keep_odd[i] else D[i]
    return np.where(keep_odd, odd, even), np.where(keep_odd, even, odd)


def halving_g(M, room):
    """The largest g whose 2^g * sqrt(N) survivors fit into `room` tokens."""
    k = power_of_four(M)
    fitting = [g for g in range(k + 1) if 2 ** (g + k) <= room]
    return max(fitting, default=0)


def kernel_halving(head, B, seed=0, g=None, sinks=4, recent=32, row_format=None):
    """KH-Compress on the middle tokens; the default g is the largest that fits the budget."""
    middle = middle_tokens(head, sinks, recent)
    M = len(middle)
    if head.P <= B or M == 0:
        return replay_stored(head, np.arange(head.P), None, row_format, counted=False)
    k = power_of_four(M)
    g = halving_g(M, B - sinks - recent) if g is None else g
    N, rounds = 4**k, max(0, k - g)
    tokens = middle[np.arange(N) * M // N]
    K = halving_kernel(head.k[tokens], head.v[tokens], head.scale)
    p = 0.5 / (4 ** (g + 1) * max(1, rounds) * N)
    left, size = np.arange(N), 4 ** (g + 1)
    for r in range(rounds):
        pairs = head_uniform(head, seed, "halving_walk", np.arange(len(left) // 2), round=r)
        flips = head_uniform(head, seed, "halving_flip", np.arange(len(left) // size), round=r)
        halves = []
        for b in range(len(left) // size):
            part = slice(b * size // 2, (b + 1) * size // 2)
            kept, complement = halve(left[b * size : (b + 1) * size], K, pairs[part], p)
            halves.append(complement if flips[b] < 0.5 else kept)
        left, size = np.concatenate(halves), 2 * size
    chosen = tokens[left]
    kept = np.sort(np.concatenate([chosen, np.flatnonzero(ends(head.P, sinks, recent))]))
    weight = np.where(np.isin(kept, chosen), M / len(chosen), 1.0)
    return replay_stored(head, kept, None, row_format, weight, counted=False)


# --- Entries that are not tokens ------------------------------------------------------------------


def attend_entries(head, keys, sums, masses, exact):
    """Outputs over entries (key, value sum, mass) and exact tokens; masses may be negative."""
    outs = []
    for t in range(head.P, head.n):
        tokens = np.append(exact, np.arange(head.P, t + 1))
        all_keys = np.concatenate([keys, head.k[tokens]])
        all_sums = np.concatenate([sums, head.v[tokens]])
        all_masses = np.concatenate([masses, np.ones(len(tokens))])
        e = softmax(head.scale * dots(all_keys, head.q[:, t, None]))
        denominators = e @ all_masses
        if denominators.min() <= 0:
            raise ValueError("the denominator is not positive")
        outs.append(e @ all_sums / denominators[:, None])
    return stack(head, outs)


def pivots_of(H, uniforms):
    """WildCat step 3: randomly pivoted Cholesky; stops when nothing is left to draw."""
    residual, chosen = np.diag(H).copy(), []
    factor = np.zeros((len(H), len(uniforms)))
    for j, u in enumerate(uniforms):
        running = np.cumsum(residual)
        if running[-1] <= 0:
            break
        s = int(np.searchsorted(running, u * running[-1], side="right"))
        column = (H[:, s] - factor[:, :j] @ factor[s, :j]) / np.sqrt(residual[s])
        factor[:, j] = column
        residual = np.maximum(residual - column**2, 0.0)
        chosen.append(s)
        residual[chosen] = 0.0
    return np.array(chosen, dtype=int)


def wildcat(head, B, seed=0, r=None, tau2=1.0, ridge=1e-6, sinks=4, recent=32):
    """WildCat: the middle tokens as a Nystrom coreset of r pivots with value sums and masses.

    `den` holds the masses of the kept tokens (1 for exact ones); the numerator is not a multiple of values.
    """
    middle = middle_tokens(head, sinks, recent)
    exact = np.flatnonzero(ends(head.P, sinks, recent))
    if head.P <= B or len(middle) == 0:
        return replay_stored(head, np.arange(head.P), counted=False)
    r = min(len(middle), B - sinks - recent if r is None else r)
    centred = head.k[middle] - head.k[middle].mean(axis=0)
    logits = head.scale / tau2 * np.stack([dots(centred, x) for x in centred])
    H = np.exp(logits - logits.max())
    pivots = pivots_of(H, head_uniform(head, seed, "pivots", np.arange(r)))
    inner = H[np.ix_(pivots, pivots)]
    weights = np.linalg.solve(inner + ridge * np.trace(inner) / len(pivots) * np.eye(len(pivots)), H[pivots])
    masses = weights.sum(axis=1)
    out = attend_entries(head, head.k[middle[pivots]], weights @ head.v[middle], masses, exact)
    tokens = np.append(middle[pivots], exact)
    order = np.argsort(tokens)
    den = np.append(masses, np.ones(len(exact)))[order]
    return Result(kept=[tokens[order]], out=out, den=[den], extras={"negative": int((masses < 0).sum())})


# --- Attention matching ---------------------------------------------------------------------------


def training_queries(head, train, max_queries):
    """Step 1: the queries to match, head by head; if too many, thinned to every ceil(...)-th row."""
    prompt = np.arange(head.P)
    if train == "prompt":
        q = head.q[:, : head.P]
    elif train == "future":
        q = head.q[:, head.P :]
    else:
        to = head.P + prompt % 512
        q = np.stack([unrotated(x[: head.P], prompt, head) for x in head.q])
        q = q if head.rope is None else np.stack([rotate(x, to, head.rope) for x in q])
    q = q.reshape(-1, head.d)
    return q[:: -(-len(q) // max_queries)]


def ridge_solve(A, b, ridge):
    """Least squares from normal equations with ridge * trace / size on the diagonal."""
    return np.linalg.solve(A + ridge * np.trace(A) / len(A) * np.eye(len(A)), b)


def mass_weights(E, sums, ridge, clip):
    """Step 3: clipped ridge solution, then 2 projected gradient steps on the same (ridged) objective."""
    low, high = np.exp(-clip), np.exp(clip)
    A = E.T @ E
    A = A + ridge * np.trace(A) / len(A) * np.eye(len(A))
    b = E.T @ sums
    w = np.clip(np.linalg.solve(A, b), low, high)
    step = 1 / np.linalg.eigvalsh(A)[-1]
    for _ in range(2):
        w = np.clip(w - step * (A @ w - b), low, high)
    return w


def attention_matching(head, B, ridge=1e-4, clip=3, train="reroped", max_queries=50000):
    """Attention matching: the B keys with the highest attention, with fitted masses and values."""
    if head.P <= B:
        return replay_stored(head, np.arange(head.P), counted=False)
    q = training_queries(head, train, max_queries)
    logits = head.scale * q @ head.k[: head.P].T
    E = np.exp(logits - logits.max(axis=1, keepdims=True))
    sums = E.sum(axis=1)
    p = E / sums[:, None]
    kept = top(np.sqrt((p**2).mean(axis=0)), B)
    w = mass_weights(E[:, kept], sums, ridge, clip)
    X = softmax(logits[:, kept] + np.log(w))
    C = ridge_solve(X.T @ X, X.T @ (p @ head.v[: head.P]), ridge)
    out = attend_entries(head, head.k[kept], w[:, None] * C, w, np.array([], dtype=int))
    return Result(kept=[kept], out=out, num=[w], den=[w], extras={"values": C})


# --- Hybrid ---------------------------------------------------------------------------------------


def hybrid_set(head, scored, B, seed, top_frac, sinks):
    """Tokens and weights: the best h tokens of a scorer, and a reweighted uniform sample of all others."""
    h = int(top_frac * B)
    best = keep_top(scored.scores[0], scored.protected | ends(head.P, sinks), h)
    others = np.setdiff1d(np.arange(head.P), best)
    drawn = others[top(-head_uniform(head, seed, "uniform", np.arange(len(others))), B - h)]
    kept = np.sort(np.append(best, drawn))
    return kept, np.where(np.isin(kept, drawn), len(others) / max(1, len(drawn)), 1.0)


def hybrid(head, B, seed=0, scorer="snapkv", top_frac=0.5, sinks=4, row_format=None):
    if head.P <= B:
        return replay_stored(head, np.arange(head.P), None, row_format, counted=False)
    kept, weight = hybrid_set(head, score(scorer, [head]), B, seed, top_frac, sinks)
    return replay_stored(head, kept, None, row_format, weight, counted=False)


def hybrid_layer(heads, B, seed=0, scorer="snapkv", top_frac=0.5, sinks=4):
    """With a scorer of the whole layer, all its heads share one set, drawn with kv head 0's random
    numbers."""
    kept, weight = hybrid_set(heads[0], score(scorer, heads), B, seed, top_frac, sinks)
    return [replay_stored(head, kept, None, None, weight, counted=False) for head in heads]
