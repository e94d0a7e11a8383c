"""The data that a kind of figure in `kvanalysis.plots` may read."""

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from ..data.arrays import Arrays, Recorded
from ..data.load import load
from ..errors import FigureError
from .config import FigureConfig


@dataclass(frozen=True)
class Context:
    """The figure's configuration, the folder that holds its steps, and the traces that were replayed."""

    config: FigureConfig
    out: Path
    traces: list[Path]
    quick: bool = False  # a quick look, not a result
    _read: dict = field(default_factory=dict)  # tables by the name of their step

    def option(self, name, default=None):
        """`figure.options.NAME`; raises FigureError if it is missing and has no default."""
        if name not in self.config.options and default is None:
            raise FigureError(f"{self.config.path}: figure.options: {name} is missing")
        return self.config.options.get(name, default)

    def frame(self, step="run"):
        """The typed table of a run step (kvanalysis.data.load); callers must not change it."""
        return self._once(step, lambda: load(self.out / step))

    def arrays(self, kind, step="run"):
        """Curves, kept tokens or outputs of a run step, by cell key."""
        return Arrays(self.out / step / f"{kind}.h5")

    def cluster(self, step="cluster"):
        """The long table of a cluster step: layer, kv_head, measure, view, param, x, value."""
        missing = {"value": [""], "x": [""], "param": []}
        read = {"dtype": {"prompt": str}, "keep_default_na": False, "na_values": missing}
        return self._once(step, lambda: pd.read_csv(self.out / f"{step}.csv", **read))

    def bounds(self, step="bounds"):
        """The table of a bounds step."""
        return pd.read_csv(self.out / f"{step}.csv")

    def recorded(self, step=""):
        """q, k, v, tokens and text of the only trace, or of a synth step."""
        if step:
            return Recorded(self.out / f"{step}.h5")
        if len(self.traces) != 1:
            raise FigureError(
                f"{self.config.path}: {self.config.kind} draws one trace, not {len(self.traces)}"
            )
        return Recorded(self.traces[0])

    def _once(self, step, read):
        if step not in self._read:
            self._read[step] = read()
        return self._read[step]
