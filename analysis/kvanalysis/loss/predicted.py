"""The predicted loss of each instance of a run, in nats a token, from the trace alone."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from kvbase.files import whole_file

from ..data.arrays import Arrays
from ..data.confirm_csv import RECORDED, layers_of
from ..data.confirmed import INSTANCE, confirmed, whole_rows
from ..data.load import load
from ..data.shares import with_common_budgets
from ..errors import ResultsError
from .answer import answer_begins, answers_in
from .estimate import by_blocks, by_row, interval, label_noise, whole
from .response import METHODS_APART, response_of

NAMED = ["trace_id", "prompt", "method", "label", "params", "budget_tokens", "seed"]
COLUMNS = [*NAMED, "layers", "n_rows", "kl", "kl_low", "kl_high", "kl_row", "kl_block", "kl_full", "kl_head",
           "loss_first_order", "answer_distance", "answer_log_prob_full", "answer_first_order",
           "answer_log_prob", "answer_probability"]  # fmt: skip
REMEDY = (
    "record the trace with `kvreplay record --with-gradient`, from the end of the replay's prompt or"
    " earlier, and replay with --save projections (in a configuration `output: {save: [projections]}`)"
)


@dataclass(frozen=True)
class Losses:
    """`table`: as `predicted` returns it. If `why` is not empty, it says why whole instances have no
    prediction: only `kl_head` is set, and all other numbers are NaN."""

    table: pd.DataFrame
    why: str = ""

    def of_trace(self, trace_id):
        return Losses(self.table[self.table["trace_id"] == trace_id], self.why)


def predicted(frame):
    """A row of COLUMNS for each instance of `load`'s table that has no failed cell, with `kl_mean` if the
    closed loop measured it.

    `kl_row`, `kl_block`, `kl_full`: the second order, see `estimate`. `kl_head`: the sum over single heads,
    without pairs of heads. `kl`: `kl_row` corrected by the model's response to errors of this size
    (`response`), with a 95 % interval for the noise of labels and the scatter of methods whose errors have
    one size; for a trace without masked runs it is `kl_block`, without an interval. `loss_first_order`: the
    first-order change of the loss of the recorded tokens, of either sign; NaN if the trace lacks their
    gradient. Where the prompt has an answer: `answer_distance`, the squared cosine distance at the rows that
    predict it, mean over rows, layers and query heads; `answer_log_prob_full`, its log-probability in nats
    with the full cache; `answer_first_order`, the first-order change of its log-odds; `answer_log_prob`, the
    predicted log-probability, and `answer_probability`, that the model says the answer (`answer`). `layers`:
    number of layers of the instance. All numbers cover these layers only; if the model has more, they are
    lower bounds. Raises ResultsError without projections.
    """
    used = _with_losses(frame)
    if used.empty:
        raise ResultsError(f"no instance without a failed cell holds kl_head_mean: {REMEDY}")
    return _with_measured_kl(_of_instances(used, _projections(frame)), frame)


def write_predicted(folder):
    """Writes FOLDER/predicted.csv for the results there; returns (its path, the table of `predicted`)."""
    table, path = predicted(load(folder)), folder / "predicted.csv"
    with whole_file(path) as draft:
        table.to_csv(draft, index=False)
    return path, table


def losses_of(frame):
    """The Losses of instances without a failed cell, from `load`'s table or its rows of one trace; None if
    the trace holds no gradient. Missing or unreadable projections raise nothing."""
    used = _with_losses(frame)
    if used.empty:
        return None
    try:
        table, why = _of_instances(used, _projections(frame)), ""
    except ResultsError as problem:
        table, why = _of_instances(used), str(problem)
    return Losses(_with_measured_kl(table, frame, whole=False), why)


def _with_losses(frame):
    """The rows of instances without a failed cell, because a sum over fewer heads would be another loss; no
    rows if the trace holds no gradient. Heads that were asked for one share of the bytes are one instance,
    with the mean of their budgets."""
    if "kl_head_mean" not in frame:
        return frame.iloc[:0]
    frame = with_common_budgets(frame)
    finished = (frame["status"] == "ok").groupby([frame[name] for name in INSTANCE], dropna=False)
    used = frame[finished.transform("all")]
    return used if used["kl_head_mean"].notna().any() else used.iloc[:0]


def _projections(frame):
    if "projections" in frame.attrs:  # a replay in this process keeps them
        return frame.attrs["projections"]
    folders = frame.attrs.get("folders", ())
    if not len(folders):
        raise ResultsError(f"results outside a folder have no projections: {REMEDY}")
    return Arrays(Path(folders[0]) / "projections.h5")


def _of_instances(used, arrays=None):
    """`predicted` for finished rows, with `given_json`; without `arrays`, from heads alone."""
    responses = _responses(used) if arrays else {}
    answers, begins = (_in_traces(used, read) if arrays else {} for read in (answers_in, answer_begins))
    rows = [
        _row(key, cells, arrays, *(known.get(key[:2]) for known in (responses, answers, begins)))
        for key, cells in used.groupby(INSTANCE, dropna=False, sort=False)
    ]
    # pandas cannot merge by budgets or seeds that are all missing, because they have no type.
    return pd.DataFrame(rows).astype({name: used[name].dtype for name in ("budget_tokens", "seed")})


def _responses(frame):
    """{(trace_id, prompt): Response} of the traces that still are where the run read them. A live run, whose
    trace never was a file, brings them along."""
    if "responses" in frame.attrs:
        return frame.attrs["responses"]
    paths, found = _trace_files(frame), {}
    for trace, prompt in frame[["trace_id", "prompt"]].drop_duplicates().itertuples(index=False):
        with suppress(OSError):
            if trace in paths and (response := response_of(paths[trace], prompt)):
                found[trace, prompt] = response
    return found


def _in_traces(frame, read):
    """{(trace_id, prompt): value} of `read(path)`, {prompt: value}, for the traces that still are where the
    run read them."""
    found = {}
    for trace, path in _trace_files(frame).items():
        with suppress(OSError):
            found |= {(trace, prompt): value for prompt, value in read(path).items()}
    return found


def _trace_files(frame):
    """{trace_id: path} of the traces that still are where the run read them."""
    traces = frame.attrs.get("meta", {}).get("traces") or []
    paths = {trace["trace_id"]: Path(trace["path"]) for trace in traces}
    return {trace: path for trace, path in paths.items() if path.is_file()}


def _row(key, cells, arrays, response, answer, begin):
    first = cells.iloc[0]
    row = {name: first[name] for name in NAMED} | {"layers": cells["layer"].nunique()}
    numbers = dict.fromkeys(COLUMNS[len(row) :], np.nan) | {"kl_head": float(cells["kl_head_mean"].sum())}
    if arrays:
        sums = sums_over_heads(cells, arrays)
        numbers |= _whole_instance(sums, response) | _answer(sums, answer)
        numbers["answer_distance"] = _answer_distance(sums, begin)
    return row | numbers | {"given_json": key[3]}


def _whole_instance(sums, response):
    """The numbers of an instance from its Sums."""
    a, recorded = sums.a, sums.recorded
    row, blocks = by_row(a), by_blocks(a)
    kl, low, high = blocks, np.nan, np.nan
    if response:
        kl = response.of(a, sums.rows, sums.distance2)
        low, high = _interval(kl, a) if row else (kl, kl)
    first = np.nan if recorded is None else float(-recorded.mean())
    return {"n_rows": len(a), "kl": kl, "kl_low": low, "kl_high": high, "kl_row": row, "kl_block": blocks,
            "kl_full": whole(a), "loss_first_order": first}  # fmt: skip


def _answer(sums, response):
    """The columns from the gradient of the prompt's answer; none without it."""
    if sums.answer is None:
        return {}
    first = float(sums.answer.sum())
    if response is None:
        return {"answer_first_order": first}
    log_prob, probability = response.of(first)
    return {"answer_log_prob_full": response.log_prob, "answer_first_order": first,
            "answer_log_prob": log_prob, "answer_probability": probability}  # fmt: skip


