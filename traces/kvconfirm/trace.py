"""The parts of a trace that a second run of its model needs."""

import json
from pathlib import Path

import numpy as np
import torch
from kvbase.errors import ConfigError, TraceError
from kvbase.files import no_such_file
from kvtrace.disk_file import open_hdf5
from kvtrace.dtypes import STORED
from kvtrace.trace import Trace as TraceView

from .rotation import Rotary

SHAPE = ("n_layers", "n_q_heads", "n_kv_heads", "head_dim", "v_head_dim")
SHORT_NAMES = {name: short for short, (name, *_) in STORED.items()}


class Trace:
    """A trace of the recorder: one file, or an index.h5 of links. TraceError if it cannot be used."""

    def __init__(self, path):
        if not Path(path).exists():
            raise TraceError(f"{path}: {no_such_file(path)}: give the trace that was replayed with --trace")
        self.view = TraceView(path)
        self.path = self.view.path
        self.id = self.view.trace_id
        self.model = self.view.model
        self._root = self._attributes("/")

    def _attributes(self, group):
        """Attributes of a group, as plain values: those that the engine does not know."""
        with open_hdf5(self.path) as file:
            found = dict(file[group].attrs)
        return {name: x.item() if isinstance(x, np.generic) else x for name, x in found.items()}

    def shape(self):
        """{name: number} with the model's sizes. TraceError if the numbers of layers and heads are
        missing."""
        if missing := [name for name in SHAPE[:3] if name not in self._root]:
            raise TraceError(
                f"{self.path}: no attribute {missing[0]}: record the trace again with kvreplay record"
            )
        return {name: int(self._root[name]) for name in SHAPE if name in self._root}

    def prompts(self):
        """Ids of all prompts, sorted."""
        return self.view.prompts

    def prompt(self, prompt_id, n_tokens):
        """Token ids and position ids (int64 arrays) of the first `n_tokens` rows of a prompt."""
        prompt = self.view.prompt(prompt_id)
        if prompt.token_ids is None:
            raise TraceError(f"{self.path}: prompt {prompt_id} holds no token ids: record the trace again")
        if prompt.n_tokens < n_tokens:
            raise TraceError(
                f"{self.path}: prompt {prompt_id} has {prompt.n_tokens} tokens, the results have {n_tokens}"
            )
        return [ids[:n_tokens].astype(np.int64) for ids in (prompt.token_ids, prompt.position_ids)]

    def n_tokens(self, prompt_id):
        """Number of tokens of a prompt, including generated ones."""
        return self.view.prompt(prompt_id).n_tokens

    def n_prompt(self, prompt_id):
        """Number of tokens of the recorded prompt itself."""
        return self.view.prompt(prompt_id).n_prompt

    def answer_from(self, prompt_id):
        """Index of the first token of a prompt's answer; None if it has none."""
        found = self._attributes(f"prompts/{prompt_id}").get("answer_from")
        return None if found is None else int(found)

    def task(self, prompt_id):
        """What a prompt asks, as `kvreplay tasks make` wrote it (a dict); None if it has no task."""
        return self.view.prompt(prompt_id).task

    def layers(self, prompt_id):
        """Recorded layers of a prompt, ascending."""
        return self.view.layers(prompt_id)

    def attention_layers(self, n_layers):
        """Layers with attention: the recorded ones if all layers were requested, otherwise 0..n_layers -
        1."""
        options = json.loads(self._root.get("dump_json", "{}"))
        return self.layers(self.prompts()[0]) if options.get("layers") == "all" else list(range(n_layers))

    def keys(self, prompt_id, layer, rows):
        """(k [Hkv, rows, D] float32, name of the stored type) for the first `rows` rows of a layer. Latents
        are the keys of one kv head, their rotated part first."""
        found = self.layer(prompt_id, layer)
        return found.k[:, :rows].astype(np.float32), SHORT_NAMES[found.dtype]

    def layer(self, prompt_id, layer):
        """kvtrace.layer.Layer. TraceError if it was not recorded."""
        if layer not in self.layers(prompt_id):
            raise TraceError(
                f"{self.path}: prompt {prompt_id} has no layer {layer}, and the whole model runs: record the "
                "trace again without --layers"
            )
        return self.view.layer(layer, prompt_id)

    def is_latent(self, prompt_id, layer):
        """Whether the heads of a layer share latents."""
        return self.layer(prompt_id, layer).latent is not None

    def owners(self, prompt_id):
        """{layer: the layer whose keys and values it reads}."""
        found = {layer: self.view.layer(layer, prompt_id).kv_layer for layer in self.layers(prompt_id)}
        return {layer: owner for layer, owner in found.items() if owner is not None}

    def caches(self, prompt_id, layer):
        """Number of kv heads that the results of a layer have."""
        return self.layer(prompt_id, layer).n_kv_heads

    def rope(self, prompt_id, layer):
        """Rotary embedding of a layer; None if its keys are not rotated."""
        return self.layer(prompt_id, layer).rope

    def rotary(self, prompt_id, layer):
        """Rotary of a layer; None if its keys are not rotated."""
        rope = self.rope(prompt_id, layer)
        if rope is None:
            return None
        return Rotary(torch.tensor(rope["inv_freq"], dtype=torch.float64), rope["layout"])

    def sight(self, prompt_id, layer):
        """(sliding window, chunk) of a layer in tokens, 0 for none: see first_seen."""
        facts = self.layer(prompt_id, layer)
        return facts.sliding_window, facts.attention_chunk


def trace_path(given, results):
    """Path of the trace: `given`, or the one in the results' configuration. ConfigError if neither is
    there."""
    if given:
        return Path(given)
    named = results.config.get("traces") or []
    if len(named) != 1 or not Path(named[0]).exists():
        raise ConfigError(f"{results.folder}: which trace was replayed? give --trace FILE")
    return Path(named[0])
