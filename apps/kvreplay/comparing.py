"""kvreplay.compare: which method loses least at the bytes that one can afford, and which are told apart."""

from typing import TYPE_CHECKING

from kvanalysis.answer.compare import Answer, compare_at
from kvanalysis.answer.selection import layers_in, shares_in
from kvanalysis.answer.sizes import PEAK
from kvanalysis.errors import UserError
from kvanalysis.loss.predicted import losses_of

from .errors import ConfigError
from .results import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .results import Results

__all__ = ["Answer", "compare"]


def compare(
    results: "Results",
    at: "float | str" = 0.2,
    *,
    of: str = PEAK,
    layers: "Iterable[int] | str | None" = None,
    measure: str | None = None,
    phase: str | None = None,
    methods: "Iterable[str] | None" = None,
) -> Answer:
    """Ranks methods at equal bytes, and says which of them are told apart.

    results: a Run, its table or rows of it, or the folder that `kvreplay run` wrote. at: share of the full
    cache's bytes, (0, 1] or "20%"; a method that was replayed at smaller and larger budgets only is
    interpolated, one that was not is left out with the reason. of: which bytes: "peak", those at the peak;
    "mean", over the steps; "prompt", those of the prompt after its cut, as papers count the compression of
    one-shot methods. Budgets are asked for in the same way by budgets={"share_of_cache": [0.2], "of":
    "prompt"}. layers: all, a list, or "15-29". measure: "nats" (predicted from a gradient in the trace: the
    default where a folder holds the projections of all methods), "distance" (squared cosine distance of the
    attention output, else the default: docs/ranking.md), "error" (mean relative error), "cosine" (one minus
    it), or a column of the table in which less is better. phase: "stream" or "oneshot" alone. methods: names,
    or all.

    print(answer) shows it; its parts are `sentence`, `caveats`, `ranking` (a DataFrame) and `best`.
    Intervals and decisions are Student's over layers with their heads inside, with Holm's correction over
    all pairs; below five layers no difference is significant. Of nats they are those of predictions
    (docs/statistics.md). Raises ConfigError.
    """
    try:
        shares = shares_in(at)
        if len(shares) > 1:
            raise ConfigError(f"at is {at!r}: one share at a time")
        chosen = layers_in(layers) if isinstance(layers, str) else None if layers is None else list(layers)
        names = None if methods is None else list(methods)
        rows = rows_of(results)
        return compare_at(
            rows,
            shares[0],
            of=of,
            layers=chosen,
            measure=measure,
            phase=phase,
            methods=names,
            losses=losses_of(rows),
        )
    except UserError as problem:
        raise ConfigError(str(problem).removeprefix("--")) from None