def _answer_distance(sums, begin):
    """The mean squared cosine distance over the rows that predict an answer whose first token is `begin`; NaN
    where unknown."""
    if begin is None or sums.distance2 is None:
        return np.nan
    own = sums.rows >= begin - 1
    return float(sums.distance2[own].mean()) if own.any() else np.nan


def _interval(kl, a):
    """The interval; NaN with a single sample, which does not show how far samples differ."""
    if a.shape[1] < 2:
        return np.nan, np.nan
    return interval(kl, (label_noise(a), a.shape[1] - 1), (METHODS_APART, np.inf))


@dataclass(frozen=True)
class Sums:
    """Sums over all heads of an instance at `rows` [n], without the last token, which predicts nothing:
    `a` [n, S], and `recorded` and `answer` [n] or None, sums of products; `distance2` [n] or None, the mean
    over query heads of the squared cosine distance."""

    rows: np.ndarray
    a: np.ndarray
    recorded: np.ndarray | None
    answer: np.ndarray | None
    distance2: np.ndarray | None


def sums_over_heads(cells, arrays):
    """The Sums, in float64, over the cells of an instance, which share their rows."""
    first = cells.iloc[0]
    one = arrays[first["key"]]
    there = [name for name in ("a", "a_recorded", "a_answer", "cosine_distance") if name in one]
    total, heads = dict.fromkeys(there, 0.0), 0
    for cell in arrays.each(cells["key"], there):
        for name in there:
            values = np.square(cell[name], dtype=float) if name == "cosine_distance" else cell[name]
            total[name] = total[name] + values.sum(axis=0, dtype=float)
        heads += len(cell["a"])
    predicting = one["rows"] < first["n_tokens"] - 1
    found = {name: values[predicting] for name, values in total.items()}
    distance2 = found["cosine_distance"] / heads if "cosine_distance" in found else None
    one_loss = (found.get(name) for name in ("a_recorded", "a_answer"))
    return Sums(one["rows"][predicting].astype(int), found["a"], *one_loss, distance2)


def _with_measured_kl(table, frame, whole=True):
    """Adds `kl_mean` from the closed-loop runs that attended to the replayed tokens, in all layers of the
    instance."""
    found = confirmed(frame, whole)
    if found is not None:
        losses = whole_rows(found.losses)
        losses = losses[losses["selection"] == RECORDED]
        losses = losses.assign(layers=losses["layers"].map(lambda text: len(layers_of(text))))
        losses = losses[[*INSTANCE, "layers", "kl_mean"]].drop_duplicates([*INSTANCE, "layers"])
        table = table.merge(losses, on=[*INSTANCE, "layers"], how="left")
    return table.drop(columns="given_json")
