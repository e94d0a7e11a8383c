"""Per-layer facts, measured on one token rather than read from the config.

A single token attends only to itself, so its position changes no layer's output: between position 0 and
position p, q and k differ exactly by the layer's rotation. That shows which layers rotate, how many dims,
with which table of frequencies and in which pairing.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from kvbase.errors import TraceError

from .hook import AttentionHook
from .release import release_of, transformers_version
from .rotary import (
    TOLERANCE,
    TOLERANCE_HALF,
    RopeTable,
    UnknownRotation,
    match_rope,
    rope_json,
    rope_tables,
    rotate,
    tolerance_at,
)

PROBE_POSITIONS = (1, 97)
# {prefix of classes: first release in which they call the attention interface}
CALLS_FROM = {"Qwen2Moe": "5.0", "GPTJ": "5.24"}
# From this release on, only the classes above and SILENT_MODELS are known to bypass the interface.
MOST_CALL_FROM = (5, 0)
SILENT_MODELS = ("Falcon", "Bloom", "Mpt")


MOST_RANGES = 32  # ranges of positions in a rope_json: an attribute holds 64 KiB


@dataclass(frozen=True)
class LayerFacts:
    """Facts of a layer in the trace. spans: [(first position, RopeTable)] of its rotation, in `layout`; empty
    if the layer does not rotate, or in a way that a trace cannot say: `unknown` is then the reason."""

    n_q_heads: int
    n_kv_heads: int
    head_dim: int
    v_head_dim: int
    scaling: float
    sliding_window: int
    attention_chunk: int
    softcap: float
    q_prescaled: bool
    source_dtype: str
    spans: tuple[tuple[int, RopeTable], ...] = ()
    layout: str = ""
    unknown: str = ""
    kv_layer: int | None = None  # the layer whose keys and values it reads
    # Keys of the probe: at position 0 [Hkv, D].
    key: Any = field(default=None, repr=False)

    @property
    def rope_json(self):
        """The `rope_json` text; None if there is no rotation to say."""
        return rope_json(self.layout, self.spans) if self.spans else None

    def attributes(self, root_rope_json):
        """Attributes of the layer's group; `rope_json` only if it differs from the root's."""
        own_rope = self.rope_json if self.rope_json != root_rope_json else None
        rotated = "unknown" if self.unknown else "post" if self.spans else "none"
        return {
            "scaling": self.scaling,
            "sliding_window": self.sliding_window,
            "attention_chunk": self.attention_chunk or None,
            "softcap": self.softcap,
            "rotary_dims": 2 * len(self.spans[0][1].inv_freq) if self.spans else None if self.unknown else 0,
            "rope": rotated,
            "q_prescaled": int(self.q_prescaled),
            "source_dtype": self.source_dtype,
            "rope_json": own_rope,
            "kv_layer": self.kv_layer,
        }


def turned_by_no_table(model):
    """{layer: why its rotation is unknown} in a model without rotary tables.

    Two equal tokens have equal values in every layer, because the second one attends to nothing new, unless
    positions are part of the layer's input. Keys that differ while values are equal have been rotated.
    """
    token = model.config.get_text_config().vocab_size // 3
    calls = []
    with AttentionHook(model, calls.append), torch.no_grad():
        model(input_ids=torch.tensor([[token, token]], device=model.device), use_cache=False)
    return {
        call.layer: "keys turn with their position, but the model has no table of frequencies (inv_freq)"
        for call in calls
        if _row_difference(call.k) > _tolerance(call) >= _row_difference(call.v)
    }


def _tolerance(call):
    return TOLERANCE.get(call.k.dtype, TOLERANCE_HALF)


def _row_difference(rows):
    """Relative difference of row 1 of [heads, 2, dim] from row 0."""
    first, second = rows.double().unbind(1)
    return float((second - first).norm() / first.norm())


def measure(model):
    """{layer: LayerFacts} for every layer that calls the attention interface, from a few one-token passes."""
    tables = rope_tables(model)
    unknown = {} if tables else turned_by_no_table(model)
    calls, tables = _probes(model, (0, *(PROBE_POSITIONS if tables else ())), rotates=bool(tables))
    facts = {layer: _layer_facts(calls[0][layer]) for layer in sorted(calls[0])}
    for layer, owner in _owners(calls[0]).items():
        facts[layer] = replace(facts[layer], kv_layer=owner)
    for layer, why in unknown.items():
        facts[layer] = replace(facts[layer], unknown=why)
    if len(calls) == 1:
        return facts
    return {layer: _rotation(fact, layer, calls, tables) for layer, fact in facts.items()}


def _probes(model, positions, rotates=True):
    """One token at each position: {position: {layer: AttentionCall}} and {position: the tables in use}."""
    calls, tables = {p: {} for p in positions}, {}
    seen = {}
    with AttentionHook(model, lambda call: seen.update({call.layer: call})), torch.no_grad():
        token = torch.tensor([[model.config.get_text_config().vocab_size // 3]], device=model.device)
        for position in calls:
            seen = calls[position]
            # Models without rotary tables may not take position_ids at all.
            where = {"position_ids": torch.tensor([[position]], device=model.device)} if rotates else {}
            model(input_ids=token, use_cache=False, **where)
            tables[position] = rope_tables(model)
    return calls, tables


def _owners(calls):
    """{layer: the earlier layer whose keys and values it reads}."""
    owners = {}
    for layer in sorted(calls):
        for earlier in sorted(set(calls) - set(owners)):
            if earlier < layer and _reads_kv_of(calls[layer], calls[earlier]):
                owners[layer] = earlier
                break
    return owners


def _reads_kv_of(call, other):
    return all(torch.equal(getattr(call, name), getattr(other, name)) for name in "kv") and bool(call.k.any())


def _layer_facts(call):
    return LayerFacts(
        n_q_heads=call.q.shape[0],
        n_kv_heads=call.k.shape[0],
        head_dim=call.q.shape[-1],
        v_head_dim=call.v.shape[-1],
        scaling=call.scaling,
        sliding_window=call.sliding_window,
        attention_chunk=call.attention_chunk,
        softcap=call.softcap,
        q_prescaled=call.q_prescaled,
        source_dtype=str(call.k.dtype).removeprefix("torch."),
        key=_key(call),
    )


def _key(call):
    """The part of a probe's key that may be rotated, [Hkv, D]."""
    keys = call.k[:, 0] if call.latent is None else call.latent.rope_k
    return keys.double().cpu().numpy()


