"""One prompt: the full model once, then once for each instance."""

import time

import torch
from kvdump.errors import DumpError, UsageError
from kvdump.progress import Progress

from .checks import KeyCheck, check_full_run
from .engine import OwnRows, PromptRows, check_method
from .layer_errors import Drift, LayerErrors, known_blocks, residuals
from .losses import answer_of, compare
from .model_run import PromptRun
from .recorded import EveryRow, RecordedRows
from .table import identity
from .witness import Witness


class PromptJob:
    """Instances of one prompt with the same prefill and length.

    `inputs`: what all prompts share (trace, layers, kept, outputs, engine, config, selection, device).
    """

    def __init__(self, model, attention, inputs, instances):
        self.inputs = inputs
        self.attention = attention
        self.instances = instances
        first = instances[0]
        self.prompt = first.prompt
        steps = first.n_tokens - first.n_prefill
        if steps < 2:
            raise UsageError(f"prompt {self.prompt}: {steps} tokens behind the prompt, 2 are needed")
        self.prompt_rows = PromptRows() if inputs.engine else None
        half = model.dtype in (torch.float16, torch.bfloat16)
        watch = KeyCheck(inputs.trace, self.prompt, half, self.prompt_rows)
        tokens, positions = inputs.trace.prompt(self.prompt, first.n_tokens)
        self.run = PromptRun(model, attention, tokens, positions, first.n_prefill, watch)
        if not watch.seen:
            raise DumpError(f"{type(model).__name__} never calls the attention interface")
        self.blocks = known_blocks(model, inputs.layers)
        _check_answer(inputs.trace, first)
        self.checks = {"keys": watch.deviation}
        self.errors = None
        self.deviations = {}  # of instances whose outputs were compared

    def measure_full(self):
        """Checks the full model's run and measures all instances' layers beside it."""
        trace = self.inputs.trace
        every_row = EveryRow(self.run, lambda layer: trace.window(self.prompt, layer))
        self.checks |= check_full_run(self.run, self.attention, every_row)
        ways = {} if self.inputs.engine else dict(self._ways())
        layers = self.inputs.layers
        progress = Progress(f"{self.prompt}: full model, beside it {len(ways)} instances", len(layers))
        self.errors = LayerErrors(layers, self.blocks, every_row, ways, progress)
        with residuals(self.blocks, self.errors.on_residual):
            self.full = self.run.decode(self.errors)
        progress.close()

    def _ways(self):
        for number, instance in enumerate(self.instances):
            try:
                yield number, self._way(instance)
            except DumpError:
                continue  # its own run says why

    def _way(self, instance):
        shared = self.inputs
        if missing := [where for where in instance.failed if where[0] in shared.layers]:
            raise DumpError(f"layer {missing[0][0]}, kv head {missing[0][1]} has no result")
        if not shared.engine:
            return RecordedRows(shared.trace, shared.kept, instance, shared.layers, shared.device)
        check_method(instance)
        return OwnRows(shared.engine, shared.trace, instance, shared.layers, self.prompt_rows, shared.config)

    def confirm(self, number, key):
        """(rows of confirm.csv, rows of confirm_layers.csv) of instance `number`; DumpError when it fails."""
        instance = self.instances[number]
        start = time.perf_counter()
        way = self._way(instance)
        if self.inputs.outputs:
            way = self._witness(way, instance)
        drift = Drift(self.errors.streams)
        with residuals(self.blocks, drift.on_residual):
            logits = self.run.decode(way)
        if self.inputs.outputs:
            way.check()
            self.deviations[number] = way.deviation
        targets = self.run.targets()
        if not logits.isfinite().all():
            raise DumpError("the compressed model's logits are not finite")
        losses = compare(self.full, logits, targets)
        answer = self._answer(logits, targets)
        who = identity(instance, key, self.inputs.selection, self.inputs.layers)
        seconds = f"{time.perf_counter() - start:.3f}"
        rows = [
            {**who, "distance_from": first, "distance_to": last, **_texts(means), "confirm_s": seconds}
            for first, last, means in losses.ranges()
        ]
        rows[0] |= answer
        return [{**row, "status": "ok"} for row in rows], self._layer_rows(who, number, drift)

    def _answer(self, logits, targets):
        """Columns of a prompt that has an answer, {} otherwise."""
        begin = self.inputs.trace.answer_from(self.prompt)
        if begin is None:
            return {}
        columns = {}
        # Row 0 predicts the second token behind the prompt.
        first = begin - self.run.prefill - 1
        for suffix, rows in (("_full", self.full), ("", logits)):
            found = answer_of(rows, targets, first)
            columns |= {f"answer_exact{suffix}": int(found.exact), f"answer_rank{suffix}": found.rank}
            columns[f"answer_logprob{suffix}"] = f"{found.log_probability:.9g}"
        return columns

    def _layer_rows(self, who, number, drift):
        found = self.errors.found.get(number, {})
        return [
            {**who, "layer": layer, **_texts(found.get(layer, {}) | drift.found.get(layer, {}))}
            for layer in self.inputs.layers
        ]

    def _witness(self, way, instance):
        layer = self.inputs.layers[0]
        stored = self.inputs.trace.keys(instance.prompt, layer, 1)[1]
        return Witness(way, self.inputs.outputs, instance, layer, stored)


def _check_answer(trace, instance):
    """UsageError where a prompt's answer begins inside what is compressed, or is cut short."""
    begin, total = trace.answer_from(instance.prompt), trace.n_tokens(instance.prompt)
    if begin is not None and (begin <= instance.n_prefill or instance.n_tokens < total):
        raise UsageError(
            f"prompt {instance.prompt}: its answer is tokens {begin} to {total - 1}, the replay compressed "
            f"{instance.n_prefill} of {instance.n_tokens} tokens: use replay.prefill: trace and all tokens"
        )


def _texts(means):
    return {name: value if isinstance(value, int) else f"{value:.9g}" for name, value in means.items()}
