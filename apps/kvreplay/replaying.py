"""kvreplay.replay: arrays or a trace through many methods."""

import json
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from . import _engine
from .arguments import suggests_arguments
from .bar import Bar
from .configuration import (
    budget_of,
    in_words_of_python,
    listed,
    methods_of,
    plain,
    saves_of,
    seeds_of,
    without_none,
)
from .errors import ConfigError, KvreplayWarning
from .hosting import Hosted
from .run import Cell, Run, cell_of
from .sources import Sources


@suggests_arguments
def replay(
    q: Any = None,
    k: Any = None,
    v: Any = None,
    *,
    methods: Any,
    budgets: Any = None,
    prefill: int | float | None = None,
    tokens: int | None = None,
    layers: Any = None,
    kv_heads: Iterable[int] | None = None,
    prompts: Iterable[str] | None = None,
    queries: Any = None,
    prompt: str | None = None,
    needles: Mapping[str, Any] | None = None,
    seeds: Any = 5,
    metrics: Any = None,
    save: Any = (),
    scaling: float | None = None,
    sliding_window: int = 0,
    softcap: float = 0.0,
    sinks: Any = None,
    rope: Mapping[str, Any] | str | None = None,
    q_prescaled: bool = False,
    position_ids: Any = None,
    q_pos: Any = None,
    model: str = "arrays",
    n_layers: int | None = None,
    device: str = "cpu",
    jobs: int | None = None,
    precision: str = "single",
    audit: bool = False,
    progress: bool | None = None,
) -> Run:
    """Replay queries, keys and values through compression methods, and measure what each loses and costs.

        run = kvreplay.replay(q, k, v, prefill=768, methods=["h2o", "snapkv"], budgets=[64, 256])
        run = kvreplay.replay(layers={7: (q, k, v), 15: (q, k, v)}, ...)
        run = kvreplay.replay("trace.h5", methods=["h2o", my_scorer], budgets=[128])
        run.summary(); run.table; run.kept("h2o", 64, head=0)

    What is replayed
        q, k, v: [Hq, T, D], [Hkv, T, D], [Hkv, T, Dv] of one layer, Hq a multiple of Hkv; q and k as the
            attention call sees them, after rotary embedding and norms. float32, float16 or bfloat16, of
            numpy, torch, jax or cupy, in any memory order; nothing is copied as a whole. Tensors on a GPU are
            fetched head by head. Instead of q alone: the path of a trace file, or a Trace, or a list of them.
        layers: {number: (q, k, v)}, or {number: {"q": ..., "scaling": ...}}, several layers of one model, or
            Layers of a Trace; of a trace file the numbers of those that are replayed (default: all).
        prefill: tokens of the one prompt call, or a share of them (0.75); the later ones are decoded and
            scored. Arrays need it; of a trace the recorded prompt is the default. tokens: use the first so
            many (default: all).
        kv_heads, prompts: of a trace those that are replayed (default: all).
        queries: decode rows that are scored: "all", {"last": 256} or {"stride": 16}.
        prompt: "cut" (default) or "stream", token by token. needles: {"at": [0.5], "tokens": 16}.
        scaling: factor of the logits, default 1/sqrt(D). sliding_window, softcap: 0 means none.
        sinks: [Hq] logits that join the denominator.
        q_pos: [Tq] tokens of the query rows, where they are strided. position_ids: [T].
        rope: {"theta": 10000.0}, or more of it as `rope_json` in docs/formats.md, where a method moves
            positions.

    What it is replayed through
        methods: names (kvreplay.methods()), dicts ({"name": "snapkv", "window": [16, 32]}: a list is swept),
            scorers and policies of your own (kvreplay.scorer, kvreplay.Policy), names that installed packages
            offer.
        budgets: tokens per kv head (64); or shares of the full cache's bytes ("20%"), for which each method
            gets the most tokens that fit ({"share_of_cache": [0.2], "of": "mean"}: by the mean over steps,
            not the peak; "of": "prompt": by the bytes of the prompt after its cut); or
            {"fraction_kept": [0.1]} of the prompt's tokens, or {"bytes": [...]}.
        seeds: how many for random methods, or (first, count).

    How
        metrics: columns to compute (default: the usual ones). save: "kept", "curves", "outputs": arrays that
            every cell keeps in memory; without it they are replayed when `run.kept(...)` asks.
        precision: "single" or "double". audit: evicted and future tokens are NaN while a method decides.
        jobs: threads, default all cores; numbers do not depend on it.
        device: "cpu", or "cuda:0" where it was built.
        progress: a bar; default: on a terminal or in a notebook.
        model, n_layers: what the table says of the model.

    Returns a Run. A method that fails fails its cells (run.failed), never the run. Ctrl-C ends it soon.

    Raises ConfigError (a ValueError) with all that is wrong with the arguments, TraceError (a ValueError)
    where arrays or files cannot be replayed (shapes that do not fit, NaN, other types), DeviceError without
    the device.
    """
    sources = Sources(
        q, k, v, layers, position_ids, model, n_layers,
        facts={"scaling": scaling, "sliding_window": sliding_window, "softcap": softcap, "sinks": sinks,
               "q_pos": q_pos, "rope": rope, "q_prescaled": q_prescaled},
    )  # fmt: skip
    if prefill is None:
        sources.expect_prompts()
    entries, own = methods_of(methods, _engine.method_names())
    config = {
        "schema": 1,
        "name": "replay",
        "select": without_none(
            prompts=sources.selected_prompts(listed(prompts)),
            layers=sources.selected_layers(),
            kv_heads=listed(kv_heads),
        ),
        "replay": without_none(
            prefill=prefill, tokens=tokens, queries=queries, prompt=prompt, needles=needles
        ),
        "methods": entries,
        "seeds": seeds_of(seeds),
        "run": without_none(device=device, jobs=jobs, precision=precision, audit=audit or None),
        "output": {"save": saves_of(save)},
        **without_none(metrics=metrics),
    }
    if budgets is not None:
        config["budget"] = budget_of(budgets)
    run = _Replay(sources, plain(config, ""), own).run(progress)
    for warning in [*run.warnings, *run.failures()]:
        warnings.warn(warning, KvreplayWarning, stacklevel=3)  # where replay() is called, behind its check
    return run


