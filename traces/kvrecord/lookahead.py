"""The pass of Lookahead Q-Cache, for `--lookahead`: SnapKV cuts a prompt's cache in every layer, the model
generates a few tokens after it, and their queries are recorded.
"""

import inspect
from dataclasses import asdict

import numpy as np
import torch
from kvbase.errors import ConfigError, TraceError

from .hook import AttentionHook, layer_of
from .repeat import check_context, context_of, run_cached
from .rotary import TOLERANCE, TOLERANCE_HALF
from .snapkv_cut import REMEDY, Cut, cut_cache, kept_tokens, require_cuttable

PROBE_ROWS, PROBE_CONTEXT, PROBE_CUT = 3, 14, Cut(budget=6, window=2, kernel=3)


def look_ahead(model, context, n_rows, cut, on_context, on_row, positions=None, given=None):
    """Runs a context (token ids), cuts its cache, generates n_rows tokens greedily and returns them. An
    end-of-text token does not stop the generation.

    `on_context(call)` and `on_row(call)` get the attention calls of the context and of each generated row.
    `positions`: of the context, or None if they are 0, 1, ... `given`: tokens to feed instead of generated
    ones.
    """
    kept = {}

    def on_prompt(call):
        kept[call.layer] = kept_tokens(call, cut)
        on_context(call)

    with torch.no_grad():
        with AttentionHook(model, on_prompt):
            said = run_cached(model, context, positions)
        cut_cache(said.past_key_values, kept)
        tokens = []
        with AttentionHook(model, on_row):
            for i, position in enumerate(lookahead_positions(context, positions, n_rows)):
                tokens.append(given[i] if given else int(said.logits[0, -1].argmax()))
                said = run_cached(model, tokens[-1:], [position], past_key_values=said.past_key_values)
    return tokens


def lookahead_positions(context, positions, n_rows):
    """Positions of n_rows rows after a context: the same as without a cut."""
    first = positions[-1] + 1 if positions else len(context)
    return range(first, first + n_rows)


class _CutByMask(AttentionHook):
    """While entered, rows after a context, whose cache is not cut, see only the tokens `kept` {layer:
    [Hkv, B]} of the context, and each other."""

    def __init__(self, model, on_call, kept):
        super().__init__(model, on_call)
        self.kept = kept

    def attend(self, own, module, query, key, value, attention_mask, scaling=None, **kwargs):
        (heads, n), rows = key.shape[1:3], query.shape[2]
        shown = torch.zeros(heads, n, dtype=torch.bool, device=key.device)
        shown.scatter_(1, self.kept[layer_of(module)].expand(heads, -1), True)
        shown[:, n - rows :] = True
        seen = shown[:, None] & torch.ones(rows, n, dtype=torch.bool, device=key.device).tril(n - rows)
        least = torch.finfo(query.dtype).min
        mask = torch.where(seen, 0.0, least).to(query.dtype).repeat_interleave(query.shape[1] // heads, 0)
        return super().attend(own, module, query, key, value, mask[None], scaling, **kwargs)


def lookahead_by_mask(model, context, tokens, cut, on_row, positions=None):
    """The rows of `look_ahead` without a cut: one pass of its tokens after the whole cache of the context, in
    which a mask hides what the cut would evict. Returns float32 logits [rows + 1, vocabulary], from the
    context's last row on."""
    seen, kept = {}, {}

    def on_context(call):
        seen[call.layer] = (type(call.module).__name__, call.sliding_window)
        kept[call.layer] = kept_tokens(call, cut)

    with torch.no_grad():
        with AttentionHook(model, on_context):
            first = run_cached(model, context, positions)
        require_cuttable(model, first.past_key_values, seen)
        where = list(lookahead_positions(context, positions, len(tokens)))
        with _CutByMask(model, on_row, kept):
            then = run_cached(
                model, tokens, where, past_key_values=first.past_key_values, logits_to_keep=len(tokens)
            )
    return torch.cat([first.logits[0, -1:], then.logits[0]]).float()


def check_cut(model):
    """TraceError unless rows after a cut cache equal rows under a mask that hides the same tokens."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise TraceError(
            f"{type(model).__name__} takes no position_ids, so rows after a cut cache would get wrong "
            f"positions: {REMEDY}"
        )
    vocabulary = model.config.get_text_config().vocab_size
    context = [(37 * i + vocabulary // 3) % vocabulary for i in range(PROBE_CONTEXT)]
    tokens = [(11 * i + vocabulary // 2) % vocabulary for i in range(PROBE_ROWS)]
    masked, calls, cut = {}, {}, PROBE_CUT

    def keep(call):
        masked[call.layer] = call.q.float()

    lookahead_by_mask(model, context, tokens, cut, keep)

    def hear(call):
        calls.setdefault(call.layer, []).append(call)

    look_ahead(model, context, len(tokens), cut, lambda call: None, hear, given=tokens)
    tolerance = TOLERANCE.get(model.dtype, TOLERANCE_HALF)
    for layer, rows in calls.items():
        found = torch.cat([call.q.float() for call in rows], 1)
        if not (found - masked[layer]).norm() <= tolerance * masked[layer].norm():
            raise TraceError(
                f"layer {layer}: {type(rows[0].module).__name__} computes other rows after a cut cache than "
                f"under a mask that hides the same tokens: {REMEDY}"
            )


def check_lookahead_positions(n_context, n_rows, limit, source):
    """ConfigError if rows after the context need more positions than the model's `limit` (None: no limit)."""
    needed = n_context + n_rows
    if limit and needed > limit:
        raise ConfigError(
            f"{source}: --lookahead: {n_context} tokens and {n_rows} after them make {needed}, "
            f"the model has {limit} positions: use a smaller --lookahead, --context-tokens or --max-tokens"
        )


def record_lookahead(capture):
    """Runs a finished PromptCapture's prompt again, cuts its cache, and records the queries `lookahead_q` of
    the tokens generated after it. Returns (datasets, attributes) of the prompt's group `lookahead`."""
    model, options = capture.recorder.model, capture.recorder.options
    context, positions, limit = context_of(capture)
    check_lookahead_positions(len(context), options.lookahead, limit, f"prompt {capture.prompt_id}")

    def on_context(call):
        if call.layer in capture.rows:
            check_context(capture, call, REMEDY)

    def on_row(call):
        if call.layer in capture.rows:
            capture.keep(call.layer, "lookahead_q", call.q)
            capture.on_step(f"layer {call.layer}, looking ahead")

    cut = Cut(options.lookahead_budget)
    tokens = look_ahead(model, context, options.lookahead, cut, on_context, on_row, positions)
    return {"tokens": np.array(tokens, dtype=np.int32)}, {"context_tokens": len(context), **asdict(cut)}
