"""One prompt: runs the full model once, then each instance."""

import time
from dataclasses import dataclass

from kvbase.errors import ConfigError, KvreplayError, TraceError
from kvbase.progress import Progress

from .answers import Answers
from .checks import KeyCheck, check_full_run, is_half
from .draws import Disturbance, mean_over_draws, spread
from .engine import OwnRows, PromptRows, check_method
from .layer_errors import Drift, LayerErrors, known_blocks, residuals
from .losses import RowLosses, answer_of, compare, mean_rows
from .model_run import PromptRun
from .recorded import EveryRow, RecordedRows
from .table import identity
from .witness import Witness


@dataclass
class _Draw:
    """Result of one run of an instance. `answer` {column: number}; `drift` {layer: {column: number}}."""

    losses: RowLosses
    answer: dict
    drift: dict


@dataclass(frozen=True)
class Confirmed:
    """An instance's rows of confirm.csv and confirm_layers.csv, and its RowLosses."""

    rows: list
    layer_rows: list
    losses: RowLosses


class PromptJob:
    """Instances of one prompt with equal prefill and length.

    `inputs`: the Inputs that all prompts share. Raises ConfigError if the prompt cannot be used, TraceError
    if the model cannot.
    """

    def __init__(self, model, attention, inputs, instances):
        self.inputs = inputs
        self.attention = attention
        self.instances = instances
        first = instances[0]
        self.prompt = first.prompt
        steps = first.n_tokens - first.n_prefill
        if steps < 2:
            raise ConfigError(f"prompt {self.prompt}: {steps} tokens after the prompt, 2 are needed")
        self.prompt_rows = PromptRows() if inputs.engine or inputs.limits else None
        watch = KeyCheck(inputs.trace, self.prompt, is_half(model), self.prompt_rows)
        tokens, positions = inputs.trace.prompt(self.prompt, first.n_tokens)
        self.run = PromptRun(model, attention, tokens, positions, first.n_prefill, watch)
        if not watch.seen:
            raise TraceError(f"{type(model).__name__} never calls the attention interface")
        self.blocks = known_blocks(model, inputs.layers)
        _check_answer(inputs.trace, first)
        self.answers = None
        if inputs.limits:
            self.answers = Answers(model, attention, inputs, instances, self.prompt_rows)
        self.checks = {"keys": watch.deviation}
        self.errors = None
        self.deviations = {}  # {number of an instance: deviation from outputs.h5}

    def measure_full(self):
        """Checks the full model's run and measures all instances' layers in the same pass."""
        trace = self.inputs.trace
        every_row = EveryRow(self.run, lambda layer: trace.sight(self.prompt, layer))
        self.checks |= check_full_run(self.run, self.attention, every_row)
        ways = {} if self.inputs.engine else dict(self._ways())
        layers = self.inputs.layers
        progress = Progress(f"{self.prompt}: full model, with {len(ways)} instances", len(layers))
        self.errors = LayerErrors(layers, self.blocks, every_row, ways, progress)
        with residuals(self.blocks, self.errors.on_residual):
            self.full = self.run.decode(self.errors)
        progress.close()
        if self.answers:
            begin = trace.answer_from(self.prompt) - self.run.prefill - 1
            self.checks["generation"] = self.answers.write_full(self.full[begin])
            self.answers.write()

    def _ways(self):
        for number, instance in enumerate(self.instances):
            try:
                yield number, self._way(instance)
            except KvreplayError:
                continue  # reported when the instance runs

    def _way(self, instance, disturb=None):
        shared = self.inputs
        if missing := [where for where in instance.failed if where[0] in shared.layers]:
            raise TraceError(f"layer {missing[0][0]}, kv head {missing[0][1]} has no result")
        if not shared.engine:
            return RecordedRows(
                shared.trace, shared.kept, instance, shared.layers, shared.device, shared.coder
            )
        check_method(instance)
        rows, config = self.prompt_rows, shared.config
        return OwnRows(shared.engine, shared.trace, instance, shared.layers, rows, config, disturb)

    def confirm(self, number, key):
        """Runs instance `number` and returns a Confirmed. TraceError if it fails."""
        instance = self.instances[number]
        start = time.perf_counter()
        draws = [self._draw(number, draw) for draw in range(self.inputs.draws_of(instance))]
        who = identity(instance, key, self.inputs.selection, self.inputs.layers)
        seconds = f"{time.perf_counter() - start:.3f}"
        rows = []
        for ranges in zip(*(draw.losses.ranges() for draw in draws), strict=True):
            first, last, _ = ranges[0]
            means = [of_draw for _, _, of_draw in ranges]
            found = _texts(mean_over_draws(means) | spread(means))
            rows.append({**who, "distance_from": first, "distance_to": last, **found, "confirm_s": seconds})
        rows[0] |= _texts(mean_over_draws([draw.answer for draw in draws]))
        if self.answers:
            rows[0] |= _texts(self.answers.columns(number))
        drift = {layer: mean_over_draws([d.drift[layer] for d in draws]) for layer in draws[0].drift}
        return Confirmed(
            [{**row, "status": "ok"} for row in rows],
            self._layer_rows(who, number, drift),
            mean_rows([draw.losses for draw in draws]),
        )

    def _draw(self, number, draw):
        """Draw 0 is the undisturbed run; only this one is compared with the engine's outputs."""
        instance = self.instances[number]
        disturb = Disturbance(instance.seed or "0", draw, self.prompt) if draw else None
        way = self._way(instance, disturb)
        witness = not draw and self.inputs.outputs
        if witness:
            way = self._witness(way, instance)
        drift = Drift(self.errors.streams)
        with residuals(self.blocks, drift.on_residual):
            logits = self.run.decode(way, disturb)
        if witness:
            way.check()
            self.deviations[number] = way.deviation
        if not logits.isfinite().all():
            raise TraceError("the compressed model's logits are not finite")
        targets = self.run.targets()
        return _Draw(compare(self.full, logits, targets), self._answer(logits, targets), drift.found)

    def _answer(self, logits, targets):
        """{column: number} about the prompt's answer; {} if it has none."""
        begin = self.inputs.trace.answer_from(self.prompt)
        if begin is None:
            return {}
        columns = {}
        # Row 0 predicts the second token after the prompt.
        first = begin - self.run.prefill - 1
        for suffix, rows in (("_full", self.full), ("", logits)):
            found = answer_of(rows, targets, first)
            columns |= {f"answer_exact{suffix}": int(found.exact), f"answer_rank{suffix}": found.rank}
            columns[f"answer_logprob{suffix}"] = found.log_probability
        return columns

    def _layer_rows(self, who, number, drift):
        found = self.errors.found.get(number, {})
        return [
            {**who, "layer": layer, **_texts(found.get(layer, {}) | drift.get(layer, {}))}
            for layer in self.inputs.layers
        ]

    def _witness(self, way, instance):
        layer = self.inputs.layers[0]
        stored = self.inputs.trace.keys(instance.prompt, layer, 1)[1]
        return Witness(way, self.inputs.outputs, instance, layer, stored)


def _check_answer(trace, instance):
    """ConfigError if a prompt's answer begins inside the compressed part, or is truncated."""
    begin, total = trace.answer_from(instance.prompt), trace.n_tokens(instance.prompt)
    if begin is not None and (begin <= instance.n_prefill or instance.n_tokens < total):
        raise ConfigError(
            f"prompt {instance.prompt}: its answer is tokens {begin} to {total - 1}, the replay compressed "
            f"{instance.n_prefill} of {instance.n_tokens} tokens: use replay.prefill: trace and all tokens"
        )


def _texts(means):
    """Fields of a table: integers unchanged, "" for None, floats with nine digits."""
    told = {name: "" if value is None else value for name, value in means.items()}
    return {name: f"{value:.9g}" if isinstance(value, float) else value for name, value in told.items()}
