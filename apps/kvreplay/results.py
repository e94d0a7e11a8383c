"""The forms in which a caller can pass results: a Run, its table or rows of it, a loaded table, a folder."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kvanalysis.data.labels import add_labels
from kvanalysis.data.load import load
from kvanalysis.data.shares import with_common_budgets
from kvbase.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    class HasFrame(Protocol):
        """A Run. run.py uses this module, so its class is not imported."""

        @property
        def frame(self) -> pd.DataFrame: ...

    Results: TypeAlias = "HasFrame | pd.DataFrame | str | Path | list[str | Path]"


def rows_of(results: "Results") -> "pd.DataFrame":
    """The results as the analysis' table. Raises ConfigError if `results` is of another type, ResultsError
    if a folder cannot be read."""
    if hasattr(type(results), "frame"):
        return with_common_budgets(results.frame)
    if isinstance(results, str | Path | list):
        return with_common_budgets(load(results))
    if not {"method", "params", "given"} <= set(getattr(results, "columns", ())):
        raise ConfigError(
            f"a {type(results).__name__} holds no results: give a Run, its table, or a folder of results"
        )
    if "params_json" in results:
        return results.reset_index(drop=True)
    frame = results.reset_index(drop=True).assign(
        params_json=results["params"].to_numpy(), given_json=results["given"].to_numpy()
    )
    for name in ("params", "given"):
        frame[name] = [json.loads(text) if text else {} for text in frame[f"{name}_json"]]
    # Labels hold only what distinguishes the rows at hand, so a part of a run gets shorter ones.
    return add_labels(frame)
