"""What a trace says about itself: attributes, shapes and defaults, as the engine reads them.

The engine's side of this page is lib/trace/trace_metadata.cpp; tests hold the two together.
"""

import math
from dataclasses import dataclass
from typing import Any

from h5py import h5t

from . import rope
from .shapes import MOST_LAYERS, MOST_TOKENS, Shapes, check_shapes
from .tensors import Tensor, expect_integers, expect_shape, open_array, open_tensor
from .walk import Node, fail

# Factors beyond these bounds overflow or vanish in single precision; no model has them.
SMALLEST_FACTOR, LARGEST_FACTOR = 1e-12, 1e12


@dataclass(frozen=True)
class LayerFacts:
    """Everything of a layer but its numbers."""

    number: int
    shapes: Shapes
    dtype: str  # the keys' type
    source_dtype: str
    scaling: float
    sliding_window: int  # 0: none
    softcap: float  # 0: none
    q_prescaled: bool
    rope: dict[str, Any] | None  # None: no rotary embedding, or not recorded
    rope_recorded: bool
    has_q_pos: bool
    has_sinks: bool
    has_out: bool


@dataclass(frozen=True)
class PromptFacts:
    """Everything of a prompt but its layers."""

    id: str
    n_tokens: int
    n_prompt: int
    n_generated: int
    question_from: int | None
    source: str


@dataclass(frozen=True)
class FileFacts:
    """What the root says. `trace_id` is empty where the file has none; `layers` are the numbers of the layers
    that each prompt holds."""

    trace_id: str
    model: str
    revision: str
    created_utc: str
    dumper: str
    n_layers: int
    layers: dict[str, list[int]]


def layer_path(prompt: str, number: int) -> str:
    """prompts/p0/layers/007"""
    return f"prompts/{prompt}/layers/{number:03d}"


# ---- the file


def read_file(root: Node) -> FileFacts:
    """The root's attributes and the names of prompts and layers; no layer is opened."""
    _check_schema(root)
    facts = {name: root.printable_text(name, "") for name in ("trace_id", "revision", "created_utc")}
    layers = read_layer_numbers(root)
    return FileFacts(
        **facts,
        model=root.printable_text("model", "unknown"),
        dumper=_first_text(root, ("dumper", "dumper_version")),
        n_layers=_count_layers(root, layers),
        layers=layers,
    )


def read_layer_numbers(root: Node) -> dict[str, list[int]]:
    """{prompt: numbers of its layers}, both ascending."""
    if not root.has("prompts"):
        fail(f"{root.file}: /prompts", "is missing")
    prompts = root.child("prompts")
    found = {name: _layer_numbers(prompts.child(name)) for name in prompts.members()}
    if not found:
        fail(prompts.where, "holds no prompts")
    return found


def _check_schema(root: Node) -> None:
    if not root.has_attribute("kvreplay_schema"):
        fail(
            str(root.file),
            "is an HDF5 file but no trace: the root has no attribute kvreplay_schema = 1 (docs/formats.md)",
        )
    schema = root.number("kvreplay_schema")
    if schema != 1:
        fail(str(root.file), f"attribute kvreplay_schema is {schema:g}, this version reads schema 1")
    complete = root.number("complete")
    if complete not in (None, 1):
        fail(
            str(root.file),
            f"is an unfinished dump (attribute complete is {complete:g}). Finish it with kvreplay record "
            "--resume",
        )


def _first_text(root: Node, names: tuple[str, ...]) -> str:
    return next((root.printable_text(name, "") for name in names if root.has_attribute(name)), "")


def _layer_numbers(prompt: Node) -> list[int]:
    if not prompt.is_group:
        fail(prompt.where, "is not a group")
    if not prompt.has("layers"):
        fail(f"{prompt.where}/layers", "is missing")
    layers = prompt.child("layers")
    numbers = []
    for name in layers.members():
        if len(name) != 3 or not name.isascii() or not name.isdigit():
            fail(f"{layers.where}/{name}", "is no layer: their names are three digits, e.g. 007")
        numbers.append(int(name))
    if not numbers:
        fail(layers.where, "holds no layers")
    return numbers


def _count_layers(root: Node, layers: dict[str, list[int]]) -> int:
    last = max(numbers[-1] for numbers in layers.values())
    count = root.integer("n_layers", 1, MOST_LAYERS)
    if count is not None and count <= last:
        fail(root.where, f"attribute n_layers is {count}, but the file holds layer {last}")
    return last + 1 if count is None else count


# ---- prompts


