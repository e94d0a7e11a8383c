"""kvreplay.replay: replays arrays or a trace through many methods."""

import json
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from kvbase.engine import _engine
from kvbase.errors import KvreplayWarning
from kvbase.progress import Bar

from .arguments import suggest_arguments
from .configuration import listed, methods_of, replay_config
from .hosting import Hosted
from .run import Cell, Run, cell_of
from .sources import Sources


@suggest_arguments
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
    turns: bool = False,
    branches: Any = None,
    needles: Mapping[str, Any] | str | None = None,
    recall_k: int | Iterable[int] | None = None,
    tier: Mapping[str, Any] | None = None,
    machine: Mapping[str, Any] | None = None,
    seeds: Any = 5,
    metrics: Any = None,
    save: Any = (),
    scaling: float | None = None,
    sliding_window: int = 0,
    attention_chunk: int = 0,
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
    """Replay queries, keys and values through compression methods; measure each method's error and bytes.

        run = kv.replay(q, k, v, prefill=768, methods=["h2o", "snapkv"], budgets=[64, 256])
        run = kv.replay(layers={7: (q, k, v), 15: (q, k, v)}, ...)
        run = kv.replay("trace.h5", methods=["h2o", my_scorer], budgets=["20%"])
        run.summary(); run.table; run.compare("20%"); run.kept("h2o", 64, head=0)

    Inputs
        q, k, v: [Hq, T, D], [Hkv, T, D], [Hkv, T, Dv] of one layer, Hq a multiple of Hkv; q and k as the
            attention call sees them, after rotary embedding and norms. float32, float16 or bfloat16, from
            numpy, torch, jax or cupy, in any memory order. They are read in place; tensors on a GPU are
            fetched head by head. To replay trace files, pass as q a path, a Trace, or a list of them.
        layers: for arrays, {number: (q, k, v)}, or {number: {"q": ..., "scaling": ...}} with facts of the
            layer, or {number: Layer of a Trace}: several layers of one model. For a trace, a list of layer
            numbers (default: all).
        prefill: how many tokens are the prompt, or which share of them (0.75). Later tokens are decoded and
            scored. Required for arrays; a trace's default is its recorded prompt.
        tokens: use only the first so many tokens (default: all).
        kv_heads, prompts: which kv heads and prompts of a trace are replayed (default: all).
        queries: which decode rows are scored: "all" (default), {"last": 256} or {"stride": 16}.
        prompt: "cut" (default): the cache is cut once after the prompt; "stream": the budget holds from token
            0 on. needles: spans of the prompt for the metrics needle_mass and needle_kept,
            {"at": [0.5], "tokens": 16}, or "recorded" for those that the trace marks.
        recall_k: 64, or several: for the metrics recall_at_k and mass_recall_at_k. tier: a fast tier of
            memory for the metrics tier_*, {"hot": 512, "policy": "lru"} (or "method"). machine: bytes and
            bytes per second for the metrics model_*, {"hbm_bytes": 80e9, "hbm_bw": 3.35e12, "link_bw": 55e9,
            "weights_bytes": 16e9} (docs/measures.md).
        turns: True: a trace's inputs behind the first output arrive at once, and outputs alone are scored.
        branches: "all" or numbers: each is replayed behind the context, which is compressed before any branch
            is read (run.segments; docs/serving.md).
        scaling: factor of the logits (default 1/sqrt(D)). sliding_window and attention_chunk in tokens,
            softcap: 0 means none.
        sinks: [Hq] logits that are added to the softmax's denominator. q_prescaled: q includes the scaling.
        q_pos: [Tq] token of each query row, if queries are strided. position_ids: [T].
        rope: {"theta": 10000.0}, or all of `rope_json` (docs/formats.md), for methods that move positions.
        model, n_layers: the name of the arrays' model and its number of layers.

    Methods
        methods: one or a list of: names (kvreplay.methods()); dicts with parameters, in which a list is swept
            ({"name": "snapkv", "window": [16, 32]}); your own scorers and policies (kvreplay.scorer,
            kvreplay.Policy).
        budgets: one or a list of: tokens per kv head (64); shares of the cache's bytes ("20%"), for which
            each method gets the most tokens that fit: bytes of the prompt after its cut, or at the peak if
            there is no prompt. Or a dict: {"share_of_cache": [0.2], "of": "peak"} (or "mean", over the
            steps; or "prompt"); {"fraction_kept": [0.1]} counts tokens of the prompt; {"bytes": [20000]}.
        seeds: how many seeds random methods get (default 5), or (first, count).

    Execution
        metrics: columns to compute (default: the usual ones).
        save: "kept", "curves", "outputs", or several: arrays that every cell keeps in memory. Others are
            replayed when a method such as `run.kept(...)` needs them. "projections", for `run.predicted()`.
        precision: "single" (default) or "double". audit: evicted and future tokens are NaN while a method
            decides, so a method that reads them fails.
        jobs: threads (default: all cores); results do not depend on it.
        device: "cpu", "cuda" or "cuda:1": a GPU does what it is good at, the cores the rest (docs/cuda.md).
            The column `device` says for each cell where it ran.
        progress: show a bar; default: on a terminal or in a notebook.

    Returns a Run. If a method raises, only its cells fail (run.failed). Ctrl-C stops the replay soon.

    Raises ConfigError (a ValueError) that lists every wrong argument, TraceError (a ValueError) if arrays or
    files cannot be replayed (wrong shapes or types, NaN), DeviceError if there is no such device.
    """
    sources = Sources(
        q, k, v, layers, position_ids, model, n_layers,
        facts={"scaling": scaling, "sliding_window": sliding_window, "attention_chunk": attention_chunk,
               "softcap": softcap, "sinks": sinks, "q_pos": q_pos, "rope": rope, "q_prescaled": q_prescaled},
    )  # fmt: skip
    if prefill is None:
        sources.require_prefill()
    entries, own = methods_of(methods, _engine.method_names())
    config = replay_config(
        entries, budgets, select={"prompts": sources.selected_prompts(listed(prompts)),
                                  "layers": sources.selected_layers()},
        prefill=prefill, tokens=tokens, kv_heads=kv_heads, queries=queries, prompt=prompt, turns=turns,
        branches=branches, needles=needles, recall_k=recall_k, tier=tier, machine=machine, seeds=seeds,
        metrics=metrics, save=save, device=device, jobs=jobs, precision=precision, audit=audit,
    )  # fmt: skip
    run = Replay(sources, config, own).run(progress)
    for warning in [*run.warnings, *run.failures()]:
        warnings.warn(warning, KvreplayWarning, stacklevel=3)  # 3: the caller, above the argument check
    return run


