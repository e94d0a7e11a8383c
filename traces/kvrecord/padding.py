"""Which columns of a padded batch hold the tokens of one of its rows."""

import torch
from kvbase.errors import TraceError


class Columns:
    """The columns of all passes over row `row` of a batch, up to the pass in work.

    shown: for each column whether attention sees it. Those that it does not see are padding.
    """

    def __init__(self, row):
        self.where = f"row {row} of the batch"
        self.row = row
        self.shown = []

    def __len__(self):
        return len(self.shown)

    def add(self, n, mask, n_rows):
        """Adds the n columns of a pass with this attention_mask over n_rows rows. Returns those of them that
        hold tokens, counted from the first of the pass. TraceError if the mask does not say which do."""
        before = len(self)
        seen = self._seen(mask, before + n, n_rows)
        if len(seen) < before + n:
            raise TraceError(
                f"{self.where}: attention_mask has {len(seen)} columns, but with this pass {before + n} ran: "
                "use a cache (use_cache=True) and a mask over all of it, and rec.prompt(id) for another text"
            )
        if seen[:before] != self.shown:
            raise TraceError(
                f"{self.where}: attention_mask changed for tokens that ran before, so they are not one text"
            )
        self.shown = seen[: before + n]
        return [at for at in range(n) if self.shown[before + at]]

    def _seen(self, mask, total, n_rows):
        if isinstance(mask, torch.Tensor) and mask.ndim == 2:
            return [True] * total if bool(mask.all()) else mask[self.row].bool().tolist()
        if mask is not None and n_rows > 1:
            raise TraceError(
                f"batch of {n_rows} sequences whose attention_mask is not [batch, tokens], so padding cannot "
                "be told from tokens: pass the tokenizer's mask"
            )
        return [True] * total

    def check_window(self, call):
        """TraceError if padding stands between tokens in a layer whose window counts columns."""
        if not call.sliding_window or len(self) <= call.sliding_window or all(self.shown):
            return
        first = self.shown.index(True)
        last = len(self) - 1 - self.shown[::-1].index(True)
        if not all(self.shown[first:last]):
            raise TraceError(
                f"{self.where}, layer {call.layer}: padding stands between tokens, and the layer's window of "
                f"{call.sliding_window} counts it: pad on the left"
            )


def as_slice(columns):
    """Ascending columns as a slice if they are neighbours, so that taking them copies nothing. None if
    there are none."""
    if not columns:
        return None
    whole = slice(columns[0], columns[-1] + 1)
    return whole if whole.stop - whole.start == len(columns) else columns
