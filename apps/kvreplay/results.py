"""Results as they may be given: a Run, its table or rows of it, the table of `kvanalysis.load`, a folder."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from kvanalysis.data.labels import add_labels
from kvanalysis.data.load import load
from kvanalysis.data.shares import with_common_budgets
from kvanalysis.errors import ResultsError

from .errors import ConfigError, KvreplayError
from .run import Run

if TYPE_CHECKING:
    import pandas as pd

    Results: TypeAlias = "Run | pd.DataFrame | str | Path | list[str | Path]"


def rows_of(results: "Results") -> "pd.DataFrame":
    """The table as kvanalysis reads it. Raises ConfigError where these are no results, KvreplayError where a
    folder cannot be read."""
    if isinstance(results, Run):
        return with_common_budgets(results.frame)
    if isinstance(results, str | Path | list):
        try:
            return with_common_budgets(load(results))
        except ResultsError as error:
            raise KvreplayError(str(error)) from None
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
    # Names of curves tell apart what is in the table: a part of a run needs less.
    return add_labels(frame)