class Replay:
    """A replay that can be repeated for some of its cells."""

    def __init__(self, sources: Sources, config: dict[str, Any], own: list[Hosted]):
        self.sources, self.config, self.own = sources, config, own

    def run(self, progress: bool | None) -> Run:
        cells, told, (engine_s, said) = self._cells(self.config, progress)
        return Run(cells, told, engine_s, said, self.again, self.sources.recorded)

    def again(self, row: Mapping[str, Any], kind: str) -> list[Cell]:
        """The cell of a row with the arrays `kind`: its kv head is replayed again, unchanged."""
        place = {"prompts": [row["prompt"]], "layers": [row["layer"]], "kv_heads": [row["kv_head"]]}
        config = {**self.config, "select": place, "output": {"save": [kind]}}
        if "share_of_cache" in (config.get("budget") or {}):  # the row has the tokens of its share
            tokens = row["budget_tokens"]
            config["budget"] = {"tokens": [1 if tokens is None else tokens]}
        return [cell for cell in self._cells(config, False)[0] if _is_same(cell.row, row)]

    def _cells(
        self, config: dict[str, Any], progress: bool | None
    ) -> tuple[list[Cell], list[str], tuple[float, str]]:
        """(cells in the order of the plan, warnings, (seconds in the engine, JSON about the table))."""
        cells: list[Cell] = []
        told: list[str] = []
        bar = Bar(progress)

        def on_plan(count: int, said: list[str], _: float) -> None:
            told.extend(said)
            bar.start(count)

        def on_cell(row: str, place: int, arrays: dict[str, Any]) -> None:
            cells.append(cell_of(row, arrays, place))
            bar.advance(cells[-1].row["status"] != "ok")

        given = self.sources.for_engine()
        own = [method.bound(self.sources.layer_inputs) for method in self.own]
        with bar:
            if not self.sources.traces:
                told.extend(_engine.suspicions(given))
            ended = _engine.replay(json.dumps(config), given, own, on_plan, on_cell, lambda: False)
        return sorted(cells, key=lambda cell: cell.place), told, ended


def _is_same(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two rows of one place are the same cell. Their keys differ if one is of a live replay."""
    return all(row[name] == other[name] for name in ("method", "params", "budget_tokens", "seed"))
