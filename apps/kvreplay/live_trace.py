"""A trace in memory: what a trace file would hold, with its large tensors left where the model has them.

The bytes of an HDF5 file hold attributes, small datasets and the shapes of all tensors. The engine reads
these bytes as it reads any trace file, and takes queries, keys, values and output weights from the tensors
themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np
from kvtrace.dtypes import file_type
from kvtrace.writer import SCHEMA

from .arrays import described
from .layer_inputs import LayerInputs

IN_PLACE = ("q", "k", "v", "o_proj")  # tensors [heads, rows, width] that are read where they are
ROOT = ("model", "revision", "n_layers", "rope_json", "dumper")
SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
PAGE_BYTES = 1 << 16  # by which HDF5 lets the file grow

Datasets = Mapping[str, Any]


@dataclass
class RecordedPrompt:
    """What a recorder says of a prompt, and its layers {number: (datasets, attributes)} so far.

    inputs: {number: what methods in Python see of a layer}. datasets: {name: array, list of str, or (tensor
    or array, stored type)}; groups {name: (datasets, attributes)}.
    """

    datasets: Datasets
    attributes: Mapping[str, Any]
    groups: Mapping[str, tuple[Datasets, Mapping[str, Any]]]
    layers: dict[int, tuple[Datasets, Mapping[str, Any]]] = field(default_factory=dict)
    inputs: dict[int, LayerInputs] = field(default_factory=dict)


def trace_in_memory(
    label: str, trace_id: str, root: Mapping[str, Any], prompts: Mapping[str, RecordedPrompt]
) -> dict[str, Any]:
    """The description of a trace for the engine: {"label": name, "image": bytes, "arrays": {path:
    description}}.

    label: names it in messages. root: attributes of the root. Raises TraceError if a tensor is no array of
    floats.
    """
    arrays: dict[str, Any] = {}
    with h5py.File(label, "w", driver="core", backing_store=False, block_size=PAGE_BYTES) as file:
        known = {name: root[name] for name in ROOT if root.get(name) is not None}
        _set(file, {"kvreplay_schema": SCHEMA, "trace_id": trace_id, "complete": 1, **known})
        for name, prompt in prompts.items():
            _add_prompt(file.create_group(f"prompts/{name}"), prompt, arrays)
        file.flush()
        image = file.id.get_file_image()
    return {"label": label, "image": image, "arrays": arrays}


def _add_prompt(group: h5py.Group, prompt: RecordedPrompt, arrays: dict[str, Any]) -> None:
    _set(group, prompt.attributes)
    for name, data in prompt.datasets.items():
        _add(group, name, data)
    for name, (datasets, attributes) in prompt.groups.items():
        inner = group.create_group(name)
        _set(inner, attributes)
        for own, data in datasets.items():
            _add(inner, own, data)
    for number, (datasets, attributes) in prompt.layers.items():
        _add_layer(group.create_group(f"layers/{number:03d}"), datasets, attributes, arrays)


def _add_layer(
    layer: h5py.Group, datasets: Datasets, attributes: Mapping[str, Any], arrays: dict[str, Any]
) -> None:
    _set(layer, attributes)
    in_place = () if "latent" in datasets else IN_PLACE
    for name, (data, stored) in datasets.items():
        if name not in in_place:
            _add(layer, name, data, stored)
            continue
        path = f"{layer.name}/{name}"
        arrays[path.strip("/")] = found = described(data, path)
        kind = file_type(SHORT[found["dtype"]])
        space = h5py.h5s.create_simple(tuple(found["data"].shape))
        h5py.h5d.create(layer.id, name.encode(), kind, space)  # takes no room: nothing is written


def _add(group: h5py.Group, name: str, data: Any, stored: str | None = None) -> None:
    if isinstance(data, list):  # texts: the engine does not read them
        return
    array = np.ascontiguousarray(as_stored(data, stored))
    kind = file_type(stored or array.dtype)
    dataset = h5py.h5d.create(group.id, name.encode(), kind, h5py.h5s.create_simple(array.shape))
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, array, mtype=kind)


def as_stored(data: Any, stored: str | None) -> np.ndarray:
    """A tensor or an array as a trace file stores it: numpy, bfloat16 as its bits."""
    if isinstance(data, np.ndarray):
        return data
    from kvrecord.rows_in_memory import to_stored

    return to_stored(data, stored)


def _set(group: h5py.Group, attributes: Mapping[str, Any]) -> None:
    group.attrs.update({name: value for name, value in attributes.items() if value is not None})