def _rotation(facts, layer, calls, tables):
    """The layer's facts with its rotation, from the keys of one token at several positions."""
    keys = {p: _key(made[layer]) for p, made in calls.items()}
    try:
        at_zero = keys.pop(0)
        found = match_rope(at_zero, keys, {p: tables[p] for p in keys}, _tolerance(calls[0][layer]))
    except UnknownRotation as error:
        return replace(facts, unknown=str(error))
    if not found:
        return facts
    return replace(facts, spans=((0, tables[min(keys)][found[0]]),), layout=found[1])


def in_use(model, facts, spans, last_position):
    """{layer: LayerFacts} of a prompt. spans: the tables that the model used (TablesInUse). A table that
    changed is compared with how a token's key turns at the prompt's last position."""
    changed = {
        layer: spans[fact.spans[0][1].name]
        for layer, fact in facts.items()
        if fact.spans and not _as_measured(fact, spans)
    }
    if not changed:
        return facts
    at_last = _probes(model, (0, last_position))[0][last_position]
    return {
        layer: _with_spans(fact, changed[layer], at_last[layer], last_position) if layer in changed else fact
        for layer, fact in facts.items()
    }


def _as_measured(fact, spans):
    used = spans.get(fact.spans[0][1].name, [])
    return not used or (len(used) == 1 and used[0][1].equals(fact.spans[0][1]))


def _with_spans(fact, spans, call, position):
    """The layer's facts with the tables that were in use, if they explain the key at `position`."""
    if len(spans) > MOST_RANGES:
        return replace(fact, spans=(), unknown=f"its table of frequencies changed {len(spans) - 1} times")
    turned = rotate(fact.key, position * spans[-1][1].inv_freq, fact.layout)
    size = max(float((fact.key**2).sum()) ** 0.5, 1e-300)
    if float(((turned - _key(call)) ** 2).sum()) ** 0.5 / size > tolerance_at(position, call.k.dtype):
        return replace(fact, spans=(), unknown=f"no table explains how keys turn at position {position}")
    return replace(fact, spans=tuple(spans))


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
