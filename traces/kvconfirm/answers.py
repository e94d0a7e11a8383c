"""The answers that a prompt's instances write, and how right they are."""

import json
import time
import warnings
from dataclasses import dataclass

import torch
from kvbase.errors import ConfigError, KvreplayError, KvreplayWarning, TraceError
from kvtasks.scores import score
from kvtasks.writing import end_tokens, limit_of

from .checks import is_half, logits_bound
from .coded_rows import is_coded
from .generation import Masked, Start, Stepped, write
from .kept_prompt import KeptPrompt, KeptTokens

BATCH_BYTES = 2e9  # rows of the answers that are written together
STEPPED_TOGETHER = 12  # answers whose methods go on: each holds the prompt's queries, keys and values


def check_answers(trace, instances):
    """ConfigError if a prompt has no answer, or if another prompt than the recorded one was cut; TraceError
    if a layer's rows are not keys and values of its own, or if the model has other layers. Called before the
    model is loaded."""
    layers, remedy = trace.shape()["n_layers"], "leave out --generate"
    if trace.attention_layers(layers) != list(range(layers)):
        raise TraceError(f"--generate: the model has layers without attention, whose state is lost: {remedy}")
    for prompt, prefill in sorted({(one.prompt, one.n_prefill) for one in instances}):
        if trace.answer_from(prompt) is None:
            why = f"prompt {prompt} of {trace.path} has no answer"
            raise ConfigError(
                f"--generate: {why}: record prompts of kvreplay tasks make, or choose --prompts"
            )
        if prefill != trace.n_prompt(prompt):
            why = f"prompt {prompt} has {trace.n_prompt(prompt)} tokens, and the replay has cut {prefill}"
            raise ConfigError(f"--generate: {why}: its question would be cut elsewhere: use prefill: trace")
        latent = next((layer for layer in range(layers) if trace.is_latent(prompt, layer)), None)
        if latent is not None:
            raise TraceError(f"--generate: layer {latent} has latent attention: {remedy}")
        if owners := trace.owners(prompt):
            raise TraceError(f"--generate: layer {min(owners)} reads another layer's cache: {remedy}")


def limits_of(trace, prompts, wanted):
    """{prompt: how many tokens its answer may take}: `wanted`, or as its task says; {} if wanted is 0."""
    if not wanted:
        return {}
    return {prompt: limit_of(trace.task(prompt)) if wanted < 0 else wanted for prompt in prompts}


@dataclass
class _Answer:
    """The columns of one instance's answer, or why it has none."""

    columns: dict
    failure: str = ""


