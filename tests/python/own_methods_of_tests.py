"""Methods in Python that several tests replay: copies of built-in methods, and the simplest possible one."""

import kvreplay
import numpy as np


@kvreplay.scorer(window=32)
def python_snapkv(prompt, kernel=7):
    """SnapKV: votes of the last 32 rows, summed over the group and pooled; the window is kept."""
    votes = prompt.attention(last=32).sum(axis=(0, 1))[: prompt.size - 32]
    edges = np.pad(votes, kernel // 2, constant_values=-np.inf)
    pooled = np.lib.stride_tricks.sliding_window_view(edges, kernel).max(axis=-1)
    return np.concatenate([pooled, np.zeros(32)])


class PythonH2o(kvreplay.Policy):
    """H2O: accumulated attention of all rows; half of the budget is recent."""

    window = 1 << 20  # the whole prompt

    def start(self, prompt, budget):
        self.recent_tokens = budget - budget // 2
        return prompt.attention().sum(axis=(0, 1))

    def observe(self, tokens, p):
        tokens.scores += p.sum(axis=0)

    def evict(self, tokens):
        older = tokens.scores[: len(tokens) - self.recent_tokens]
        weakest = np.argsort(older, kind="stable")[: len(tokens) - self.budget]
        return tokens[weakest]


class Oldest(kvreplay.Policy):
    """The method `window`, in Python."""

    def evict(self, tokens):
        return tokens[: len(tokens) - self.budget]
