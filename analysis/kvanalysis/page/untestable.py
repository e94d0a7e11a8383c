"""Claims of the papers that a replay of recorded queries, keys and values cannot test, with the reasons."""

from ..stats.verdict import UNTESTABLE
from .claims import Claim

SCORES = "Task scores need generated answers; replay fixes every token."
SPEED = "Throughput belongs to a serving system and its hardware; replay measures neither."
TEXT = "Text must be generated and judged; replay fixes every token."
PERPLEXITY = "Perplexity needs the logits behind all layers; an error here never reaches a deeper layer."
INSIDE = "Only queries, keys and values are recorded, not the activations of the feed-forward layers."
TRAINING = "Nothing is trained; the weights behind the recorded tensors are fixed."

# (paper, claim, source, reason, what is shown instead)
_TABLE = (
    (
        "SubGen",
        "Line retrieval at 5k, 7k and 9k tokens is more accurate than with H2O or attention sinks,"
        " with 35, 42 and 50 % of the memory saved",
        "Table 1",
        SCORES,
        "attention error of the last rows and the mass kept of planted spans at the same kept fractions",
    ),
    (
        "H2O",
        "With a fifth of the cache, task accuracy is close to that of the full cache and above that of recent"
        " tokens only",
        "Fig. 1 right, Fig. 4, Tables 1, 4, 5, 6 and 8",
        SCORES,
        "attention error of the same comparisons",
    ),
    (
        "H2O",
        "Generation runs at a higher throughput and a lower latency",
        "among Tables 2, 3, 7 and 9",
        SPEED,
        "exact bytes of the cache",
    ),
    ("H2O", "Generated text keeps its quality", "among Tables 2, 3, 7 and 9 and Figs 5, 6, 8–10", TEXT, ""),
    (
        "H2O",
        "Heavy hitters are also seen among the neurons of feed-forward layers",
        "among Figs 5, 6, 8–10",
        INSIDE,
        "",
    ),
    ("H2O", "What training does to heavy hitters", "among Figs 5, 6, 8–10 and Table 9", TRAINING, ""),
    (
        "H2O",
        "The greedy cache is within (1 − α)(1 − 1/e) of the best one, less β",
        "Theorem 4.4",
        "The theorem leaves α and β open, so no number contradicts it.",
        "kept mass over the mass of as many best tokens, beside the line 1 − 1/e",
    ),
    (
        "BUZZ",
        "ROUGE peaks at a threshold of 4.5 times the window, where the parameter rule says 4.33",
        "Fig. 4, Theorem 3.1",
        SCORES,
        "attention error over the same range of threshold to window",
    ),
    (
        "BUZZ",
        "Summaries score higher than with H2O, attention sinks and recent tokens at the same cache size",
        "Fig. 5, Table 2",
        SCORES,
        "attention error at equal average sizes",
    ),
    (
        "BUZZ",
        "Questions are answered wherever the answer stands among the documents",
        "Fig. 6",
        SCORES,
        "mass kept of spans at the start, the middle and the end",
    ),
    (
        "BUZZ",
        "Perplexity stays near that of the full cache at small budgets, with the log n correction too",
        "Fig. 7, Table 3",
        PERPLEXITY,
        "attention error with and without log n, each against its own exact reference",
    ),
    (
        "BUZZ",
        "The default sampling mode scores best in the ablations",
        "Fig. 8",
        SCORES,
        "attention error of the same modes",
    ),
    (
        "BalanceKV",
        "At a quarter of the cache the average LongBench score is above that of uniform sampling and of the"
        " other compressed caches",
        "Table 1",
        SCORES,
        "attention error with the same preset",
    ),
)


def untestable_claims():
    """The claims as records with the outcome `not testable offline`."""
    return [
        Claim(paper, claim, source, _how(reason, instead), UNTESTABLE)
        for paper, claim, source, reason, instead in _TABLE
    ]


def _how(reason, instead):
    return f"{reason} Shown instead: {instead}." if instead else reason
