"""Saves of vLLM's ExampleConnector, once SharedStorageConnector: keys and values, a file for each layer.

    <shared_storage_path>/<hash of the token ids>/model.layers.0.self_attn.attn.safetensors   "kv_cache"

A save holds the whole blocks of a prompt, without the block of its last token, and no queries. kv_cache is

    [2, T, Hkv * D]     keys, then values; the heads of a token side by side (blocks [2, blocks, ...])
    [T, 2, Hkv, D]      keys, then values of each token (blocks [blocks, 2, ...])
    [T, Hkv, 2 * D]     keys and values of a head side by side (blocks [blocks, Hkv, ..., 2 * D])
    [T, C]              the latents of a model with MLA, which is refused

    import_file("saves/9b1d0e7a3c", "mine.h5", queries="q.safetensors", sidecar={"head_dim": 128})
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from kvtrace.bits import Stored, stored

from ..trace import LayerArrays
from .arrays import ArrayFile, decoded_array, fail, open_arrays
from .format_type import Format, Found, FoundPrompt
from .heads import kv_head_dim, query_positions, split_heads
from .queries import QUERIES, numbers_of_queries, read_queries
from .sidecar import Sidecar

CACHE, SUFFIX = "kv_cache", ".safetensors"
NO_QUERIES = (
    "holds no queries, like every save of vLLM's connector: give their files with --queries (in Python "
    "queries=...), or record the model with `kvreplay record`"
)


def _recognises(sources: list[Path]) -> bool:
    try:
        files = _files(sources)
        return bool(files) and all(CACHE in open_arrays(path) for path in files[:1])
    except OSError:
        return False


def _files(sources: list[Path]) -> list[Path]:
    """Files of layers among the sources: a save's folder, its files, or the folder of one save."""
    found = []
    for source in sources:
        if source.is_dir():
            found += sorted(source.glob(f"*{SUFFIX}")) or sorted(source.glob(f"*/*{SUFFIX}"))
        elif source.suffix == SUFFIX and source.is_file():
            found.append(source)
    return found


def _read(sources: list[Path], sidecar: Sidecar, queries: list[Path]) -> Found:
    files = _files(sources)
    if not files:
        fail(sources[0], f"holds no save of vLLM's connector: files *{SUFFIX} of layers")
    folders = sorted({path.parent for path in files})
    if len(folders) > 1:
        fail(
            sources[0],
            f"holds saves of {len(folders)} prompts, a folder each: import one folder at a time, here "
            f"{folders[0]}",
        )
    layers: dict[int, ArrayFile] = {}
    for path in files:
        number = _number(path)
        if number in layers:
            fail(path, f"is layer {number}, as {layers[number].path.name} is: remove one of them")
        layers[number] = open_arrays(path)
    if not queries:
        fail(sources[0], NO_QUERIES)
    return Found([FoundPrompt(SavedLayers(layers, [open_arrays(path) for path in queries], sidecar))])


def _number(path: Path) -> int:
    """The layer's number, the only number among the parts of its name."""
    numbers = [int(part) for part in path.name.removesuffix(SUFFIX).split(".") if part.isdecimal()]
    if len(numbers) != 1:
        fail(
            path,
            f"has a name with {len(numbers)} numbers: it must have that of its layer, as model.layers.7.attn",
        )
    return numbers[0]


FORMAT = Format(
    name="vllm",
    what="a save of vLLM's ExampleConnector, with queries as for lmcache",
    recognises=_recognises,
    read=_read,
)


class SavedLayers(Mapping[int, LayerArrays]):
    """{number: LayerArrays} of a save, of the layers that have queries; each layer is read on access."""

    def __init__(self, files: Mapping[int, ArrayFile], queries: list[ArrayFile], sidecar: Sidecar):
        self.files = files
        self.sidecar = sidecar
        self.source = queries[0].path
        self.numbers = numbers_of_queries(queries[0]) or sorted(files)
        for number in self.numbers:
            if number not in files:
                fail(self.source, f"holds queries of layer {number}, which the save does not hold")
        self.q = read_queries(queries, sidecar, len(self.numbers))  # [L, T, Hq * D] or [L, T, Hq, D]
        if self.q.shape[0] != len(self.numbers):
            fail(self.source, f"queries have {self.q.shape[0]} layers, kv has {len(self.numbers)}")

    def __getitem__(self, number: int) -> LayerArrays:
        if number not in self.numbers:
            raise KeyError(number)
        k, v = _keys_values(self.files[number], self.sidecar)
        q = Stored(self.q.array[self.numbers.index(number)], self.q.type)
        if q.array.ndim == 2:
            q = split_heads(q, k.shape[-1], QUERIES, self.source)
        return LayerArrays(
            q=_heads_first(q),
            k=_heads_first(k),
            v=_heads_first(v),
            q_pos=query_positions(q.shape[0], k.shape[0], self.source, self.sidecar),
            **self.sidecar.facts_of(number, self.numbers),
        )

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


def _keys_values(file: ArrayFile, sidecar: Sidecar) -> tuple[Stored, Stored]:
    """Keys [T, Hkv, D] and values [T, Hkv, Dv] of one layer."""
    if CACHE not in file:
        fail(file.path, f"holds {', '.join(file)[:80] or 'nothing'} and no {CACHE}, as a save of vLLM does")
    try:
        both = stored(decoded_array(file[CACHE], sidecar), CACHE)
    except TypeError as error:
        fail(file.path, f"{error}. An 8-bit cache cannot be read: save with --kv-cache-dtype auto")
    shape = list(both.shape)
    if len(shape) == 2:
        fail(
            file.path,
            f"{CACHE} has shape {shape}: the latent of an MLA model, not its keys and values. Record the "
            "model with `kvreplay record`",
        )
    # A block has 16 tokens or more, so that an axis of 2 is that of keys and values.
    if len(shape) == 3 and shape[0] == 2:
        both = split_heads(both, kv_head_dim(shape[2], file.path, sidecar), CACHE, file.path)
        return _part(both, 0), _part(both, 1)
    if len(shape) == 4 and 2 in shape[:2]:
        axis = shape[:2].index(2)
        return _part(both, 0, axis), _part(both, 1, axis)
    if len(shape) == 3:
        head_dim = sidecar.head_dim or shape[2] // 2
        if 0 < head_dim < shape[2]:
            k, v = np.split(both.array, [head_dim], axis=2)
            return Stored(k, both.type), Stored(v, both.type)
    return fail(
        file.path,
        f"{CACHE} has shape {shape}, it must be [2, tokens, heads * head_dim], [tokens, 2, heads, head_dim] "
        "or [tokens, heads, 2 * head_dim]",
    )


def _part(both: Stored, at: int, axis: int = 0) -> Stored:
    return Stored(both.array.take(at, axis=axis), both.type)


def _heads_first(given: Stored) -> Stored:
    """[T, H, D] -> [H, T, D]."""
    return Stored(np.ascontiguousarray(given.array.transpose(1, 0, 2)), given.type)
