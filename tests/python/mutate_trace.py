"""A small valid trace, and a seeded list of ways to damage it: first its structure, then its bytes."""

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
from mutate_structure import change_at_random

LAYER = "prompts/p0/layers/000"
TOKENS, PROMPT = 48, 32
Q_HEADS, KV_HEADS, DIM = 4, 2, 8


def write_trace(path: Path) -> None:
    draw = np.random.default_rng(1)
    with h5py.File(path, "w", libver=("earliest", "v110")) as file:
        prompt = file.create_group("prompts/p0")
        prompt["tokens"] = np.arange(TOKENS, dtype=np.int32)
        prompt["token_class"] = (np.arange(TOKENS) % 3).astype(np.uint8)
        prompt["position_ids"] = np.arange(TOKENS, dtype=np.int32)
        prompt.attrs.update(n_prompt=PROMPT, n_generated=TOKENS - PROMPT, source="test")
        layer = file.create_group(LAYER)
        for name, heads in (("q", Q_HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            x = draw.standard_normal((heads, TOKENS, DIM)).astype(np.float32)
            layer.create_dataset(name, data=x, chunks=(1, 16, DIM), fletcher32=True)
        layer.attrs.update(scaling=DIM**-0.5, sliding_window=0, softcap=0.0, rotary_dims=DIM, rope="post")
        layer.attrs.update(q_prescaled=False, source_dtype="float32")
        rope = {"type": "default", "theta": 1e4, "inv_freq": [1.0, 0.1, 0.01, 0.001]}
        file.attrs["rope_json"] = json.dumps(rope | {"layout": "half_split", "rotary_dims": DIM})
        file.attrs.update(kvreplay_schema=1, model="small", n_layers=1, trace_id="small", complete=1)


Change = Callable[[h5py.File], None]


def replaced(name: str, data, **options) -> Change:
    def change(file: h5py.File) -> None:
        if name in file:
            del file[name]
        file.create_dataset(name, data=data, **options)

    return change


def with_attribute(target: str, name: str, value) -> Change:
    def change(file: h5py.File) -> None:
        file[target].attrs[name] = value

    return change


def without_attribute(target: str, name: str) -> Change:
    return lambda file: file[target].attrs.__delitem__(name)


def with_number(name: str, number: float) -> Change:
    def change(file: h5py.File) -> None:
        file[f"{LAYER}/{name}"][-1, 5, 3] = number

    return change


def declared(name: str, shape: tuple[int, ...], **options) -> Change:
    """A dataset that is declared but never written."""

    def change(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, shape=shape, dtype=np.float32, **options)

    return change


def linked(name: str, target) -> Change:
    def change(file: h5py.File) -> None:
        if name in file:
            del file[name]
        file[name] = target

    return change


def outside_storage(file: h5py.File) -> None:
    del file[f"{LAYER}/k"]
    external = [("/dev/zero", 0, h5py.h5f.UNLIMITED)]
    file.create_dataset(f"{LAYER}/k", (KV_HEADS, TOKENS, DIM), dtype=np.float32, external=external)


def virtual(file: h5py.File) -> None:
    del file[f"{LAYER}/k"]
    layout = h5py.VirtualLayout((KV_HEADS, TOKENS, DIM), dtype=np.float32)
    layout[:] = h5py.VirtualSource("gone.h5", "k", shape=(KV_HEADS, TOKENS, DIM))
    file.create_virtual_dataset(f"{LAYER}/k", layout)


def attribute_changes() -> dict[str, Change]:
    changes: dict[str, Change] = {}
    for target, names in {
        "/": ("kvreplay_schema", "complete", "model", "n_layers", "trace_id", "rope_json"),
        "prompts/p0": ("n_prompt", "n_generated"),
        LAYER: ("scaling", "sliding_window", "rope", "source_dtype"),
    }.items():
        for name in names:
            changes[f"no {name}"] = without_attribute(target, name)
    for name, value in (
        ("scaling", np.nan), ("scaling", np.inf), ("scaling", "big"), ("scaling", 0), ("scaling", [0.3, 0.3]),
        ("scaling", np.float16(0.25)), ("sliding_window", -3), ("sliding_window", 2**60), ("softcap", np.nan),
        ("rope", 7), ("rope", "pre"), ("rotary_dims", 6), ("q_prescaled", 3), ("source_dtype", b"\xff\xfe"),
    ):  # fmt: skip
        changes[f"{name} {value}"] = with_attribute(LAYER, name, value)
    for name, value in (
        ("kvreplay_schema", 2), ("kvreplay_schema", "1"), ("complete", 0), ("n_layers", 0),
        ("n_layers", 1e300),
        ("rope_json", "{"), ("rope_json", "[" * 100_000), ("rope_json", '{"theta": 1e999}'),
        ("model", h5py.Empty("f")),
    ):  # fmt: skip
        changes[f"{name} {str(value)[:20]}"] = with_attribute("/", name, value)
    for value in (0, TOKENS + 1, TOKENS, -1, 2**62, "x"):
        changes[f"n_prompt {value}"] = with_attribute("prompts/p0", "n_prompt", value)
    return changes


def dataset_changes() -> dict[str, Change]:
    k, ones = f"{LAYER}/k", np.ones((KV_HEADS, TOKENS, DIM), np.float32)
    return {
        "k of two axes": replaced(k, ones[0]),
        "k a scalar": replaced(k, np.float32(1)),
        "k without tokens": replaced(k, ones[:, :0]),
        "k one token short": replaced(k, ones[:, 1:]),
        "k of three heads": replaced(k, np.ones((3, TOKENS, DIM), np.float32)),
        "k wider than q": replaced(k, np.ones((KV_HEADS, TOKENS, DIM + 1), np.float32)),
        "k float64": replaced(k, ones.astype(np.float64)),
        "k float16": replaced(k, ones.astype(np.float16)),
        "k big endian": replaced(k, ones.astype(">f4")),
        "k uint16 of unknown meaning": replaced(k, ones.astype(np.uint16)),
        "k complex": replaced(k, ones.astype(np.complex64)),
        "k text": replaced(k, np.full((KV_HEADS, TOKENS, DIM), b"x")),
        "k a group": lambda file: (file.__delitem__(k), file.create_group(k)),
        "k lzf": replaced(k, ones, compression="lzf"),
        "k gzip": replaced(k, ones, compression="gzip", shuffle=True),
        "k huge and chunked": declared(k, (KV_HEADS, 2**40, DIM), chunks=(1, 1024, DIM)),
        "k huge and contiguous": declared(k, (KV_HEADS, 2**31 - 1, DIM)),
        "k never written": declared(k, (KV_HEADS, TOKENS, DIM)),
        "k NaN": with_number("k", np.nan),
        "v infinite": with_number("v", np.inf),
        "q NaN": with_number("q", np.nan),
        "k in another file": outside_storage,
        "k virtual": virtual,
        "tokens too short": replaced("prompts/p0/tokens", np.arange(3)),
        "tokens floats": replaced("prompts/p0/tokens", np.ones(TOKENS)),
        "token classes too short": replaced("prompts/p0/token_class", np.zeros(3, np.uint8)),
        "token classes floats": replaced("prompts/p0/token_class", np.ones(TOKENS)),
        "positions negative": replaced("prompts/p0/position_ids", np.full(TOKENS, -1)),
        "positions beyond int32": replaced("prompts/p0/position_ids", np.full(TOKENS, 2**40)),
        "q_pos descending": replaced(f"{LAYER}/q_pos", np.arange(TOKENS)[::-1]),
        "sinks NaN": replaced(f"{LAYER}/sinks", np.full(Q_HEADS, np.nan, np.float32)),
        "out of another shape": replaced(f"{LAYER}/out", ones),
    }


def link_changes() -> dict[str, Change]:
    return {
        "a layer in a missing file": linked("prompts/p0/layers/001", h5py.ExternalLink("gone.h5", "/x")),
        "a layer in a file outside": linked("prompts/p0/layers/001", h5py.ExternalLink("/etc/hosts", "/x")),
        "k that links to itself": linked(f"{LAYER}/k", h5py.SoftLink(f"/{LAYER}/k")),
        "k a dangling link": linked(f"{LAYER}/k", h5py.SoftLink("/nowhere")),
        "a layer of another name": lambda file: file.move(LAYER, "prompts/p0/layers/x"),
        "a layer that holds itself": lambda file: linked("prompts/p0/layers/001", file["prompts"])(file),
        "no layers": lambda file: file.__delitem__(LAYER),
        "no prompts": lambda file: file.__delitem__("prompts"),
    }


def damage_structure(path: Path, change: Change) -> None:
    with h5py.File(path, "r+", libver=("earliest", "v110")) as file:
        change(file)


def damage_at_random(path: Path, draw: random.Random) -> None:
    damage_structure(
        path, lambda file: [change_at_random(file, draw) for _ in range(draw.choice((1, 1, 2, 3)))]
    )


def damage_dump(path: Path, draw: random.Random) -> None:
    """Splits the trace into one file per layer and an index of links, then damages one of the two."""
    layer_file = path.with_name("layer.h5")
    layer_file.write_bytes(path.read_bytes())
    damage_structure(path, linked(LAYER, h5py.ExternalLink("layer.h5", LAYER)))
    if draw.random() < 0.15:
        damage_structure(layer_file, linked(LAYER, h5py.ExternalLink(path.name, LAYER)))
    damage = draw.choice((damage_at_random, damage_bytes))
    damage(draw.choice((path, layer_file, layer_file)), draw)


def damage_bytes(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    kind = draw.choice(("bit", "bit", "byte", "field", "cut", "signature", "zeros", "swap"))
    at = draw.randrange(len(data))
    if kind == "bit":
        for _ in range(draw.choice((1, 4, 32))):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif kind == "byte":
        data[at] = draw.choice((0, 1, 127, 128, 255))
    elif kind == "field":
        at -= at % 8
        data[at : at + 8] = struct.pack("<Q", draw.choice((0, 1, len(data), 2**31, 2**63, 2**64 - 1)))
    elif kind == "cut":
        del data[at:]
    elif kind == "signature":  # just after the header of a node, heap or object
        found = [i for mark in (b"TREE", b"SNOD", b"HEAP", b"GCOL") for i in occurrences(data, mark)]
        at = draw.choice(found) + draw.randrange(4, 40)
        data[at] = draw.randrange(256)
    elif kind == "zeros":
        data[at : at + 512] = bytes(len(data[at : at + 512]))
    else:
        other = draw.randrange(len(data))
        data[at], data[other] = data[other], data[at]
    path.write_bytes(data)


def occurrences(data: bytes, mark: bytes) -> list[int]:
    return [i for i in range(len(data)) if data[i : i + len(mark)] == mark]


def mutations(count: int) -> list[tuple[str, Callable[[Path], None]]]:
    """`count` named ways to damage the file at a path; every call returns the same ones."""
    named = []
    for name, change in (attribute_changes() | dataset_changes() | link_changes()).items():
        named.append((name, lambda path, change=change: damage_structure(path, change)))
    drawn = (damage_at_random, damage_bytes, damage_at_random, damage_dump, damage_bytes)
    for seed in range(max(0, count - len(named))):
        damage = drawn[seed % len(drawn)]
        name = f"{damage.__name__.removeprefix('damage_')} {seed}"
        named.append((name, lambda path, seed=seed, damage=damage: damage(path, random.Random(seed))))
    return named[:count]