def read_prompt(root: Node, prompt: str, n_tokens: int) -> PromptFacts:
    """What a prompt says, whose layers hold `n_tokens` tokens."""
    node = root.child("prompts").child(prompt)
    n_prompt = node.integer("n_prompt", 1, n_tokens)
    n_prompt = n_tokens if n_prompt is None else n_prompt
    n_generated = node.integer("n_generated", 0, MOST_TOKENS)
    for name in ("tokens", "token_class", "position_ids"):
        if node.has(name):
            expect_integers(open_array(node, name), n_tokens)
    return PromptFacts(
        id=prompt,
        n_tokens=n_tokens,
        n_prompt=n_prompt,
        n_generated=n_tokens - n_prompt if n_generated is None else n_generated,
        question_from=node.integer("question_from", 1, n_tokens - 1),
        source=node.text("source") or "",
    )


# ---- layers


def read_layer(root: Node, prompt: str, number: int) -> LayerFacts:
    """What a layer says. TraceError where it contradicts itself."""
    node = root.at(layer_path(prompt, number))
    if not node.is_group:
        fail(node.where, "is not a group")
    source_dtype = node.text("source_dtype") or ""
    for name in ("q", "k", "v"):
        if not node.has(name):
            fail(f"{node.where}/{name}", "is missing. A layer needs q, k and v")
    tensors = {name: open_tensor(node, name, source_dtype) for name in ("q", "k", "v")}
    shapes = check_shapes({n: t.shape for n, t in tensors.items()}, lambda n: tensors[n].node.where)
    extras = _check_extras(node, shapes, source_dtype)
    found, recorded = _read_rope(root, node, shapes.head_dim)
    return LayerFacts(
        number=number,
        shapes=shapes,
        dtype=tensors["k"].type.name,
        source_dtype=source_dtype or tensors["k"].type.name,
        scaling=_scaling(node, shapes.head_dim),
        sliding_window=node.integer("sliding_window", 0, MOST_TOKENS) or 0,
        softcap=_softcap(node),
        q_prescaled=node.integer("q_prescaled", 0, 1) == 1,
        rope=found,
        rope_recorded=recorded,
        **extras,
    )


def open_layer_tensor(root: Node, prompt: str, number: int, name: str) -> Tensor:
    """q, k, v or out of a layer."""
    node = root.at(layer_path(prompt, number))
    return open_tensor(node, name, node.text("source_dtype") or "")


def _check_extras(node: Node, shapes: Shapes, source_dtype: str) -> dict[str, bool]:
    has = {name: node.has(name) for name in ("q_pos", "sinks", "out")}
    if has["q_pos"]:
        expect_integers(open_array(node, "q_pos"), shapes.n_query_rows)
    elif shapes.n_query_rows != shapes.n_tokens:
        fail(
            f"{node.where}/q",
            f"has {shapes.n_query_rows} rows for {shapes.n_tokens} tokens: strided queries need the "
            "dataset q_pos beside it (axes are [heads, tokens, dim])",
        )
    if has["sinks"]:
        sinks = open_array(node, "sinks")
        expect_shape(sinks, (shapes.q_heads,))
        if sinks.file_type.get_class() != h5t.FLOAT:
            fail(sinks.node.where, "does not hold floating point numbers")
    if has["out"]:
        out = open_tensor(node, "out", source_dtype)
        expect_shape(out, (shapes.q_heads, shapes.n_query_rows, shapes.v_head_dim))
    return {f"has_{name}": there for name, there in has.items()}


def check_factor(where: str, name: str, value: float) -> float:
    """A factor that single precision can hold. TraceError elsewhere."""
    if not SMALLEST_FACTOR <= value <= LARGEST_FACTOR:
        fail(where, f"{name} is {value:g}, it must be from {SMALLEST_FACTOR:g} to {LARGEST_FACTOR:g}")
    return value


def _scaling(node: Node, head_dim: int) -> float:
    value = node.number("scaling")
    if value is None:
        fail(
            node.where,
            "the attribute scaling is missing. Write the factor of q.k, often 1/sqrt(head_dim) = "
            f"{1 / math.sqrt(head_dim):.6g}",
        )
    return check_factor(node.where, "attribute scaling", value)


def _softcap(node: Node) -> float:
    value = node.number("softcap") or 0.0
    return check_factor(node.where, "attribute softcap", value) if value else 0.0


def _read_rope(root: Node, node: Node, head_dim: int) -> tuple[dict[str, Any] | None, bool]:
    """(rotary embedding or None, whether the trace says anything of it)."""
    kind = node.text("rope")
    rotary_dims = node.integer("rotary_dims", 0, head_dim)
    if kind not in (None, "post", rope.NONE):
        fail(node.where, f'attribute rope is "{kind}", it must be post (q and k are rotated) or none')
    if kind == rope.NONE or rotary_dims == 0:
        return None, True
    # The layer's own, else the root's, else that of the file that an external link leads to.
    for at in (node, root, node.home):
        text = at.text("rope_json")
        if text is not None:
            if text in ("", "null"):
                return None, False
            where = f"{at.where}: attribute rope_json"
            return rope.parse_rope(text, where, head_dim, rotary_dims), True
    return None, False
