"""Per-layer facts, measured on one token rather than read from the config.

A single token attends only to itself, so its position changes no layer's output: between position 0 and
position p, q and k differ exactly by the layer's rotation. That shows which layers rotate, how many dims,
with which table of frequencies and in which pairing.
"""

import json
from dataclasses import dataclass

import numpy as np
import torch
from kvbase.errors import KvreplayError, TraceError

from .hook import AttentionHook
from .release import release_of, transformers_version

PROBE_POSITIONS = (1, 97)
# Relative error of a predicted rotation; a wrong layout or table is off by more than 0.1.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
TOLERANCE_HALF = 3e-2
# Relative error of a frequency: tables are made in float32, but a 16-bit model may round them.
TOLERANCE_THETA = 1e-2

# {prefix of classes: first release in which they call the attention interface}
CALLS_FROM = {"Qwen2Moe": "5.0", "GPTJ": "5.24"}
# From this release on, only the classes above and SILENT_MODELS are known to bypass the interface.
MOST_CALL_FROM = (5, 0)
SILENT_MODELS = ("Falcon", "Bloom", "Mpt")


@dataclass
class RopeTable:
    """Frequencies of one rotary table: `inv_freq` in radians per position, one per rotated pair."""

    type: str
    theta: float | None
    inv_freq: np.ndarray
    attention_factor: float

    def to_json(self, layout):
        """The `rope_json` text of the trace schema for this table in a layout."""
        return json.dumps(
            {
                "type": self.type,
                "theta": self.theta,
                "inv_freq": [float(x) for x in self.inv_freq],
                "attention_factor": self.attention_factor,
                "layout": layout,
                "rotary_dims": 2 * len(self.inv_freq),
            }
        )


@dataclass
class LayerFacts:
    """Facts of a layer in the trace; `rope_json` is None if the layer does not rotate."""

    n_q_heads: int
    n_kv_heads: int
    head_dim: int
    v_head_dim: int
    scaling: float
    sliding_window: int
    softcap: float
    q_prescaled: bool
    source_dtype: str
    rotary_dims: int = 0
    rope_json: str | None = None

    def attributes(self, root_rope_json):
        """Attributes of the layer's group; `rope_json` only if it differs from the root's."""
        own_rope = self.rope_json if self.rope_json != root_rope_json else None
        return {
            "scaling": self.scaling,
            "sliding_window": self.sliding_window,
            "softcap": self.softcap,
            "rotary_dims": self.rotary_dims,
            "rope": "post" if self.rotary_dims else "none",
            "q_prescaled": int(self.q_prescaled),
            "source_dtype": self.source_dtype,
            "rope_json": own_rope,
        }


def rope_tables(model):
    """All rotary tables in the model, after any scaling (a model may have one per layer type)."""
    tables = []
    for module in model.modules():
        # A rotary module per layer type has its own copy of the configuration.
        config = getattr(module, "config", None) or model.config.get_text_config()
        for prefix, inv_freq in _frequencies(module):
            kind, theta = type_and_theta(ropes_in_config(config, prefix.rstrip("_")), inv_freq)
            tables.append(
                RopeTable(
                    type=kind,
                    theta=theta,
                    inv_freq=inv_freq,
                    attention_factor=float(getattr(module, f"{prefix}attention_scaling", 1.0)),
                )
            )
    return tables


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
    """(table, layout) that turns k at position 0 [Hkv, D] into k at each position {p: [Hkv, D]}.

    None if k does not depend on the position; TraceError if no table explains the difference.
    """

    def error(predict):
        norm = np.linalg.norm(at_zero)
        return max(np.linalg.norm(predict(p) - k) / norm for p, k in at_position.items())

    if error(lambda p: at_zero) < tolerance:
        return None
    fits = []
    for table in tables:
        for layout in ("half_split", "interleaved"):
            turned = error(lambda p, t=table, how=layout: rotate(at_zero, p * t.inv_freq, how))
            fits.append((turned, len(fits), table, layout))
    best = min(fits, default=None)
    if best is None or best[0] > tolerance:
        raise TraceError(
            "none of the model's rotary tables, applied to the first dims of a head, explains how the keys "
            "change with the position (latent attention rotates the last dims): a trace could not record the "
            "rotation, so the recorder does not record this model"
        )
    return best[2], best[3]


