"""Rotary embeddings of a model: its tables of frequencies, which of them a layer uses, and their change.

Some tables change with the length of what is read (LongRoPE, dynamic NTK), so each recording watches them.
"""

import json
from dataclasses import dataclass

import numpy as np
import torch

# Relative error of a predicted rotation; a wrong layout or table is off by more than 0.1.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
TOLERANCE_HALF = 3e-2
# Relative error of a frequency: tables are made in float32, but a 16-bit model may round them.
TOLERANCE_THETA = 1e-2
LAYOUTS = ("half_split", "interleaved")


class UnknownRotation(Exception):
    """Keys depend on their position in a way that a trace cannot say."""


@dataclass(frozen=True)
class RopeTable:
    """Frequencies of one rotary table: `inv_freq` in radians per position, one per rotated pair. `name`: the
    module that holds it and the prefix of its buffer, which stay while the numbers change."""

    type: str
    theta: float | None
    inv_freq: np.ndarray
    attention_factor: float
    name: tuple = ()

    def numbers(self):
        """What `rope_json` says of the table's numbers."""
        return {
            "inv_freq": [float(x) for x in self.inv_freq],
            "attention_factor": self.attention_factor,
        }

    def equals(self, other):
        """Whether both turn a row equally."""
        return self.attention_factor == other.attention_factor and np.array_equal(
            self.inv_freq, other.inv_freq
        )


def rope_json(layout, spans):
    """The `rope_json` text of the trace schema. spans: [(first position, RopeTable)], ascending; one, or one
    for each range of positions that were turned by a table of their own."""
    first = spans[0][1]
    said = {"type": first.type, "theta": first.theta, **first.numbers(), "layout": layout}
    said["rotary_dims"] = 2 * len(first.inv_freq)
    if len(spans) > 1:
        said["ranges"] = [{"from": start, **table.numbers()} for start, table in spans]
    return json.dumps(said)


def rope_tables(model):
    """All rotary tables in the model, after any scaling (a model may have one per layer type)."""
    return [table for name, module in model.named_modules() for table in _tables_of(name, module, model)]


def _tables_of(name, module, model):
    # A rotary module per layer type has its own copy of the configuration.
    config = getattr(module, "config", None) or model.config.get_text_config()
    for prefix, inv_freq in _frequencies(module):
        kind, theta = type_and_theta(ropes_in_config(config, prefix.rstrip("_")), inv_freq)
        factor = float(getattr(module, f"{prefix}attention_scaling", 1.0))
        yield RopeTable(kind, theta, inv_freq, factor, (name, prefix))


class TablesInUse:
    """The rotary tables of a model while it reads one prompt.

    `position()` is the first position of the forward pass in work. `spans` holds, for each table's name,
    [(first position, RopeTable)]: one entry, or several if the model changed the table between two passes.
    """

    def __init__(self, model, position):
        self.model = model
        self.position = position
        self.spans = {}
        turning = [(name, part) for name, part in model.named_modules() if _is_stored(part)]
        self.handles = [part.register_forward_hook(self._on_use(name)) for name, part in turning]

    @property
    def changed(self):
        """Whether a table has changed since the first pass."""
        return any(len(spans) > 1 for spans in self.spans.values())

    def _on_use(self, name):
        def note(module, args, output):
            for table in _tables_of(name, module, self.model):
                spans = self.spans.setdefault(table.name, [])
                if not spans or not spans[-1][1].equals(table):
                    spans.append((self.position(), table))

        return note


def _is_stored(module):
    return any(name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False))


def _frequencies(module):
    """Yields (prefix of the name, inv_freq [pairs]) of each table that the module itself stores."""
    for name, buffer in module.named_buffers(recurse=False):
        if name.endswith("inv_freq") and "original" not in name:
            yield name.removesuffix("inv_freq"), buffer.detach().double().cpu().numpy()
        elif name == "embed_positions" and buffer.ndim == 2 and min(buffer.shape) > 1:
            yield "", frequencies_of_sinusoids(buffer.detach().double().cpu().numpy())


def frequencies_of_sinusoids(table):
    """inv_freq [pairs] from a table [positions, 2 pairs] of sines and cosines, as GPT-J stores it."""
    sines, cosines = np.split(table[:, : table.shape[1] // 2 * 2], 2, axis=1)
    # All positions are used, so the rounding of a single one does not matter.
    return np.unwrap(np.arctan2(sines, cosines), axis=0)[-1] / (len(table) - 1)


def ropes_in_config(config, layer_type=""):
    """[(type, theta or None)] that a configuration states, once per spelling.

    transformers 5 uses `rope_parameters`, in which a layer type may have its own entry; earlier releases use
    `rope_theta` and `rope_scaling`.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    parameters = parameters.get(layer_type) or parameters
    scaling = getattr(config, "rope_scaling", None) or {}
    usual_theta = getattr(config, "default_theta", None)
    return [
        (parameters.get("rope_type", "default"), parameters.get("rope_theta", usual_theta)),
        (scaling.get("rope_type") or scaling.get("type") or "default", getattr(config, "rope_theta", None)),
    ]


def type_and_theta(stated, inv_freq):
    """The first (type, theta) of `stated` that agrees with the table inv_freq [pairs]; theta is None if none
    does. Only an unscaled table can contradict a statement: its pair i turns by theta^(-i / pairs)."""
    powers = -np.arange(len(inv_freq)) / len(inv_freq)
    for kind, theta in stated:
        if theta is None:
            continue
        if kind != "default" or np.allclose(inv_freq, float(theta) ** powers, rtol=TOLERANCE_THETA):
            return kind, float(theta)
    return stated[0][0], None


def rotate(x, angles, layout):
    """Rotate the first 2 len(angles) dims of x [..., D] by `angles` (radians per pair).

    `half_split` pairs dim i with i + r/2, `interleaved` pairs 2i with 2i + 1.
    """
    half = len(angles)
    turned = x.copy()
    if layout == "half_split":
        first, second = slice(0, half), slice(half, 2 * half)
    else:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    turned[..., first] = x[..., first] * np.cos(angles) - x[..., second] * np.sin(angles)
    turned[..., second] = x[..., second] * np.cos(angles) + x[..., first] * np.sin(angles)
    return turned


def match_rope(at_zero, at_position, tables, tolerance):
    """(number of a table, layout) that turn k at position 0 [Hkv, D] into k at each position {p: [Hkv, D]}.

    tables: {p: the model's tables while it read that position}. None if k does not depend on the position;
    UnknownRotation if no table explains the difference.
    """

    def error(predict):
        norm = np.linalg.norm(at_zero)
        return max(np.linalg.norm(predict(p) - k) / norm for p, k in at_position.items())

    if error(lambda p: at_zero) < tolerance:
        return None
    fits = []
    for number, table in enumerate(next(iter(tables.values()))):
        for layout in LAYOUTS if 2 * len(table.inv_freq) <= at_zero.shape[-1] else ():
            turned = error(lambda p, n=number, how=layout: rotate(at_zero, p * tables[p][n].inv_freq, how))
            fits.append((turned, len(fits), number, layout))
    best = min(fits, default=None)
    if best is None or best[0] > tolerance:
        raise UnknownRotation(
            "none of the model's rotary tables, applied to the first dims of a head, explains how keys "
            "change with the position (latent attention rotates the last dims; others normalise rotated keys)"
        )
    return best[2], best[3]


def tolerance_at(position, dtype):
    """Relative error of a row that is turned to `position`: angles are made in single precision."""
    return TOLERANCE.get(dtype, TOLERANCE_HALF) + position * 2.0**-22
