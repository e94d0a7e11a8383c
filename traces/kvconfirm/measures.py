"""What the predictions of a compressed run lost, in the measures and names that llama.cpp prints."""

import numpy as np

# Linear between order statistics, at index q (N - 1).
QUANTILES = {
    "kld_median": 0.5,
    "kld_p999": 0.999,
    "kld_p99": 0.99,
    "kld_p95": 0.95,
    "kld_p90": 0.9,
    "kld_max": 1.0,
}


def measures(kl: np.ndarray, same_top: np.ndarray, loss: np.ndarray, loss_full: np.ndarray) -> dict:
    """{column: number} of N rows, arrays [N]: KL(full || compressed) in nats, whether the most probable token
    is equal, and the losses of the next token in nats. Standard errors are None for a single row."""
    kl, same_top, loss, loss_full = (np.asarray(x, np.float64) for x in (kl, same_top, loss, loss_full))
    change = np.exp(-loss) - np.exp(-loss_full)  # in the next token's probability
    return {
        "kld_mean": float(kl.mean()),
        "kld_mean_se": standard_error(kl),
        **{name: float(np.quantile(kl, q)) for name, q in QUANTILES.items()},
        "same_top": float(same_top.mean()),
        "same_top_se": standard_error(same_top),
        "dp_mean": float(change.mean()),
        "dp_rms": float(np.sqrt((change**2).mean())),
        "ln_ppl_ratio": float((loss - loss_full).mean()),
    }


def standard_error(values: np.ndarray) -> float | None:
    """sqrt((mean x^2 - mean^2) / (N - 1)), which is sqrt(s (1 - s) / (N - 1)) where each x is 0 or 1; None
    for N = 1."""
    if len(values) == 1:
        return None
    # By the standard deviation, as the difference of squares would lose digits.
    return float(values.std() / np.sqrt(len(values) - 1))
