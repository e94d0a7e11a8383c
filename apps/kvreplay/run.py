"""Run, the result of a replay: a table with one row per cell, and the arrays behind it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from kvbase.engine import _engine
from kvbase.errors import KvreplayError

from .own_methods import hosted
from .projections import Projections, named_projections

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from kvanalysis.answer.compare import Answer
    from kvanalysis.data.arrays import Recorded
    from kvanalysis.data.notes import Note

    from .sources import Replayed

SUMMARY = (
    *("label", "budget_tokens", "rel_err_out_mean", "rel_err_low", "rel_err_high", "kept_mass_mean"),
    *("partition_err_mean", "peak_kept_tokens", "total_bytes", "bytes_ratio", "n_units", "n_seeds", "notes"),
)
REALS = ("rel_err", "partition_err", "out", "num", "den")  # float32, or float64 with precision="double"
NEEDED = {"kept": "kept_flat", "curves": "rel_err", "outputs": "out"}


@dataclass
class Cell:
    """One row of the table with its arrays. A cell is a prompt, layer, kv head, method with its parameters,
    budget and seed."""

    row: dict[str, Any]
    arrays: dict[str, Any] = field(default_factory=dict)
    place: int = 0  # index of the cell in the plan

    @property
    def error(self) -> str:
        """Traceback of a failed cell; "" otherwise."""
        return self.arrays.get("error", b"").decode()


class Run:
    """Results of `kvreplay.replay`.

        run = kv.replay(kv.sample(), methods=["h2o", "tova"], budgets=[64, 128, "20%"])
        run.summary()                                   # a row per method and budget
        run.table.groupby("layer")["rel_err_out_mean"].mean()
        run.compare("20%")                              # ranking at equal bytes
        run.kept("h2o", 64, layer=15, head=1)           # tokens in the cache after each step

    `table` has one row per cell: a prompt, layer, kv head, method with its parameters, budget and seed.
    `kept`, `row_errors` and `outputs` return a cell's arrays. If `replay(save=...)` did not keep them, they
    are replayed on demand, which needs the run's arrays or files.
    """

    def __init__(
        self,
        cells: list[Cell],
        warnings: list[str],
        engine_s: float,
        said: str,
        again: Callable[[Mapping[str, Any], str], list[Cell]],
        recorded: "Callable[[Mapping[str, Any]], Recorded | Replayed]",
        responses: Mapping[str, Any] | None = None,
    ):
        self.cells = cells
        self.warnings = warnings
        self.engine_s = engine_s
        self._said = said
        self._again = again
        self.recorded = recorded
        self._responses = responses  # to hidden tokens, by prompt; None: the trace has them

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """The table in the form that the analysis uses: `params` and `given` are dicts, `label` names the
        curve in figures."""
        from kvanalysis.data.rows import frame_of_rows

        frame = frame_of_rows([cell.row for cell in self.cells], self._meta())
        if held := {cell.row["key"]: cell.arrays for cell in self.cells if "a" in cell.arrays}:
            frame.attrs["projections"] = Projections(held)
            if self._responses is not None:
                ids = frame[["trace_id", "prompt"]].drop_duplicates().itertuples(index=False)
                named = {(trace, prompt): self._responses.get(prompt) for trace, prompt in ids}
                frame.attrs["responses"] = {key: known for key, known in named.items() if known}
        return frame

    @property
    def notes(self) -> "list[Note]":
        """Warnings about the numbers, the most important first: budgets that compress nothing, scores that
        decide nothing, instances or heads with identical results. Each Note has `kind`, `instances` (none:
        the whole table), `budgets` in tokens, `traces`, `cells`, `heads` and one sentence `text`."""
        from kvanalysis.data.notes import notes_of

        return notes_of(self._meta())

    def _meta(self) -> dict[str, Any]:
        columns = {each["name"]: each for each in json.loads(_engine.columns())}
        return {"version": _engine.version, "columns": columns, **json.loads(self._said)}

    @property
    def table(self) -> "pd.DataFrame":
        """DataFrame with one row per cell, failed cells included. Counts are nullable integers, measures are
        floats, `params` and `given` are canonical JSON, `label` is the method with the parameters that
        distinguish its instances. `kvreplay.columns()` explains the columns."""
        frame = self.frame
        texts = [name for name in ("params", "given", "extras") if f"{name}_json" in frame]
        table = frame.assign(**{name: frame[f"{name}_json"] for name in texts})
        return table.drop(columns=[f"{name}_json" for name in texts])

    def summary(self) -> "pd.DataFrame":
        """DataFrame with a row for each method and budget: means over prompts, layers and kv heads.

        `rel_err_out_mean` is the mean relative error, `rel_err_low` and `rel_err_high` its 95 % confidence
        interval over layers; `bytes_ratio` is total bytes divided by those of the full cache, a ratio of
        sums; `notes` collects `run.notes` and remarks in the rows. If budgets are shares of the cache, there
        is a row for each method and `share`, and `budget_tokens` is the rounded mean over heads.
        """
        from kvanalysis.data.shares import by_share_with_mean_budgets
        from kvanalysis.stats.summary import summarise

        frame = by_share_with_mean_budgets(self.frame)
        if frame["share"].isna().all():
            return summarise(self.frame)[list(SUMMARY)].rename(columns={"label": "method"})
        table = summarise(frame, by=("share",)).sort_values(["label", "share"], ignore_index=True)
        return table[[SUMMARY[0], "share", *SUMMARY[1:]]].rename(columns={"label": "method"})

    def compare(self, at: "float | str" = 0.2, **options: Any) -> "Answer":
        """Rank methods at equal bytes and test which differences are significant.

            print(run.compare("20%"))

        at: share of the full cache's bytes, in (0, 1] or "20%". Options and errors: `kvreplay.compare`.
        """
        from .comparing import compare

        return compare(self, at, **options)

    def predicted(self) -> "pd.DataFrame":
        """Predict the loss that each method causes in the model, without running the model.

            run = kv.replay("gradient.h5", methods=["h2o"], budgets=["20%"], save="projections")
            run.predicted()[["method", "budget_tokens", "kl", "kl_low", "kl_high"]]

        The trace must hold a gradient (`kvreplay.record(gradient=8)`), and the run its projections. Returns
        the table that `kvreplay.predict` describes. Raises KvreplayError if the run has no projections.
        """
        from kvanalysis.loss.predicted import predicted

        if "projections" not in self.frame.attrs:
            raise KvreplayError(
                'the run has no projections: replay a trace with a gradient, with save="projections"'
            )
        return predicted(self.frame)

    @property
    def segments(self) -> "pd.DataFrame":
        """DataFrame with one row per cell and scored segment, for replays with turns or branches: the cell's
        `key`, `method` and `kv_head`, `segment` (index of the output, or of the branch), `name`, `first_row`,
        `rows`, `tokens_seen` and `resident_tokens` when it begins, and its errors. Empty otherwise.

            run = kv.replay("trace.h5", methods=["snapkv"], budgets=[64], branches="all")
            run.segments.groupby("segment")["rel_err_out_mean"].mean()
        """
        import pandas as pd

        return pd.DataFrame(
            {**{name: cell.row[name] for name in ("key", "method", "kv_head")}, **segment}
            for cell in self.cells
            for segment in json.loads(cell.arrays.get("segments", b"[]"))
        )

    @property
    def failed(self) -> "pd.DataFrame":
        """Rows of the table whose cell failed; the column `error` holds the traceback."""
        failed = self.table[self.frame["status"] != "ok"]
        return failed.assign(error=[self.cells[i].error for i in failed.index])

    def failures(self) -> list[str]:
        """One line per method with failed cells; it ends with the last line of the first traceback."""
        found: dict[str, list[str]] = {}
        for cell in self.cells:
            if cell.row["status"] != "ok":
                found.setdefault(cell.row["method"], []).append(cell.error or cell.row["error"])
        all_cells = {name: sum(cell.row["method"] == name for cell in self.cells) for name in found}
        return [
            f"{len(why)} of {all_cells[name]} cells of {name} failed: {why[0].strip().splitlines()[-1]} "
            "(details: run.failed)"
            for name, why in found.items()
        ]

    def kept(
        self, method: Any = None, budget: int | None = None, *, branch: int | None = None, **place: Any
    ) -> list[np.ndarray]:
        """Tokens that one cell's cache held: a list of int32 arrays, each ascending.

            after_prompt, *after_steps = run.kept("h2o", 64, layer=15, head=1)

        The first array is the cache after the prompt, each later one after a decode step. A one-shot method
        has the first array only, because it keeps all later tokens. With `gqa.level: query` the list has one
        such series per query head, one after the other. For a method that holds all tokens and reads some at
        each step (topk_oracle, quest), the list has the tokens that each scored row read.

        method: name, label, or the object passed to `methods`. budget: in tokens. place: layer, head (the kv
        head), prompt, seed, params (a dict of parameters). The first cell that matches is used.
        branch: which one, where the run replayed branches.
        Raises KeyError if no cell matches, KvreplayError if the cell failed.
        """
        arrays = self._arrays("kept", method, budget, place)
        if "branches" in arrays:
            arrays = _branch(arrays["branches"], branch)
        elif branch is not None:
            raise KeyError(f"branch {branch} was not replayed: give branches to the replay")
        lists = "attended" if "attended_off" in arrays else "kept"
        return np.split(arrays[f"{lists}_flat"], arrays[f"{lists}_off"][1:-1])

    def row_errors(
        self, method: Any = None, budget: int | None = None, **place: Any
    ) -> dict[str, np.ndarray]:
        """Errors of each scored row of one cell, as a dict of arrays.

        `rows` [R]: token indices. `rel_err` [query heads, R]: relative error of the output, negative if the
        exact output is zero. `partition_err` [query heads, R]. float32, or float64 with precision="double".
        Arguments and errors as for `kept`.
        """
        arrays = self._arrays("curves", method, budget, place)
        return {name: arrays[name] for name in ("rows", "rel_err", "partition_err")}

    def outputs(
        self, method: Any = None, budget: int | None = None, **place: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Attention outputs of one cell: (rows [R], outputs [query heads, R, Dv]); float32, or float64 with
        precision="double". Arguments and errors as for `kept`."""
        arrays = self._arrays("outputs", method, budget, place)
        return arrays["rows"], arrays["out"]

    def row(self, method: Any = None, budget: int | None = None, **place: Any) -> dict[str, Any]:
        """One cell's row of the table, as a dict, with its `label`. Arguments and KeyError as for `kept`."""
        found = self._index(method, budget, place)
        return {**self.cells[found].row, "label": self.frame["label"].iloc[found]}

    def save(self, folder: "str | Path") -> "Path":
        """Write results.csv, and results.meta.json with the notes, into a folder, which is created.

            run.save("out/mine")                # then: kvreplay report out/mine

        Returns the path of results.csv. `kvreplay report`, `kvreplay compare` and the other commands on
        results read the folder.
        """
        from kvanalysis.data.rows import write_rows

        return write_rows([cell.row for cell in self.cells], folder, self._meta())

    def _arrays(self, kind: str, method: Any, budget: int | None, place: dict[str, Any]) -> dict[str, Any]:
        cell = self.cells[self._index(method, budget, place)]
        if cell.row["status"] != "ok":
            raise KvreplayError(f"the cell failed: {cell.row['error']}")
        if NEEDED[kind] not in cell.arrays:
            cell.arrays.update(self._again(cell.row, kind)[0].arrays)
        return cell.arrays

    def _index(self, method: Any, budget: int | None, place: dict[str, Any]) -> int:
        wanted = dict(place)
        names = {"head": "kv_head"}
        own = None if method is None or isinstance(method, str) else hosted(method)
        method = own.facts["name"] if own is not None else method
        params = wanted.pop("params", {})
        unknown = set(wanted) - {"layer", "head", "kv_head", "prompt", "seed"}
        if unknown:
            raise TypeError(f"{min(unknown)} does not choose a cell: layer, head, prompt, seed and params do")
        wanted = {names.get(name, name): value for name, value in wanted.items()}
        if budget is not None:
            wanted["budget_tokens"] = budget
        labels, instances = self.frame["label"].tolist(), self.frame["params"].tolist()
        for i, (cell, label, given) in enumerate(zip(self.cells, labels, instances, strict=True)):
            row = cell.row
            if method is not None and method not in (row["method"], label):
                continue
            if all(row[n] == v for n, v in wanted.items()) and all(
                given.get(n) == v for n, v in params.items()
            ):
                return i
        asked = ", ".join(
            f"{n}={v!r}" for n, v in {"method": method, **wanted, **params}.items() if v is not None
        )
        held = self.frame[["label", "budget_tokens"]].drop_duplicates().to_string(index=False, header=False)
        raise KeyError(f"no cell with {asked}; methods and budgets are\n{held}")

    def __len__(self) -> int:
        return len(self.cells)

    def __repr__(self) -> str:
        failed = sum(cell.row["status"] != "ok" for cell in self.cells)
        methods = len({(cell.row["method"], cell.row["given"]) for cell in self.cells})
        return f"<Run: {len(self)} cells of {methods} methods, {failed} failed, {self.engine_s:.2f} s>"

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


def _branch(branches: Mapping[int, Any], number: int | None) -> Any:
    if number in branches:
        return branches[number]
    raise KeyError(f"branch {number} was not replayed; branch is one of {', '.join(map(str, branches))}")


def cell_of(row: str, arrays: dict[str, Any], place: int) -> Cell:
    """A Cell from the engine's JSON row and arrays. The row gets the order of `kvreplay.columns()`, the
    arrays get the types that the program writes."""
    said = json.loads(row)
    real = np.float64 if said["precision"] == "double" else np.float32
    typed = {name: array.astype(real, copy=False) for name, array in arrays.items() if name in REALS}
    if "projections" in arrays:
        typed.update(named_projections(arrays))
    return Cell({name: said[name] for name in _column_names() if name in said}, {**arrays, **typed}, place)


@cache
def _column_names() -> list[str]:
    return [column["name"] for column in json.loads(_engine.columns())]
