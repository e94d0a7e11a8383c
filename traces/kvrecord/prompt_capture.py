"""Collects one prompt's rows from attention calls and writes them to the trace."""

import json

import numpy as np
import torch
from kvbase.errors import TraceError
from kvtrace.dtypes import is_finite

from .branches import branch_tensors
from .facts import in_use
from .forward_calls import ForwardCalls
from .gradient import Gradients, kept_rows, scored_rows
from .input_norms import watch_inputs
from .lookahead import record_lookahead
from .masked_runs import MaskedRuns
from .repeat import record_repeat
from .residual import (
    attention_of,
    blocks_of,
    gate_of,
    o_proj_weights,
    watch_projected,
    watch_residual,
)
from .rotary import TablesInUse
from .rows_in_memory import STORAGE_OF, to_stored
from .self_check import check_output_reproduced
from .text import token_classes, token_texts

NORMS = ("resid_norm", "resid_in_norm", "repeat_in_norm")
ONE_ROW = ("latent", "rope_k")  # all heads share them
FIXED_DTYPES = dict.fromkeys(NORMS, "f32") | dict.fromkeys(("g", "g_recorded", "g_answer"), "bf16")
OVERFLOW = ": the model's type overflows in the backward pass; load it in bfloat16 or float32"


def _is_finite(rows, dtype):
    """Whether rows, a tensor or as stored, hold neither NaN nor infinity."""
    return bool(rows.isfinite().all()) if isinstance(rows, torch.Tensor) else is_finite(rows, dtype)


