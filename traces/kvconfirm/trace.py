"""The parts of a trace that a second run of its model needs."""

import json
from pathlib import Path

import h5py
import numpy as np
import torch
from kvbase.errors import ConfigError, TraceError
from kvbase.files import no_such_file, reason
from kvrecord.sinks import layer_group
from kvtrace.dtypes import read_floats, stored_dtype

from .rotation import Rotary

SHAPE = ("n_layers", "n_q_heads", "n_kv_heads", "head_dim", "v_head_dim")


class Trace:
    """An open trace of the recorder: one file, or an index.h5 of links. TraceError if it cannot be used."""

    def __init__(self, path):
        self.path = Path(path) / "index.h5" if Path(path).is_dir() else Path(path)
        try:
            self.file = h5py.File(self.path, "r")
        except OSError as error:
            there = self.path.exists()
            why = f"not a trace that can be read ({reason(error)})" if there else no_such_file(self.path)
            raise TraceError(f"{self.path}: {why}: give the trace that was replayed with --trace") from error
        if self.file.attrs.get("complete") != 1 or "prompts" not in self.file:
            raise TraceError(f"{self.path}: not a complete trace; was the recording interrupted?")
        self.id = str(self.file.attrs.get("trace_id", ""))
        self.model = str(self.file.attrs.get("model", ""))
        self.revision = self.file.attrs.get("revision")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def shape(self):
        """{name: number} with the model's sizes. TraceError if the numbers of layers and heads are
        missing."""
        if missing := [name for name in SHAPE[:3] if name not in self.file.attrs]:
            raise TraceError(
                f"{self.path}: no attribute {missing[0]}: record the trace again with kvreplay record"
            )
        return {name: int(self.file.attrs[name]) for name in SHAPE if name in self.file.attrs}

    def root_attributes(self):
        """All root attributes, as plain values."""
        return {name: getattr(value, "item", lambda v=value: v)() for name, value in self.file.attrs.items()}

    def prompts(self):
        """Ids of all prompts, sorted."""
        return sorted(self.file["prompts"])

    def prompt(self, prompt_id, n_tokens):
        """Token ids and position ids (int64 arrays) of the first `n_tokens` rows of a prompt."""
        group = self._group(f"prompts/{prompt_id}", f"no prompt {prompt_id}")
        tokens = group["tokens"][...].astype(np.int64)
        if len(tokens) < n_tokens:
            raise TraceError(
                f"{self.path}: prompt {prompt_id} has {len(tokens)} tokens, the results have {n_tokens}"
            )
        positions = group["position_ids"][...] if "position_ids" in group else np.arange(len(tokens))
        return tokens[:n_tokens], positions[:n_tokens].astype(np.int64)

    def n_tokens(self, prompt_id):
        """Number of tokens of a prompt, including generated ones."""
        return len(self._group(f"prompts/{prompt_id}", f"no prompt {prompt_id}")["tokens"])

    def answer_from(self, prompt_id):
        """Index of the first token of a prompt's answer; None if it has none."""
        found = self._group(f"prompts/{prompt_id}", f"no prompt {prompt_id}").attrs.get("answer_from")
        return None if found is None else int(found)

    def layers(self, prompt_id):
        """Recorded layers of a prompt, ascending."""
        return sorted(int(name) for name in self._group(f"prompts/{prompt_id}/layers", "no layers"))

    def attention_layers(self, n_layers):
        """Layers with attention: the recorded ones if all layers were requested, otherwise 0..n_layers -
        1."""
        options = json.loads(self.file.attrs.get("dump_json", "{}"))
        return self.layers(self.prompts()[0]) if options.get("layers") == "all" else list(range(n_layers))

    def keys(self, prompt_id, layer, rows):
        """(k [Hkv, rows, D] float32, name of the stored type) for the first `rows` rows of a layer."""
        data = self.layer(prompt_id, layer)["k"]
        return read_floats(data)[:, :rows], stored_dtype(data)

    def layer(self, prompt_id, layer):
        """HDF5 group of a layer."""
        missing = (
            f"prompt {prompt_id} has no layer {layer}, and the whole model runs: record the trace again "
            "without --layers"
        )
        return self._group(layer_group(prompt_id, layer), missing)

    def rope(self, prompt_id, layer):
        """`rope_json` of a layer; None if its keys are not rotated."""
        attributes = self.layer(prompt_id, layer).attrs
        text = attributes.get("rope_json", self.file.attrs.get("rope_json"))
        return None if attributes.get("rope", "post") == "none" or not text else text

    def rotary(self, prompt_id, layer):
        """Rotary of a layer; None if its keys are not rotated."""
        text = self.rope(prompt_id, layer)
        if text is None:
            return None
        rope = json.loads(text)
        frequencies = torch.tensor(rope["inv_freq"], dtype=torch.float64)
        return Rotary(frequencies, rope.get("layout", "half_split")) if len(frequencies) else None

    def window(self, prompt_id, layer):
        """Sliding window of a layer in tokens, 0 for none."""
        return int(self.layer(prompt_id, layer).attrs.get("sliding_window", 0))

    def _group(self, name, missing):
        try:
            return self.file[name]
        except KeyError as error:
            raise TraceError(f"{self.path}: {missing}") from error


def trace_path(given, results):
    """Path of the trace: `given`, or the one in the results' configuration. ConfigError if neither is
    there."""
    if given:
        return Path(given)
    named = results.config.get("traces") or []
    if len(named) != 1 or not Path(named[0]).exists():
        raise ConfigError(f"{results.folder}: which trace was replayed? give --trace FILE")
    return Path(named[0])
