"""The columns of results.csv and confirm.csv that identify what a row is of.

CELL holds the columns that the engine marks with `identity` in results.meta.json.
"""

TEXT = ("trace_id", "prompt")
HEAD = (*TEXT, "layer", "kv_head")
# A method with its parameters that are not defaults, as canonical JSON.
METHOD = ("method", "given")
OF_INSTANCE = (*METHOD, "budget_tokens", "seed")
CELL = (*HEAD, *OF_INSTANCE)
# One run of the model: the cells of all layers and kv heads.
INSTANCE = (*TEXT, *OF_INSTANCE)
EXTENT = ("n_prefill", "n_tokens")
# A row of confirm.csv, and what it says of the instance. Its key is a hash of everything that determines it.
CONFIRMED = (*INSTANCE, "selection", "layers")
CONFIRMED_FACTS = (
    *("key", "cells", "trace_id", "model", "prompt", "method", "params", "given", "budget_tokens", "seed"),
    *(*EXTENT, "selection", "layers"),
)


def in_table(columns: tuple[str, ...]) -> list[str]:
    """Columns as the analysis names them: in its tables `given` is a dict, and `given_json` its text."""
    return ["given_json" if name == "given" else name for name in columns]