def check_keys_not_rotated(model):
    """TraceError if keys of a model without rotary tables depend on their position nevertheless.

    Two equal tokens have equal values in every layer, because the second one attends to nothing new, unless
    positions are part of the layer's input. Keys that differ while values are equal have been rotated.
    """
    token = model.config.get_text_config().vocab_size // 3
    calls = []
    with AttentionHook(model, calls.append), torch.no_grad():
        model(input_ids=torch.tensor([[token, token]], device=model.device), use_cache=False)
    for call in calls:
        tolerance = TOLERANCE.get(call.k.dtype, TOLERANCE_HALF)
        if _row_difference(call.k) > tolerance >= _row_difference(call.v):
            raise TraceError(
                f"layer {call.layer}: {type(call.module).__name__} turns keys by their position, but has no "
                "known table of frequencies (inv_freq): a trace could not hold the rotation, so the recorder "
                "refuses this model"
            )


def _row_difference(rows):
    """Relative difference of row 1 of [heads, 2, dim] from row 0."""
    first, second = rows.double().unbind(1)
    return float((second - first).norm() / first.norm())


def measure(model):
    """{layer: LayerFacts} for every layer that calls the attention interface, from a few one-token passes."""
    tables = rope_tables(model)
    if not tables:
        check_keys_not_rotated(model)
    calls = {p: {} for p in (0, *(PROBE_POSITIONS if tables else ()))}
    seen = {}
    with AttentionHook(model, lambda call: seen.update({call.layer: call})), torch.no_grad():
        token = torch.tensor([[model.config.get_text_config().vocab_size // 3]], device=model.device)
        for position in calls:
            seen = calls[position]
            # Models without rotary tables may not take position_ids at all.
            where = {"position_ids": torch.tensor([[position]], device=model.device)} if tables else {}
            model(input_ids=token, use_cache=False, **where)
    return {layer: _layer_facts(layer, calls, tables) for layer in sorted(calls[0])}


def _layer_facts(layer, calls, tables):
    call = calls[0][layer]
    facts = LayerFacts(
        n_q_heads=call.q.shape[0],
        n_kv_heads=call.k.shape[0],
        head_dim=call.q.shape[-1],
        v_head_dim=call.v.shape[-1],
        scaling=call.scaling,
        sliding_window=call.sliding_window,
        softcap=call.softcap,
        q_prescaled=call.q_prescaled,
        source_dtype=str(call.k.dtype).removeprefix("torch."),
    )
    keys = {p: made[layer].k[:, 0].double().cpu().numpy() for p, made in calls.items()}
    if not tables:
        return facts
    try:
        tolerance = TOLERANCE.get(call.k.dtype, TOLERANCE_HALF)
        found = match_rope(keys.pop(0), keys, tables, tolerance)
    except KvreplayError as error:
        raise TraceError(f"layer {layer}: {type(call.module).__name__}: {error}") from error
    if found:
        table, layout = found
        facts.rotary_dims = 2 * len(table.inv_freq)
        facts.rope_json = table.to_json(layout)
    return facts


def unsupported_class_message(name, version):
    """Message for a model class that never calls the attention interface in this release."""
    never = f"{name} never calls the attention interface of transformers"
    for prefix, since in CALLS_FROM.items():
        if name.startswith(prefix) and release_of(version) < release_of(since):
            return f"{never} {version}, but from {since} on: pip install 'transformers>={since},<6'"
    if name.startswith(SILENT_MODELS) or release_of(version) >= MOST_CALL_FROM:
        return f"{never} (Falcon, Bloom and MPT do not): the recorder cannot record it"
    return f"{never} {version}; later releases call it in more models: pip install --upgrade 'transformers<6'"


def require_layers(model, facts, layers):
    """TraceError if a chosen layer never called the attention interface."""
    if not facts:
        raise TraceError(unsupported_class_message(type(model).__name__, transformers_version()))
    silent = [layer for layer in layers if layer not in facts]
    if silent:
        held = ",".join(map(str, facts))
        raise TraceError(f"layers {silent} call no attention in {type(model).__name__}; use --layers {held}")
