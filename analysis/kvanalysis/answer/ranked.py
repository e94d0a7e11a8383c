"""Methods ranked at equal bytes, as data."""

from dataclasses import dataclass

import pandas as pd

from .sizes import Size

RANKING = [
    *("label", "name", "family", "error", "low", "high", "share"),
    *("difference", "ratio", "ratio_low", "ratio_high", "p", "decided", "layers_more", "how", "equals"),
    *("nats", "nats_low", "nats_high", "distance"),
]


@dataclass(frozen=True)
class Ranked:
    """The ranking of methods at `share` of the full cache's bytes, which `size` counts.

    `measure`: "nats", or the column that methods are ranked by; `measure_words`: the same in words.
    `ranking` has a row for each method, the lowest error (or predicted loss) first, and at the end those that
    cannot be compared. Its columns:
    `label`; `name`, the label with every parameter that changes bytes or phase, even if all methods share it;
    `family` (stats.families); `error`, the measure, with its 95 % interval `low`, `high`;
    `share`, the share that the method really takes; `difference` from the first (positive: worse);
    `ratio` to the first in a typical layer (geometric mean over layers; by nats, of the predictions), with
    its 95 % interval `ratio_low`, `ratio_high`; `p`: one-sided, corrected for the comparisons with the best;
    `decided`: significantly worse than the first, so that it cannot be the best;
    `layers_more`: the number of layers of texts in which it is worse (NaN by nats);
    `how` the number was found, or why there is none; `equals`: labels with equal numbers on every head, which
    count as one contender; `nats`: predicted loss per token, with a 95 % interval, if the results have one;
    `distance`: the measure on the heads (ranked by nats: the second-best measure, else `error` again).
    """

    share: float
    size: Size
    measure: str
    measure_words: str
    ranking: pd.DataFrame
    n_units: int
    n_blocks: int
    n_texts: int
    layers: tuple[int, ...]
    model: str

    @property
    def compared(self) -> pd.DataFrame:
        """The rows of the ranking that have a number."""
        return self.ranking[self.ranking["error"].notna()]

    @property
    def best(self) -> str | None:
        """The label with the lowest error, significant or not; None if no method can be compared.
        Quote its `name` in the ranking, not the label."""
        return None if self.compared.empty else str(self.compared["label"].iloc[0])

    @property
    def winner_decided(self) -> bool:
        """Whether the first differs significantly from every other method."""
        return len(self.compared) > 1 and bool(self.compared["decided"].iloc[1:].all())
