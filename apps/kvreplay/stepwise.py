"""kvreplay.stepping: a replay whose rows behind the prompt arrive while it runs."""

import json
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from kvbase.engine import _engine
from kvbase.errors import ConfigError, KvreplayWarning, TraceError

from .arguments import suggest_arguments
from .arrays import as_floats
from .configuration import methods_of, replay_config
from .sources import ONLY_PROMPT, Sources, vector_of

MOST_CAPACITY = 1 << 24


@suggest_arguments
def stepping(
    q: Any = None,
    k: Any = None,
    v: Any = None,
    *,
    method: Any,
    budget: Any = None,
    capacity: int,
    layers: Any = None,
    prompt_id: str | None = None,
    seed: int = 0,
    prompt: str | None = None,
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
    jobs: int | None = None,
) -> "Stepping":
    """Cut a prompt by one method, then take the rows of further tokens as a model computes them.

        steps = kv.stepping(layers={0: (q, k, v), 1: (q, k, v)}, method="h2o", budget=128, capacity=256)
        out = steps.step(0, q_of_token, k_of_token, v_of_token)

    The method decides by the rows that it is given, as it would in a server: queries, keys and values may
    come from a model that reads the outputs of the compressed cache. Given recorded rows, the outputs are
    those of kvreplay.replay to single precision, and the kept tokens are the same.

    q, k, v: [Hq, T, D], [Hkv, T, D], [Hkv, T, Dv] of one layer, number 0: all rows are the prompt. Or layers,
        as in kvreplay.replay. Or the path of a trace, or a Trace: its recorded prompt is used, none of its
        later rows; prompt_id says which prompt if there are several, layers which of its layers.
    method: a name, a dict with parameters, a scorer or a Policy. budget: tokens per kv head (64), a share of
        the prompt's bytes ("20%") or of its tokens ({"fraction_kept": [0.1]}). seed: the random method's.
    capacity: the most tokens that may follow. What a method derives from the length of the whole text (the
        temperature of Keyformer, a budget that grows) takes prompt + capacity for it.
    prompt: "cut" (default): the prompt arrives at once; "stream": token by token.
    The other arguments describe the layers, as in kvreplay.replay. jobs: threads that cut the prompt.

    Raises ConfigError for wrong arguments, for methods that look at later rows (oracles), and if the method
    fails on the prompt; TraceError if the arrays or the trace cannot be replayed.
    """
    sources = Sources(
        q, k, v, layers, position_ids, model, n_layers,
        facts={"scaling": scaling, "sliding_window": sliding_window, "attention_chunk": attention_chunk,
               "softcap": softcap, "sinks": sinks, "q_pos": q_pos, "rope": rope, "q_prescaled": q_prescaled},
    )  # fmt: skip
    entries, own = methods_of(method, _engine.method_names())
    if len(entries) != 1:
        raise ConfigError(f"method names {len(entries)} methods: a stepwise replay has one")
    prompt_id = _prompt_of(sources, prompt_id)
    config = replay_config(
        entries, budget, select={"prompts": [prompt_id], "layers": sources.selected_layers()},
        prefill=None, tokens=None, kv_heads=None, queries=None, prompt=prompt, needles=None,
        seeds=(_whole(seed, "seed", 0, 2**31 - 1), 1), metrics=None, save=(), device=None, jobs=jobs,
        precision=None, audit=False,
    )  # fmt: skip
    given = sources.for_engine()
    told = [] if sources.traces else _engine.suspicions(given)
    steps = _engine.Stepping(
        json.dumps(config),
        given,
        [of.bound(sources.layer_inputs) for of in own],
        lambda: False,
        prompt_id,
        _whole(capacity, "capacity", 1, MOST_CAPACITY),
    )
    for warning in [*told, *steps.warnings]:
        warnings.warn(warning, KvreplayWarning, stacklevel=3)  # 3: the caller, above the argument check
    return Stepping(steps)


class Stepping:
    """The caches of one method in all layers, behind a prompt (kvreplay.stepping)."""

    def __init__(self, steps: Any):
        self._steps = steps

    def step(self, layer: int, q: Any, k: Any, v: Any, position_ids: Any = None) -> np.ndarray:
        """The attention outputs of the next R tokens in a layer, float32 [Hq, R, Dv].

        q, k, v: [Hq, R, D], [Hkv, R, D], [Hkv, R, Dv], R >= 1, after rotary embedding and norms, of numpy,
            torch, jax or cupy. The tokens arrive one after the other: each is held, attended to, and may cost
            another token its place. Any R gives the same outputs.
        position_ids: [R]; default: they go on from the last one.

        Layers do not wait for each other, except where their heads cut together (triattention with level head
        or union). Threads may step different layers at a time. Raises ConfigError for a layer that is not
        replayed, for more tokens than the capacity, and if the method fails; TraceError for rows that do not
        fit or are not finite. After a method has failed its layer takes no more rows.
        """
        rows = [np.ascontiguousarray(as_floats(x, name)) for x, name in ((q, "q"), (k, "k"), (v, "v"))]
        for name, x in zip("qkv", rows, strict=True):
            if x.ndim != 3:
                raise TraceError(f"{name} is {list(x.shape)}; it must be [heads, rows, dim]")
        return self._steps.step(layer, *rows, vector_of(position_ids, np.int32, "position_ids", low=0))

    def kept(self, layer: int, head: int = 0) -> Any:
        """Tokens that a kv head's cache holds now: int32, ascending, counted from the prompt's first.

        With `gqa.level: query` a list of such arrays, one for each query head. Raises ConfigError if the
        layer or the head is not replayed.
        """
        lists = self._steps.kept(layer, head)
        return lists[0] if len(lists) == 1 else lists

    @property
    def bytes(self) -> float:
        """Bytes of all caches now, as the column final_bytes counts them."""
        return float(self._steps.bytes)


def _prompt_of(sources: Sources, wanted: str | None) -> str:
    """The id of the only prompt, or of the wanted one."""
    if not sources.traces:
        if wanted is not None:
            raise ConfigError("prompt_id names a prompt of a trace; arrays hold one prompt: leave it out")
        return ONLY_PROMPT
    if len(sources.traces) > 1:
        raise ConfigError(f"{len(sources.traces)} traces are given: a stepwise replay has one prompt")
    held = sources.selected_prompts(None) or sources.traces[0].prompts
    if wanted is None and len(held) > 1:
        raise ConfigError(
            f"the trace holds {len(held)} prompts: give prompt_id, one of {', '.join(held[:8])}"
        )
    return str(held[0] if wanted is None else wanted)


def _whole(value: Any, name: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        raise ConfigError(f"{name} is {value!r}: it must be a whole number from {low} to {high}")
    return int(value)
