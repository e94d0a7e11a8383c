"""When a token is resident, when it is evicted, and how much attention later queries would have paid to
it."""

import numpy as np
import pandas as pd

from ...errors import ResultsError


def kept_timeline(lists, attention, n_prefill):
    """A row per token of one cell, in order of position.

    `lists`: resident tokens after the prompt and after each later step (kept.h5). `attention` [R, n]: exact
    probabilities of rows n_prefill..n-1 (R = n - n_prefill). Columns: `position`; `enters`, `evicted_at`, the
    steps after which it is first resident and no longer resident (NaN: never evicted; a token dropped by the
    prompt's cut is evicted at n_prefill - 1, a token that is never resident in its own step); `age` at
    eviction; `wanted_mass`, the attention of rows n_prefill..n-1 to it, and `later_mass`, the part from rows
    after its eviction [rows: 1 is the whole attention of one query]. Raises ResultsError if the lists do not
    describe one streaming cache.
    """
    rows, n = attention.shape
    lists = _expand_to_steps(lists, rows, n_prefill)
    resident = np.zeros((rows + 1, n), dtype=bool)
    for step, held in enumerate(lists):
        resident[step, held] = True
    position = np.arange(n)
    enters = np.maximum(position, n_prefill - 1)
    stays = resident[-1]
    # Tokens never return, so a token's resident steps are consecutive and their number gives the eviction.
    evicted = np.where(stays, np.nan, enters + resident.sum(axis=0))
    missing = (np.arange(n_prefill, n)[:, None] > position) & ~resident[:-1]
    return pd.DataFrame(
        {
            "position": position,
            "enters": enters,
            "evicted_at": evicted,
            "age": evicted - position,
            "wanted_mass": attention.sum(axis=0),
            "later_mass": (attention * missing).sum(axis=0),
        }
    )


def _expand_to_steps(lists, rows, n_prefill):
    """`lists`, extended to one entry after the prompt and one after each of `rows` steps."""
    if len(lists) == 1 and rows > 1:  # one-shot methods keep every later token
        grown = [np.r_[lists[0], np.arange(n_prefill, n_prefill + step)] for step in range(rows + 1)]
        return [tokens.astype(int) for tokens in grown]
    if len(lists) != rows + 1:
        raise ResultsError(
            f"kept.h5 holds {len(lists)} lists for {rows} steps: a timeline needs one cache for each kv head"
            " (gqa.level kv) and one list after every step"
        )
    return lists


def evictions(timeline):
    """The rows of tokens that were evicted, the largest later mass first (ties: the earlier token)."""
    gone = timeline[timeline["evicted_at"].notna()]
    return gone.sort_values(["later_mass", "position"], ascending=[False, True])