class PromptCapture:
    """Collects the tokens and rows of one prompt, which is a row of a batch. Checks that they are consistent,
    and writes them to the sink."""

    def __init__(self, recorder, prompt_id, layers, attributes, on_step, row=0):
        self.recorder = recorder
        self.prompt_id = prompt_id
        self.layers = layers
        self.attributes = attributes
        self.on_step = on_step
        self.calls = ForwardCalls(recorder.model, row)
        self.spool = recorder.spool.part(row)
        self.rows = dict.fromkeys(layers, 0)
        self.modules = {}
        self.sinks = {}
        self.latents = {}
        self.out_rows = None  # outputs [Hq, n, Dv] of the attention call in work
        self.taps = []
        self.of_gradient = {}
        self.gradient_rows = None
        self.groups = {}
        self.further = ()
        options = recorder.options
        self.out_layers = set(layers) if options.with_output else set(options.out_layers)
        if options.with_output:
            blocks = blocks_of(recorder.model, layers)
            self.taps += watch_residual(blocks, self._on_residual)
            gated = {layer: attention_of(block) for layer, block in blocks if layer in recorder.gated}
            self.taps += watch_projected(gated, self._on_projected)
        if options.with_input:
            modules = {layer: recorder.modules[layer] for layer in layers}
            self.taps += watch_inputs(modules, self._on_input)
        self.tables = TablesInUse(recorder.model, lambda: self.calls.position)
        self.taps += self.tables.handles

    @property
    def tokens(self):
        """Token ids so far."""
        return self.calls.tokens

    @property
    def position_ids(self):
        """Positions of the tokens."""
        return self.calls.position_ids

    @property
    def n_prompt(self):
        """Tokens of the prompt, which end before the first generated one."""
        return self.calls.n_prompt

    def on_call(self, call):
        """Called after every attention call: stores the new rows if the layer is recorded."""
        if call.layer not in self.rows:
            return
        start = self.rows[call.layer]
        new = call.q.shape[1]
        self.calls.columns.check_window(call)
        self._check_cache(call, start + new + self.calls.n_padding)
        if start == 0:
            check_output_reproduced(call)
        self.calls.layers.add(call.layer)
        self.rows[call.layer] = start + new
        self.modules[call.layer] = call.module
        self.sinks[call.layer] = call.sinks
        self.latents[call.layer] = call.latent
        queries = slice(-start % self.recorder.options.query_stride, None, self.recorder.options.query_stride)
        self.keep(call.layer, "q", call.q[:, queries])
        self._keep_cached(call)
        if call.layer in self.out_layers:
            self.keep(call.layer, "out", call.out[:, queries])
            self.out_rows = call.out
        self.on_step(f"layer {call.layer}, {start + new} tokens")

    def _keep_cached(self, call):
        for name, rows in call.cached().items():
            self.keep(call.layer, name, rows)

    def _check_cache(self, call, expected):
        if call.kv_len > expected:
            raise TraceError(self.calls.why_more_rows(call, expected))
        # The cache of a layer with a window or chunks returns as many rows, or all while there are fewer.
        most = call.sliding_window or call.attention_chunk
        windowed = most and call.kv_len == most - 1 + call.columns
        if call.kv_len < expected and not windowed:
            raise TraceError(self.calls.why_fewer_rows(call, expected, self.tables.changed))

    def keep(self, layer, name, rows):
        """Adds rows [heads, n, dim] of a tensor to the spool."""
        if rows.shape[1]:
            self.spool.append(layer, name, rows, self._dtype(name))

    def stored(self, rows):
        """Rows of q, k or v in the trace's stored type."""
        return to_stored(rows, self.recorder.dtype)

    def _dtype(self, name):
        return FIXED_DTYPES.get(name, self.recorder.dtype)

    def _on_input(self, layer, norms):
        self._keep_norms(layer, "resid_in_norm", norms)

    def _on_residual(self, layer, residual):
        self._keep_norms(layer, "resid_norm", residual.float().norm(dim=-1))

    def _on_projected(self, layer, projected):
        if self.calls.real is None:
            return
        gate = gate_of(projected[self.calls.row, self.calls.real], self.out_rows)
        start = self.rows[layer] - gate.shape[1]
        stride = self.recorder.options.query_stride
        self.keep(layer, "out_gate", gate[:, -start % stride :: stride])

    def _keep_norms(self, layer, name, norms):
        if self.calls.real is not None:
            self.keep(layer, name, norms[self.calls.row, self.calls.real][None, :, None])

    def close(self):
        """Removes the hooks from the model."""
        while self.taps:
            self.taps.pop().remove()

    def write(self):
        """Writes the prompt, then the layers one at a time from the spool."""
        self.close()
        self.facts = in_use(
            self.recorder.model, self.recorder.facts, self.tables.spans, max(self.position_ids)
        )
        self._warn()
        self._check_complete()
        self._further_passes()
        self.write_prompt()
        for layer in self.recorder.layers:
            if layer in self.rows:
                self.write_layer(layer)
                self.on_step(f"layer {layer} written")
            else:
                self.recorder.sink.link(self.prompt_id, layer)

    def write_prompt(self):
        """Writes what is not of a layer."""
        self.recorder.sink.write_prompt(self.prompt_id, *self._prompt_parts(), self.groups)

    def write_layer(self, layer):
        """Writes a layer's rows, which are then forgotten."""
        datasets, attributes = self._layer_parts(layer)
        branches = {
            branch: {tensor: datasets.pop(name) for tensor, name in tensors.items()}
            for branch, tensors in branch_tensors(list(datasets)).items()
        }
        more = {"branches": branches} if branches else {}
        self.recorder.sink.write_layer(self.prompt_id, layer, datasets, attributes, **more)

    def _check_complete(self):
        total = len(self.tokens)
        short = [layer for layer, rows in self.rows.items() if rows != total]
        if short:
            raise TraceError(f"layers {short} recorded {self.rows[short[0]]} rows for {total} tokens")

    def _further_passes(self):
        if self.recorder.options.gradient:
            self._record_gradient()
        if self.recorder.options.repeat:
            self.groups["repeat"] = record_repeat(self)
        if self.recorder.options.lookahead:
            self.groups["lookahead"] = record_lookahead(self)
        for add_to in self.further:
            add_to(self)

    def _warn(self):
        unknown = {layer: self.facts[layer].unknown for layer in self.rows if self.facts[layer].unknown}
        if unknown:
            layer, why = next(iter(unknown.items()))
            layers = f"layer {layer}" if len(unknown) == 1 else f"{len(unknown)} layers (first: {layer})"
            self.recorder.warn(
                f"prompt {self.prompt_id}, {layers}: {why}. The rotation is recorded as unknown: methods "
                "that turn keys or queries are refused"
            )
        for remark in self.calls.remarks(self.recorder.tokenizer):
            self.recorder.warn(f"prompt {self.prompt_id}: {remark}")

    def _record_gradient(self):
        """Runs the recorded tokens again and propagates the gradients back through the blocks."""
        recorder, options = self.recorder, self.recorder.options
        n_prompt = self.attributes.get("n_prompt", self.n_prompt)
        answer = self.attributes.get("answer_from"), self.attributes.get("needle_tokens", ())
        scored = scored_rows(options, self.prompt_id, len(self.tokens), n_prompt, *answer)
        if answer[0] is not None and scored.answer_from is None:
            recorder.warn(
                f"prompt {self.prompt_id}: no scored row predicts the first token of its answer, so the "
                "answer has no gradient: let `then` stand before it, or --gradient-from be earlier"
            )
        ids, positions = (
            torch.tensor([x], device=recorder.model.device) for x in (self.tokens, self.position_ids)
        )
        # Models without rotary tables may not take position_ids at all.
        from_zero = self.position_ids == list(range(len(self.tokens)))
        positions = None if from_zero else positions
        masked = MaskedRuns(scored) if self._has_masked_runs(scored) else None
        gradients = Gradients(recorder.model, recorder.blocks, ids, scored, positions)
        self.gradient_rows, kept = kept_rows(scored, options.query_stride)
        self.of_gradient = {"g_entropy": gradients.entropy[kept], "g_logprob": gradients.log_prob[kept]}
        if masked:
            gradients.run_masked(masked)
            # A gradient with NaN or infinity is refused when its layer is written, so `a` is not checked.
            if not np.isfinite(masked.kl).all():
                raise TraceError(
                    f"prompt {self.prompt_id}: with hidden tokens the model gives NaN or infinity"
                )
        for layer, g in gradients.of_layers(self.rows, masked):
            self.keep(layer, "g", g[: options.gradient, :, kept].flatten(0, 1))
            self.keep(layer, "g_recorded", g[scored.recorded, :, kept])
            if scored.answer_from is not None:
                self.keep(layer, "g_answer", g[-1, :, kept])
            self.on_step(f"layer {layer}, gradient")
        if scored.answer_from is not None:
            self._keep_answer(gradients, masked)
        if masked and scored.labels == "model":
            self._keep_masked(masked, kept)

    def _has_masked_runs(self, scored):
        """Masks hide tokens in all layers, so the gradient's estimate needs all layers."""
        useful = scored.labels == "model" or scored.answer_from is not None
        return useful and set(self.rows) >= set(self.recorder.facts)

    def _keep_answer(self, gradients, masked):
        log_prob, exact = gradients.answer
        self.attributes |= {"answer_log_prob": log_prob, "answer_exact": int(exact)}
        if not masked:
            return
        of_masks = masked.answer
        self.of_gradient |= {
            "answer_masked_logprob": of_masks.change,
            "answer_masked_a": of_masks.a,
            "answer_masked_exact": of_masks.exact,
        }
        self.attributes["answer_masked_runs"] = json.dumps([mask.said() for mask in masked.masks])

    def _keep_masked(self, masked, kept):
        general = masked.general
        self.of_gradient |= {
            "masked_kl": masked.kl[general],
            "masked_kl_rows": masked.kl_rows[general, kept],
            "masked_a": masked.a[general, kept],
            "masked_distance2": masked.distance2[general, kept],
        }
        self.attributes["masked_runs"] = json.dumps([mask.said() for mask in masked.masks[general]])

    def _prompt_parts(self):
        datasets = {
            "tokens": np.array(self.tokens, dtype=np.int32),
            "position_ids": np.array(self.position_ids, dtype=np.int32),
        }
        attributes = {
            "n_prompt": self.n_prompt,
            "n_generated": len(self.tokens) - self.n_prompt,
            **self.attributes,
        }
        if self.recorder.options.with_text:
            tokenizer = self.recorder.tokenizer
            attributes["text"] = tokenizer.decode(self.tokens)
            datasets["token_class"] = token_classes(tokenizer, self.tokens)
            datasets["token_text"] = token_texts(tokenizer, self.tokens)
        return datasets | self.of_gradient, attributes

    def _shaped(self, name, stored):
        """A tensor in the trace's shape, from its rows [heads, n, dim] in the spool."""
        if name in NORMS:
            return stored[0, :, 0]
        if name.rpartition(".")[-1] in ONE_ROW:
            return stored[0]
        if name == "g":
            return stored.reshape(self.recorder.options.gradient, -1, *stored.shape[1:])
        return stored

    def _projections(self, latent):
        """The datasets up_k and up_v, in the model's own type where a trace can hold it."""
        dtype = STORAGE_OF.get(latent.up_k.dtype, "f32")
        return {name: (to_stored(getattr(latent, name), dtype), dtype) for name in ("up_k", "up_v")}

    def _layer_parts(self, layer):
        spool = self.spool
        datasets = {}
        for name in spool.names(layer):
            stored, dtype = spool.take(layer, name), self._dtype(name)
            if not _is_finite(stored, dtype):
                remedy = OVERFLOW if name.startswith("g") else ""
                raise TraceError(
                    f"prompt {self.prompt_id}, layer {layer}: {name} holds NaN or infinity as {dtype}{remedy}"
                )
            datasets[name] = (self._shaped(name, stored), dtype)
        if "g" in datasets:
            datasets["g_rows"] = (self.gradient_rows, None)
        stride = self.recorder.options.query_stride
        if stride > 1:
            datasets["q_pos"] = (np.arange(0, len(self.tokens), stride, dtype=np.int32), None)
        if self.latents[layer] is not None:
            datasets |= self._projections(self.latents[layer])
        if self.sinks[layer] is not None:
            datasets["sinks"] = (to_stored(self.sinks[layer], "f32"), "f32")
        if self.recorder.options.with_output:
            heads = datasets["q"][0].shape[0]
            datasets["o_proj"] = (to_stored(o_proj_weights(self.modules[layer], heads), "f32"), "f32")
        root_rope = self.recorder.sink.root["rope_json"]
        return datasets, self.facts[layer].attributes(root_rope)
