"""The caches that the answers of one prompt attend to: rows of the full model, cut as instances have cut
them, or the engine's own."""

import json
import warnings

import torch
from kvbase.errors import KvreplayWarning

from .coded_rows import is_coded
from .generation import Masked, Stepped
from .kept_prompt import KeptPrompt, KeptTokens


class AnswerCaches:
    """Makes caches of one prompt whose first `prefill` tokens were cut.

    inputs: the Inputs of all prompts; rows: PromptRows with the prompt's queries, keys and values; room: how
    many rows may follow the prompt. A *plan* is what one answer holds: in each of the model's layers
    KeptTokens, one for each kv head or for each query head.
    """

    def __init__(self, model, inputs, prompt, prefill, rows, room):
        self.device, self.dtype = model.device, model.dtype
        self.inputs, self.prompt, self.prefill = inputs, prompt, prefill
        self.rows, self.room = rows.layers, room
        self.layers = range(inputs.trace.shape()["n_layers"])

    def full_plan(self):
        """The plan of the full model."""
        return [self._everything(layer) for layer in self.layers]

    def plan_if_cut_once(self, instance):
        """The plan of an instance; None if its cache changes behind the prompt, or holds rows that differ
        from the model's."""
        if not self._cut_once(instance):
            return None
        compressed = set(self.inputs.layers)
        return [
            self._kept(instance, layer) if layer in compressed else self._everything(layer)
            for layer in self.layers
        ]

    def masked(self, plans):
        """Masked rows of answers with these plans."""
        layers = {layer: self._rows(layer, [plan[layer] for plan in plans]) for layer in self.layers}
        return Masked(layers, len(plans))

    def stepped(self, steppings):
        """Stepped rows of answers whose compressed layers are in these `stepping`s."""
        rest = set(self.layers) - set(self.inputs.layers)
        others = {layer: self._rows(layer, [self._everything(layer)] * len(steppings)) for layer in rest}
        return Stepped(steppings, others)

    def stepping(self, instance):
        """The engine's caches of an instance behind the recorded prompt."""
        method = {"name": instance.method, **json.loads(instance.given)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KvreplayWarning)  # kvreplay run has printed them
            return self.inputs.coder.stepping(
                str(self.inputs.trace.path), prompt_id=self.prompt, layers=self.inputs.layers, method=method,
                budget=int(instance.budget_tokens) if instance.budget_tokens else None, capacity=self.room,
                seed=int(instance.seed or 0), prompt=self.inputs.config.get("replay", {}).get("prompt"),
            )  # fmt: skip

    def bytes_of(self, plans):
        """Bytes of Masked rows: in each layer all caches are as large as the largest."""
        total = 0
        for layer in self.layers:
            _, k, v = self.rows[layer]
            heads = [head for plan in plans for head in plan[layer]]
            longest = max(len(one.tokens) for head in heads for one in head)
            series = len(k) * max(len(head) for head in heads)
            total += len(plans) * series * (longest + self.room) * (k.shape[-1] + v.shape[-1])
        return total * torch.float32.itemsize

    def _cut_once(self, instance):
        if self.inputs.kept is None or is_coded(instance.parameters()):
            return False
        if instance.parameters().get("positions", "original") != "original":
            return False
        return self.inputs.kept.cuts_once(instance.cells.values())

    def _rows(self, layer, lists):
        _, k, v = (x.to(self.device, self.dtype) for x in self.rows[layer])
        return KeptPrompt(k, v, lists, self.room, self.inputs.trace.sight(self.prompt, layer))

    def _everything(self, layer):
        return [[KeptTokens.all_of(self.prefill)]] * len(self.rows[layer][1])

    def _kept(self, instance, layer):
        found = [
            self.inputs.kept.lists(key, self.prefill, instance.n_tokens) for key in instance.keys_of(layer)
        ]
        return [[_kept_tokens(series) for series in one.series] for one in found]


def _kept_tokens(series):
    """KeptTokens of the first list of a Series."""
    tokens = torch.from_numpy(series.list(0).copy())
    ones = torch.ones(len(tokens))
    num, den = (
        ones if weights is None else torch.from_numpy(weights[: len(tokens)]).float()
        for weights in (series.num, series.den)
    )
    return KeptTokens(tokens, num, den)