class _Replay:
    """A replay that can be repeated for a part of its cells."""

    def __init__(self, sources: Sources, config: dict[str, Any], own: list[Hosted]):
        self.sources, self.config, self.own = sources, config, own

    def run(self, progress: bool | None) -> Run:
        cells, told, (engine_s, said) = self._cells(self.config, progress)
        return Run(cells, told, engine_s, said, self.again, self.sources.recorded)

    def again(self, row: Mapping[str, Any], kind: str) -> list[Cell]:
        """The cell of a row, with arrays: its head is replayed once more, as it was."""
        place = {"prompts": [row["prompt"]], "layers": [row["layer"]], "kv_heads": [row["kv_head"]]}
        config = {**self.config, "select": place, "output": {"save": [kind]}}
        if "share_of_cache" in (config.get("budget") or {}):  # solved already
            tokens = row["budget_tokens"]
            config["budget"] = {"tokens": [1 if tokens is None else tokens]}
        return [cell for cell in self._cells(config, False)[0] if cell.row["key"] == row["key"]]

    def _cells(
        self, config: dict[str, Any], progress: bool | None
    ) -> tuple[list[Cell], list[str], tuple[float, str]]:
        """The cells in the order of the plan, the warnings, (seconds of the engine, JSON of what it says of
        the table)."""
        cells: list[Cell] = []
        told: list[str] = []
        bar = Bar(progress)

        def on_plan(count: int, said: list[str], _: float) -> None:
            told.extend(in_words_of_python(text) for text in said)
            bar.start(count)

        def on_cell(row: str, place: int, arrays: dict[str, Any]) -> None:
            cells.append(cell_of(row, arrays, place))
            bar.advance(cells[-1].row["status"] != "ok")

        try:
            with self.sources.opened() as traces, bar:
                if not self.sources.traces:
                    told.extend(_engine.suspicions(traces))
                ended = _engine.replay(json.dumps(config), traces, self.own, on_plan, on_cell)
        except ConfigError as error:
            raise ConfigError(in_words_of_python(str(error))) from None
        return sorted(cells, key=lambda cell: cell.place), told, ended