class Answers:
    """Writes and scores the answers of one prompt's instances.

    inputs: the Inputs of all prompts; instances: as in PromptJob; rows: PromptRows with the prompt's queries,
    keys and values.
    """

    def __init__(self, model, attention, inputs, instances, rows):
        self.model, self.attention, self.inputs, self.rows = model, attention, inputs, rows
        self.instances = instances
        trace, first = inputs.trace, instances[0]
        self.prompt, self.prefill = first.prompt, first.n_prefill
        tokens, positions = trace.prompt(self.prompt, first.n_tokens)
        begin = trace.answer_from(self.prompt)
        question = torch.from_numpy(tokens[self.prefill : begin])
        self.start = Start(self.prefill, question, int(positions[self.prefill]))
        self.task = trace.task(self.prompt) or self._by_text(tokens[begin:])
        self.limit = inputs.limits[self.prompt]
        self.stops = end_tokens(model, inputs.tokenizer)
        self.found = {}

    def _by_text(self, answer):
        """The task of a prompt that has an answer and nothing else."""
        text = self.inputs.tokenizer.decode(answer, skip_special_tokens=True).strip()
        if not text:
            raise ConfigError(f"prompt {self.prompt}: its answer has no text, so every answer would be right")
        return {"name": "", "question": "", "answers": [text], "score": "all"}

    @property
    def _alone(self):
        """Whether each answer is written by itself: in half precision its words depend on those beside it."""
        return is_half(self.model)

    @property
    def room(self):
        return len(self.start.question) + self.limit

    def write_full(self, expected):
        """Writes the full model's answer. expected [vocabulary]: its logits where the answer begins. Returns
        their largest difference; TraceError if it is too large."""
        rows = Masked({layer: self._layer(layer, [self._everything(layer)]) for layer in self._layers()}, 1)
        full = self._write(rows)[0]
        if full.failure:
            raise TraceError(full.failure)
        self.full = self._scored(full)
        off = float((full.first_logits - expected).abs().max())
        if not off <= logits_bound(self.model, expected):
            raise TraceError(
                f"the full model is not reproduced where its answer begins: logits differ by {off}"
            )
        return off

    def write(self):
        """Writes the answers of all instances."""
        masked, stepped = [], []
        for number, instance in enumerate(self.instances):
            try:
                (masked if self._is_masked(instance) else stepped).append(number)
            except KvreplayError as error:
                self.found[number] = _Answer({}, str(error))
        for batch in self._batches({number: self._lists(self.instances[number]) for number in masked}):
            self._write_masked(batch)
        together = 1 if self._alone else STEPPED_TOGETHER
        for at in range(0, len(stepped), together):
            self._write_stepped(stepped[at : at + together])

    def columns(self, number):
        """Columns of an instance's answer. TraceError if it has none."""
        answer = self.found[number]
        if answer.failure:
            raise TraceError(answer.failure)
        return answer.columns

    def _is_masked(self, instance):
        """Whether an instance's prompt was cut once, and its rows are the model's."""
        if self.inputs.kept is None or is_coded(instance.parameters()):
            return False
        if instance.parameters().get("positions", "original") != "original":
            return False
        return self.inputs.kept.cuts_once(instance.cells.values())

    def _layers(self):
        return range(self.inputs.trace.shape()["n_layers"])

    def _layer(self, layer, lists):
        device, dtype = self.model.device, self.model.dtype
        _, k, v = (x.to(device, dtype) for x in self.rows.layers[layer])
        return KeptPrompt(k, v, lists, self.room, self.inputs.trace.sight(self.prompt, layer))

    def _everything(self, layer):
        heads = self.rows.layers[layer][1].shape[0]
        return [[KeptTokens.all_of(self.prefill)]] * heads

    def _lists(self, instance):
        """[layers] of KeptTokens, one for each kv head or for each query head."""
        compressed = set(self.inputs.layers)
        return [
            self._of_layer(instance, layer) if layer in compressed else self._everything(layer)
            for layer in self._layers()
        ]

    def _of_layer(self, instance, layer):
        keys = instance.keys_of(layer)
        found = [self.inputs.kept.lists(key, self.prefill, instance.n_tokens) for key in keys]
        return [[_kept_tokens(series) for series in one.series] for one in found]

    def _batches(self, lists):
        """Parts of {number: its lists} whose rows fit into BATCH_BYTES, caches of about one size together."""
        batch = {}
        for number in sorted(lists, key=lambda n: (self._bytes({n: lists[n]}), n)):
            more = batch | {number: lists[number]}
            if batch and (self._alone or self._bytes(more) > BATCH_BYTES):
                yield batch
                more = {number: lists[number]}
            batch = more
        if batch:
            yield batch

    def _bytes(self, lists):
        """Bytes of the rows of a batch: in each layer all caches are as large as the largest."""
        total = 0
        for layer in self._layers():
            of_layer = [of_instance[layer] for of_instance in lists.values()]
            _, k, v = self.rows.layers[layer]
            longest = max(len(one.tokens) for heads in of_layer for head in heads for one in head)
            series = len(k) * max(len(head) for heads in of_layer for head in heads)
            total += len(lists) * series * (longest + self.room) * (k.shape[-1] + v.shape[-1])
        return total * torch.float32.itemsize

    def _write_masked(self, batch):
        start = time.perf_counter()
        layers = {
            layer: self._layer(layer, [lists[layer] for lists in batch.values()]) for layer in self._layers()
        }
        written = self._write(Masked(layers, len(batch)))
        seconds = (time.perf_counter() - start) / len(batch)
        for number, one in zip(batch, written, strict=True):
            self._keep(number, one, "recorded", seconds)

    def _write(self, rows):
        return write(self.model, self.attention, rows, self.start, self.limit, self.stops)

    def _write_stepped(self, batch):
        start = time.perf_counter()
        steps = {}
        for number in batch:
            try:
                steps[number] = self._stepping(self.instances[number])
            except KvreplayError as error:
                self.found[number] = _Answer({}, str(error))
        if not steps:
            return
        layers = set(self._layers()) - set(self.inputs.layers)
        others = {layer: self._layer(layer, [self._everything(layer)] * len(steps)) for layer in layers}
        written = self._write(Stepped(list(steps.values()), others))
        seconds = (time.perf_counter() - start) / len(steps)
        for number, one in zip(steps, written, strict=True):
            self._keep(number, one, "own", seconds)

    def _stepping(self, instance):
        """The engine's caches of an instance behind the recorded prompt."""
        method = {"name": instance.method, **json.loads(instance.given)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KvreplayWarning)  # kvreplay run has printed them
            return self.inputs.coder.stepping(
                str(self.inputs.trace.path), prompt_id=self.prompt, layers=self.inputs.layers, method=method,
                budget=int(instance.budget_tokens) if instance.budget_tokens else None, capacity=self.room,
                seed=int(instance.seed or 0), prompt=self.inputs.config.get("replay", {}).get("prompt"),
            )  # fmt: skip

    def _keep(self, number, written, selection, seconds):
        correct, text = self._scored(written)
        full_correct, full_text = self.full
        columns = {
            "task": self.task["name"],
            "question": self.task["question"],
            "answer_limit": self.limit,
            "answer_correct_full": full_correct,
            "answer_correct": correct,
            "answer_text_full": full_text,
            "answer_text": text,
            "answer_selection": selection,
            "answer_s": f"{seconds:.3f}",
        }
        self.found[number] = _Answer(columns, written.failure)

    def _scored(self, written):
        """(share of the answer that is right, its text on one line). Line breaks count in the score."""
        text = self.inputs.tokenizer.decode(written.tokens, skip_special_tokens=True)
        return float(score(text, self.task)), " ".join(text.split())


def _kept_tokens(series):
    """KeptTokens of the first list of a Series."""
    tokens = torch.from_numpy(series.list(0).copy())
    ones = torch.ones(len(tokens))
    num, den = (
        ones if weights is None else torch.from_numpy(weights[: len(tokens)]).float()
        for weights in (series.num, series.den)
    )
    return KeptTokens(tokens, num, den)
