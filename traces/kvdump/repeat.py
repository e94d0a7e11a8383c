"""KVzip's second pass, for `--repeat`: with the context in its cache, a model is given the context again,
chunk after chunk, and what the rows of that text ask the context for is recorded.

Each chunk begins behind the context: the rows of the one before are not in the cache.
"""

import copy
from dataclasses import dataclass

import numpy as np
import torch

from .attention import mean_relative_deviation
from .dtypes import widen
from .errors import DumpError
from .facts import TOLERANCE, TOLERANCE_HALF
from .hook import AttentionHook
from .input_norms import watching_inputs
from .repeat_rows import RepeatRows, Wording, check_positions, context_length, repeat_rows
from .verify import rows_bound

REMEDY = "leave --repeat out"
PROBE = RepeatRows(tokens=[5, 3, 7, 4, 9, 8, 3, 6, 5], rows=[0, 5, 9], ctx=[0, 6, 12])


@dataclass(frozen=True)
class Heard:
    """Who hears of the two kinds of passes: `on_context(call)`, `on_rows(call)`, and `on_norm(layer, norm
    [n])` of the second kind, for the attention modules {layer: module}."""

    modules: dict
    on_context: object
    on_rows: object
    on_norm: object


def repeat(model, context, plan, heard, positions=None):
    """Run the context (token ids) once, then each chunk of a RepeatRows with the context in the cache.
    `positions` of the context, or None where they count from 0."""
    with torch.no_grad():
        with AttentionHook(model, heard.on_context):
            cache = run_cached(model, context, positions).past_key_values
        with AttentionHook(model, heard.on_rows), watching_inputs(heard.modules, heard.on_norm):
            chunks = plan.chunks()
            for number, rows in enumerate(chunks):
                last = number + 1 == len(chunks)
                # Windows and recurrent states cannot be cut back to what they were.
                behind = cache if last else copy.deepcopy(cache)
                run_cached(model, rows, positions_behind(positions, len(rows)), past_key_values=behind)


def run_cached(model, ids, positions=None, **cache):
    """The model on token ids at their positions, with a cache in what it gives."""
    return _run(model, ids, positions, use_cache=True, **cache)


def run_at_once(model, ids, positions=None):
    """The model on token ids, without a cache."""
    return _run(model, ids, positions, use_cache=False)


def _run(model, ids, positions, **options):
    # Models without rotary tables may not take position_ids at all.
    where = {} if positions is None else {"position_ids": torch.tensor([positions], device=model.device)}
    options = {"logits_to_keep": 1, **where, **options}
    return model(input_ids=torch.tensor([ids], device=model.device), **options)


def unless_from_zero(positions):
    """Positions of a context's tokens, or None where they count from 0."""
    return None if positions == list(range(len(positions))) else positions


def context_of(capture):
    """(token ids, positions or None, most positions of the model or None) of the context that a pass over a
    finished PromptCapture's prompt runs first."""
    tokens, options = capture.tokens, capture.recorder.options
    n_prompt = capture.attributes.get("n_prompt", capture.n_prompt)
    n_context = context_length(options.context_tokens, n_prompt, len(tokens), f"prompt {capture.prompt_id}")
    limit = getattr(capture.recorder.model.config.get_text_config(), "max_position_embeddings", None)
    return tokens[:n_context], unless_from_zero(capture.position_ids[:n_context]), limit


def positions_behind(positions, n):
    """Of n rows that follow those at `positions`; None where these count from 0."""
    return positions and list(range(positions[-1] + 1, positions[-1] + 1 + n))


def check_cached(model, layers):
    """DumpError unless a few rows behind a cached context are those of one pass over both."""
    vocabulary = model.config.get_text_config().vocab_size
    context = [(37 * i + vocabulary // 3) % vocabulary for i in range(PROBE.ctx[-1])]
    found = {layer: [] for layer in layers}

    def keep(call):
        if call.layer in found:
            found[call.layer].append((call.q, call.k, type(call.module).__name__))

    repeat(model, context, PROBE, Heard({}, lambda call: None, keep, lambda layer, norm: None))
    tolerance = TOLERANCE.get(model.dtype, TOLERANCE_HALF)

    def compare(call):
        if call.layer not in found:
            return
        q, k, name = found[call.layer].pop(0)
        for cached, at_once in ((q, call.q), (k, call.k)):
            at_once = at_once[:, -cached.shape[1] :].float()
            if not (cached.float() - at_once).norm() <= tolerance * at_once.norm():
                raise DumpError(
                    f"layer {call.layer}: {name} gives other rows with the context in a cache than in one "
                    f"pass: {REMEDY}"
                )

    with AttentionHook(model, compare), torch.no_grad():
        for rows in PROBE.chunks():
            run_at_once(model, context + rows)


def record_repeat(capture):
    """Run a finished PromptCapture's prompt once more and keep its rows `repeat_q`, `repeat_k` and
    `repeat_in_norm`; returns (datasets, attributes) of the prompt's group `repeat`."""
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
            capture.keep(call.layer, "repeat_k", call.k)
            capture.on_step(f"layer {call.layer}, repeated")

    def on_norm(layer, norm):
        capture.keep(layer, "repeat_in_norm", norm[None, :, None])

    modules = {layer: recorder.modules[layer] for layer in capture.rows}
    repeat(recorder.model, context, plan, Heard(modules, on_context, on_rows, on_norm), positions)
    datasets = {name: np.array(getattr(plan, name), dtype=np.int32) for name in ("tokens", "rows", "ctx")}
    return datasets, {"context_tokens": len(context), **wording.attributes()}


def check_context(capture, call, remedy):
    """DumpError unless what rows are recorded against is what the trace holds."""
    dtype = capture.recorder.dtype
    recorded = capture.recorder.spool.first_rows(call.layer, "k", call.k.shape[1])
    found = capture.stored(call.k)
    if np.array_equal(found, recorded):
        return
    off = mean_relative_deviation(widen(found, dtype), widen(recorded, dtype))
    if not off <= rows_bound(dtype, capture.recorder.model.dtype):
        raise DumpError(
            f"prompt {capture.prompt_id}, layer {call.layer}: the keys of the context, run once more, are "
            f"not those that were recorded (off by {off:.1e}): {remedy}"
        )
