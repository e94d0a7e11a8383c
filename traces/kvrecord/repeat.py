"""KVzip's second pass, for `--repeat`: with the context in its cache, the model reads the context again,
chunk by chunk, and the queries of these rows are recorded.

Each chunk begins right after the context: the cache does not hold the rows of the chunk before.
"""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from kvbase.errors import TraceError
from kvtrace.dtypes import widen

from .attention import mean_relative_deviation
from .hook import AttentionHook
from .input_norms import watching_inputs
from .repeat_rows import RepeatRows, Wording, check_positions, context_length, repeat_rows
from .rotary import TOLERANCE, TOLERANCE_HALF
from .verify import rows_bound

REMEDY = "leave --repeat out"
PROBE = RepeatRows(tokens=[5, 3, 7, 4, 9, 8, 3, 6, 5], rows=[0, 5, 9], ctx=[0, 6, 12])


@dataclass(frozen=True)
class PassCallbacks:
    """Callbacks for the passes: `on_context(call)` for the context, `on_rows(call)` for the chunks, and
    `on_norm(layer, norm [n])` for the inputs of the attention modules {layer: module} during chunks."""

    modules: dict
    on_context: object
    on_rows: object
    on_norm: object


def repeat(model, context, plan, heard, positions=None):
    """Runs the context (token ids) once, then each chunk of a RepeatRows with the context in the cache.
    `positions`: of the context, or None if they are 0, 1, ..."""
    with torch.no_grad():
        with AttentionHook(model, heard.on_context):
            cache = run_cached(model, context, positions).past_key_values
        with AttentionHook(model, heard.on_rows), watching_inputs(heard.modules, heard.on_norm):
            chunks = plan.chunks()
            for number, rows in enumerate(chunks):
                last = number + 1 == len(chunks)
                # Each chunk gets a copy, because windows and recurrent states cannot be rolled back.
                behind = cache if last else copy.deepcopy(cache)
                run_cached(model, rows, positions_after(positions, len(rows)), past_key_values=behind)


def run_cached(model, ids, positions=None, **cache):
    """Runs the model on token ids; its result holds a cache."""
    return _run(model, ids, positions, use_cache=True, **cache)


def run_at_once(model, ids, positions=None):
    """Runs the model on token ids without a cache."""
    return _run(model, ids, positions, use_cache=False)


def _run(model, ids, positions, **options):
    # Models without rotary tables may not take position_ids at all.
    where = {} if positions is None else {"position_ids": torch.tensor([positions], device=model.device)}
    options = {"logits_to_keep": 1, **where, **options}
    return model(input_ids=torch.tensor([ids], device=model.device), **options)


def positions_or_none(positions):
    """The positions, or None if they are 0, 1, ..."""
    return None if positions == list(range(len(positions))) else positions


def context_of(capture):
    """The context that a further pass over a finished PromptCapture's prompt runs first: (token ids,
    positions or None, the model's limit of positions or None)."""
    tokens, options = capture.tokens, capture.recorder.options
    n_prompt = capture.attributes.get("n_prompt", capture.n_prompt)
    n_context = context_length(options.context_tokens, n_prompt, len(tokens), f"prompt {capture.prompt_id}")
    limit = getattr(capture.recorder.model.config.get_text_config(), "max_position_embeddings", None)
    return tokens[:n_context], positions_or_none(capture.position_ids[:n_context]), limit


def positions_after(positions, n):
    """Positions of n rows after rows at `positions`; None if `positions` is None."""
    return positions and list(range(positions[-1] + 1, positions[-1] + 1 + n))


def check_cached(model, layers):
    """TraceError unless a few rows after a cached context equal those of one pass over both."""
    vocabulary = model.config.get_text_config().vocab_size
    context = [(37 * i + vocabulary // 3) % vocabulary for i in range(PROBE.ctx[-1])]
    found = {layer: [] for layer in layers}

    def keep(call):
        if call.layer in found:
            found[call.layer].append((call.q, call.k, type(call.module).__name__))

    repeat(model, context, PROBE, PassCallbacks({}, lambda call: None, keep, lambda layer, norm: None))
    tolerance = TOLERANCE.get(model.dtype, TOLERANCE_HALF)

    def compare(call):
        if call.layer not in found:
            return
        q, k, name = found[call.layer].pop(0)
        for cached, at_once in ((q, call.q), (k, call.k)):
            at_once = at_once[:, -cached.shape[1] :].float()
            if not (cached.float() - at_once).norm() <= tolerance * at_once.norm():
                raise TraceError(
                    f"layer {call.layer}: {name} computes other rows with the context in a cache than in one "
                    f"pass: {REMEDY}"
                )

    with AttentionHook(model, compare), torch.no_grad():
        for rows in PROBE.chunks():
            run_at_once(model, context + rows)


def record_repeat(capture):
    """Runs a finished PromptCapture's prompt again and records the rows `repeat_q`, `repeat_k` and
    `repeat_in_norm`. Returns (datasets, attributes) of the prompt's group `repeat`."""
    recorder, options = capture.recorder, capture.recorder.options
    context, positions, limit = context_of(capture)
    n_prompt = capture.attributes.get("n_prompt", capture.n_prompt)
    wording = Wording.of(recorder.tokenizer, capture.tokens[:n_prompt])
    plan = repeat_rows(context, wording, options.repeat)
    check_positions(len(context), plan, limit, f"prompt {capture.prompt_id}")

    def on_context(call):
        if call.layer in capture.rows:
            check_context(capture, call, REMEDY)

    def on_rows(call):
        if call.layer in capture.rows:
            capture.keep(call.layer, "repeat_q", call.q)
            capture.keep(call.layer, "repeat_k", call.cached_keys())
            capture.on_step(f"layer {call.layer}, repeated")

    def on_norm(layer, norm):
        capture.keep(layer, "repeat_in_norm", norm[None, :, None])

    modules = {layer: recorder.modules[layer] for layer in capture.rows}
    repeat(recorder.model, context, plan, PassCallbacks(modules, on_context, on_rows, on_norm), positions)
    datasets = {name: np.array(getattr(plan, name), dtype=np.int32) for name in ("tokens", "rows", "ctx")}
    return datasets, {"context_tokens": len(context), **wording.attributes()}


def check_context(capture, call, remedy):
    """TraceError unless the keys of the context, run again, equal those in the trace."""
    dtype = capture.recorder.dtype
    name, keys = next(iter(call.cached().items()))
    recorded = capture.spool.first_rows(call.layer, name, keys.shape[1])
    found = capture.stored(keys)
    if np.array_equal(found, recorded):
        return
    off = mean_relative_deviation(widen(found, dtype), widen(recorded, dtype))
    if not off <= rows_bound(dtype, capture.recorder.model.dtype):
        raise TraceError(
            f"prompt {capture.prompt_id}, layer {call.layer}: the keys of the context, run once more, differ "
            f"from the recorded ones (by {off:.1e}): {remedy}"
        )
