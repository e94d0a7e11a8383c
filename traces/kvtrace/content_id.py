"""Identity of a trace by its content, for files that carry none; the engine's is lib/trace/content_id.cpp."""

import hashlib
from collections.abc import Callable
from typing import Any

from .metadata import FileFacts, LayerFacts, layer_path, read_layer, read_prompt
from .tensors import Array, array_sha256, describe, open_array
from .walk import Node, fail

_OF_LAYER = ("k", "lookahead_q", "out", "q", "q_pos", "repeat_in_norm", "repeat_k", "repeat_q", "sinks", "v")
Digest = Callable[[Array], str]


def content_id(root: Node, file: FileFacts, digest: Digest = array_sha256) -> str:
    """Hex SHA-256 over everything that a replay depends on; `digest`: that of an array's stored bytes."""
    total = hashlib.sha256()
    for line in _lines(root, file, digest):
        total.update(f"{line}\n".encode())
    return total.hexdigest()


def _lines(root: Node, file: FileFacts, digest: Digest):
    yield f"{file.model} {file.n_layers}"
    for prompt, numbers in file.layers.items():
        layers = [read_layer(root, prompt, number) for number in numbers]
        _check_same_length(root, prompt, layers)
        facts = read_prompt(root, prompt, layers[0].shapes.n_tokens)
        yield f"{prompt} {facts.n_prompt}"
        yield from _array_lines(root, f"prompts/{prompt}", ("position_ids", "token_class", "tokens"), digest)
        if root.child("prompts").child(prompt).has("repeat"):
            yield from _array_lines(root, f"prompts/{prompt}/repeat", ("ctx", "rows", "tokens"), digest)
        if root.child("prompts").child(prompt).has("lookahead"):
            yield from _array_lines(root, f"prompts/{prompt}/lookahead", ("tokens",), digest)
        for layer in layers:
            yield _layer_line(layer)
            where = layer_path(prompt, layer.number)
            yield from _array_lines(root, where, _OF_LAYER, digest)


def _check_same_length(root: Node, prompt: str, layers: list[LayerFacts]) -> None:
    first = layers[0]
    for layer in layers:
        if layer.shapes.n_tokens != first.shapes.n_tokens:
            node = root.at(layer_path(prompt, layer.number))
            fail(
                f"{node.where}/k",
                f"has {layer.shapes.n_tokens} tokens, but layer {first.number} of the same prompt has "
                f"{first.shapes.n_tokens}",
            )


def _array_lines(root: Node, path: str, names: tuple[str, ...], digest: Digest):
    group = root.at(path)
    for name in names:
        if group.has(name):
            array = open_array(group, name)
            yield f"{name} {array.element_bytes} {describe(array.shape)} {digest(array)}"


def _layer_line(layer: LayerFacts) -> str:
    return (
        f"{layer.number} {layer.dtype} {shortest(layer.scaling)} {layer.sliding_window} "
        f"{shortest(layer.softcap)} {str(layer.q_prescaled).lower()} {_rope_line(layer)}"
    )


def _rope_line(layer: LayerFacts) -> str:
    found: dict[str, Any] | None = layer.rope
    if found is None:
        return "none" if layer.rope_recorded else "unknown"
    layout = "half" if found["layout"] == "half_split" else "pairs"
    frequencies = " ".join(shortest(value) for value in found["inv_freq"])
    return f"{shortest(found['attention_factor'])} {layout} {found['rotary_dims']} {frequencies}"


def shortest(value: float) -> str:
    """The shortest decimal that reads as the same double, without ".0" behind whole numbers."""
    return repr(float(value)).removesuffix(".0")
