"""Per-layer facts, measured on one token rather than read from the config.

A single token attends only to itself, so whatever its position is, no layer's output changes: between
position 0 and position p, q and k differ exactly by the layer's rotation. That shows which layers rotate,
how many dims, with which table of frequencies and in which pairing.
"""

import json
from dataclasses import dataclass

import numpy as np
import torch

from .errors import DumpError
from .hook import AttentionHook
from .release import release_of, transformers_version

PROBE_POSITIONS = (1, 97)
# Relative error of a predicted rotation; a wrong layout or table is off by more than 0.1.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
TOLERANCE_HALF = 3e-2
# Of a frequency: tables are made in float32, a model in 16 bits may round them.
TOLERANCE_THETA = 1e-2

# Classes that compute attention without the interface in older releases, and the first in which they call it.
CALLS_FROM = {"Qwen2Moe": "5.0", "GPTJ": "5.24"}
# From here on only those are known to compute it themselves, and Falcon, Bloom and MPT.
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
    """What the trace says about a layer besides its rows; `rope_json` is None where nothing rotates."""

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
        """Attributes of the layer's group; `rope_json` only where it differs from the root's."""
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
        # A module of its own for each layer type has its own copy of the configuration.
        config = getattr(module, "config", None) or model.config.get_text_config()
        for prefix, inv_freq in _frequencies(module):
            kind, theta = type_and_theta(stated_ropes(config, prefix.rstrip("_")), inv_freq)
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
    """(prefix of its name, inv_freq [pairs]) of the tables that a module itself keeps."""
    for name, buffer in module.named_buffers(recurse=False):
        if name.endswith("inv_freq") and "original" not in name:
            yield name.removesuffix("inv_freq"), buffer.detach().double().cpu().numpy()
        elif name == "embed_positions" and buffer.ndim == 2 and min(buffer.shape) > 1:
            yield "", turns_of_sinusoids(buffer.detach().double().cpu().numpy())


def turns_of_sinusoids(table):
    """inv_freq [pairs] of a table [positions, 2 pairs] of sines and cosines, as GPT-J keeps it."""
    sines, cosines = np.split(table[:, : table.shape[1] // 2 * 2], 2, axis=1)
    # Over all positions, so that the rounding of one of them does not matter.
    return np.unwrap(np.arctan2(sines, cosines), axis=0)[-1] / (len(table) - 1)


def stated_ropes(config, layer_type=""):
    """[(type, theta or None)] that a configuration states in each of two spellings.

    From transformers 5 on they stand in `rope_parameters`, where a layer type may have its own; before that
    in `rope_theta` and `rope_scaling`.
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
    """The first (type, theta) of `stated` that the table inv_freq [pairs] bears out; theta is None where none
    is. Only an unscaled table can contradict what is stated: there pair i turns theta^(-i / pairs)."""
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

    Returns None where k does not depend on the position; DumpError where no table explains it.
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
        raise DumpError(
            "none of the model's rotary tables, applied to the first dims of a head, explains how the keys "
            "change with the position (latent attention rotates the last dims): a trace could not say where "
            "a key stands, so kvdump does not record this model"
        )
    return best[2], best[3]


def check_unturned(model):
    """DumpError where keys of a model without rotary tables are turned by their position all the same.

    Of two equal tokens the second attends to nothing new, so both have the same values in every layer, unless
    positions are part of what the layer is given. Keys that differ where values do not were turned.
    """
    token = model.config.get_text_config().vocab_size // 3
    calls = []
    with AttentionHook(model, calls.append), torch.no_grad():
        model(input_ids=torch.tensor([[token, token]], device=model.device), use_cache=False)
    for call in calls:
        tolerance = TOLERANCE.get(call.k.dtype, TOLERANCE_HALF)
        if _second_differs(call.k) > tolerance >= _second_differs(call.v):
            raise DumpError(
                f"layer {call.layer}: {type(call.module).__name__} turns keys by their position, but keeps "
                "no table of frequencies that kvdump knows (inv_freq): a trace could not say where a key "
                "stands, so kvdump does not record this model"
            )


def _second_differs(rows):
    """How far row 1 of [heads, 2, dim] is from row 0, relative to it."""
    first, second = rows.double().unbind(1)
    return float((second - first).norm() / first.norm())


def measure(model):
    """{layer: LayerFacts} of every layer that calls the attention interface, from a few one-token passes."""
    tables = rope_tables(model)
    if not tables:
        check_unturned(model)
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
    except DumpError as error:
        raise DumpError(f"layer {layer}: {type(call.module).__name__}: {error}") from error
    if found:
        table, layout = found
        facts.rotary_dims = 2 * len(table.inv_freq)
        facts.rope_json = table.to_json(layout)
    return facts


def never_calls(name, version):
    """What to say of a model class that never calls the attention interface in this release."""
    never = f"{name} never calls the attention interface of transformers"
    for prefix, since in CALLS_FROM.items():
        if name.startswith(prefix) and release_of(version) < release_of(since):
            return f"{never} {version}, but from {since} on: pip install 'transformers>={since},<6'"
    if name.startswith(SILENT_MODELS) or release_of(version) >= MOST_CALL_FROM:
        return f"{never} (Falcon, Bloom and MPT do not): kvdump cannot record it"
    return f"{never} {version}; later releases call it in more models: pip install --upgrade 'transformers<6'"


def require_layers(model, facts, layers):
    """DumpError when a chosen layer never called the attention interface."""
    if not facts:
        raise DumpError(never_calls(type(model).__name__, transformers_version()))
    silent = [layer for layer in layers if layer not in facts]
    if silent:
        held = ",".join(map(str, facts))
        raise DumpError(f"layers {silent} call no attention in {type(model).__name__}; use --layers {held}")
