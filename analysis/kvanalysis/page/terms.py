"""The words of the tables, explained."""

from ..stats.intervals import LEVEL, RESAMPLES

TERMS = (
    (
        "rel. error (rel_err_out_mean)",
        "‖z − o‖₂ / ‖o‖₂ with o the exact attention output and z the method’s: a mean of ratios over "
        "the query heads of the group and the scored decode rows. 0 is exact, 1 is as wrong as a zero. "
        "Rows of the prompt are exact and not scored.",
    ),
    (
        "95 % interval",
        f"Percentile bootstrap ({LEVEL:.0%}, {RESAMPLES} resamples) over heads, one value per "
        "(prompt, layer, kv head), its seeds averaged first. It says how much the mean depends on "
        "the heads that were recorded; it does not cover other texts or models.",
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
        "Exact attention probability that falls on the tokens the method attends to.",
    ),
    ("peak kept (peak_kept_tokens)", "The most tokens resident after a step, mean over heads."),
    (
        "KiB/head, % of full (total_bytes, full_bytes)",
        "Exact ledger per kv head at its peak: keys, values, weights, scores, sketches and indices, and its "
        "ratio to the exact cache at the last token.",
    ),
    (
        "oracle, holds the full cache",
        "A method that reads what no cache of that budget could: the future, or any token at any step. "
        "Dashed in the figures. It bounds kept mass, not error, so a method may lie below it.",
    ),
    (
        "rows used",
        "Rows of results.csv behind the mean, of those that were run. A failed cell is never averaged away.",
    ),
)
