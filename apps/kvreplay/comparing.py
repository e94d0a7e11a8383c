"""kvreplay.compare: which method has the lowest error at equal bytes, with tests of the differences."""

from typing import TYPE_CHECKING

from kvanalysis.answer.compare import Answer, compare_at
from kvanalysis.answer.selection import shares_in
from kvanalysis.loss.predicted import losses_of
from kvbase.errors import ConfigError

from .results import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .results import Results

__all__ = ["Answer", "compare"]


def compare(
    results: "Results",
    at: "float | str" = 0.2,
    *,
    of: str | None = None,
    layers: "Iterable[int] | str | None" = None,
    measure: str | None = None,
    phase: str | None = None,
    methods: "Iterable[str] | None" = None,
) -> Answer:
    """Rank methods at equal bytes and test which differences are significant.

        answer = kv.compare("out/sweep", "20%", of="prompt")
        print(answer)                # the sentence, the ranking and the caveats
        answer.best, answer.ranking

    results: a Run, its table or some rows of it, or the folder that `kvreplay run` wrote.
    at: share of the bytes that `of` names, in (0, 1] or as text ("20%"). A method that was replayed only at
        smaller and larger budgets is interpolated. A method that does not reach the share is left out, and
        the ranking gives the reason.
    of: which bytes are counted. "prompt": the bytes of the prompt after its cut, as papers count them;
        "peak": the most bytes at any time; "mean": the mean over all steps. Default: those whose shares the
        run was asked for, else "prompt" if every row has a prompt, else "peak". To replay at such a budget:
        `replay(budgets={"share_of_cache": [0.2], "of": "mean"})`.
    layers: a list or a range ("15-29"); default: all.
    measure: what methods are ranked by; less is better.
        "nats": the predicted loss of the model in nats per token, from a gradient in the trace. This is the
        default if the folder holds the projections of all methods.
        "distance": squared cosine distance of the attention output; otherwise the default (docs/ranking.md).
        "error": mean relative error. "cosine": one minus the cosine. Or the name of a column of the table.
    phase: "stream" or "oneshot" compares only methods of that phase.
    methods: names; default: all.

    Returns an Answer with `sentence`, `caveats`, `ranking` (a DataFrame) and `best`; `print` shows all of it.
    Confidence intervals are Student's over layers, with the heads of a layer inside. A method is
    significantly worse than the first if it cannot be the best: paired t tests of the logarithm of the ratio
    of two errors, over layers, as multiple comparisons with the best. They need five layers.
    By nats, intervals and tests are those of the predictions (docs/statistics.md).
    Raises ConfigError if an argument is wrong or the results hold nothing to compare.
    """
    try:
        shares = shares_in(at)
        if len(shares) > 1:
            raise ConfigError(f"at is {at!r}: one share at a time")
        chosen = layers if layers is None or isinstance(layers, str) else list(layers)
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
    except ConfigError as problem:
        raise ConfigError(str(problem).removeprefix("--")) from None
