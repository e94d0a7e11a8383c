"""Reads epsilon.csv: bounds on the budget from which on each head meets an epsilon."""

import pandas as pd
from kvbase.files import why_unreadable

from ..errors import ResultsError

TEXTS = ("trace_id", "model", "prompt", "method", "given", "measure", "status")
NUMBERS = (
    *("layer", "kv_head", "epsilon", "budget_tokens", "share_of_prompt", "error", "budget_below"),
    *("error_below", "smaller_meets", "n_seeds"),
)
KINDS = dict.fromkeys(TEXTS, str) | dict.fromkeys(NUMBERS, float)


def read_epsilon_csv(path):
    """The rows, numbers as floats; None without such a file. Raises ResultsError."""
    if not path.is_file():
        return None
    try:
        missing = {name: [""] for name in NUMBERS}  # an empty text stays a text
        frame = pd.read_csv(path, dtype=KINDS, keep_default_na=False, na_values=missing)
    except (OSError, ValueError) as problem:
        raise ResultsError(f"{path}: {why_unreadable(path, problem)}") from problem
    lacking = ", ".join(sorted(set(KINDS) - set(frame)))
    if lacking:
        raise ResultsError(f"{path}: lacks {lacking}; `kvreplay export OUT --epsilon LIST` writes it again")
    return frame
