"""Terms that pages explain, and the limits of replay."""

from ..stats.intervals import FEWEST_BLOCKS, LEVEL

TERMS = (
    (
        "rel. error (rel_err_out_mean)",
        "‖z − o‖₂ / ‖o‖₂ with o the exact attention output and z the method’s: a mean of ratios over "
        "the query heads of the group and the scored decode rows. 0 is exact, 1 is as wrong as a zero. "
        "Rows of the prompt are exact and not scored.",
    ),
    (
        "95 % interval",
        f"Student’s {LEVEL:.0%} interval over the layers of each text, one value per (prompt, layer, kv "
        f"head), its seeds averaged first; heads of a layer count once. None below {FEWEST_BLOCKS} layers. "
        "It covers which layers were recorded, not other texts or models.",
    ),
    (
        "ε spectral (eps_spectral_mean)",
        "‖z − o‖₂ / (‖x‖₂ · ‖V‖<sub>op</sub>) with x the exact softmax vector and V all values so far: "
        "the form in which SubGen’s theorem bounds the error.",
    ),
    (
        "partition err. (partition_err_mean)",
        "|τ/Z − 1|, the relative error of the softmax denominator. For plain eviction it equals "
        "1 − kept mass.",
    ),
    (
        "kept mass (kept_mass_mean)",
        "Exact attention probability on the tokens that the method attends to.",
    ),
    ("peak kept (peak_kept_tokens)", "The largest number of tokens held after any step, mean over heads."),
    (
        "KiB/head, % of full (total_bytes, full_bytes)",
        "Exact count of bytes per kv head at its peak: keys, values, weights, scores, sketches and indices;"
        " and its ratio to the exact cache at the last token.",
    ),
    (
        "oracle, holds the full cache",
        "A method that reads what no cache of that budget could: the future, or any token at any step. "
        "It is dashed in the figures. It bounds kept mass, not error, so a method may have a lower error.",
    ),
    (
        "rows used",
        "Rows of results.csv behind the mean, out of those that were run. Failed cells are never averaged"
        " away.",
    ),
)


TEACHER_FORCING = (
    "Replay is teacher-forced: the recorded queries, keys and values are fixed. Every number is the error of "
    "a single attention output, and an approximation error never changes later tokens or deeper layers."
)
NO_TASKS = (
    "Task accuracy, ROUGE, perplexity and throughput cannot be read off these numbers. Where a paper reports "
    "them, the comparison is made in attention error instead and is marked as a proxy."
)
ONE_TEXT = (
    "{data}. Intervals cover the choice of heads, not other texts or models; do not rely on differences"
    " below 10 % between layers."
)
LIMITS_TITLE = "What these numbers can and cannot show"


def limits(data):
    """The items of the note; `data`: the replayed data in words."""
    return TEACHER_FORCING, NO_TASKS, ONE_TEXT.format(data=data.rstrip("."))
