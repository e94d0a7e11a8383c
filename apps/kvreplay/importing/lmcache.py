"""Chunks of LMCache's SDK: keys and values as [2, L, T, H * D], queries beside them as [L, T, Hq * D].

`retrieve` of the SDK returns one tensor [2, L, T, H * D] per prompt: keys, then values; layers; tokens of
whole chunks; the heads of a token side by side. A context of kind QUERY returns [1, L, T, Hq * D]. The SDK
returns tensors in memory, so users write the files: one per prompt, or one per chunk.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from kvtrace.bits import Stored

from ..trace import LayerArrays
from .arrays import READERS, ArrayFile, fail, open_arrays
from .format_type import Format, Found, FoundPrompt
from .heads import kv_head_dim, query_positions, split_heads
from .queries import KV, NO_QUERIES, QUERIES, are_ranks, joined, read_queries, tensor_of
from .sidecar import Sidecar

HEADS = 3  # axis of kv, one behind that of tokens
TOKENS, MODEL = "tokens", "model_name"


def _recognises(sources: list[Path]) -> bool:
    if len(sources) == 1 and sources[0].suffix in (".safetensors", ".npz") and sources[0].is_file():
        return KV in open_arrays(sources[0])
    if sources[0].suffix in (".safetensors", ".npz") and all(source.is_file() for source in sources):
        return not any(name.startswith("layers.") for name in open_arrays(sources[0]))
    return sources[0].is_dir() or sources[0].suffix in READERS


def _read(sources: list[Path], sidecar: Sidecar, queries: list[Path]) -> Found:
    sources, beside = _files(sources)
    queries = _files(queries)[0] if queries else beside
    files = [open_arrays(path) for path in sources]
    chunks = [tensor_of(file, (KV,), sidecar) for file in files]
    _check_chunks(chunks, sources)
    kv = joined(chunks, sources, axis=HEADS if are_ranks(sources) else HEADS - 1)
    if not queries and all(len(file) == 1 and QUERIES not in file for file in files):
        fail(files[0].path, NO_QUERIES)
    question = [open_arrays(path) for path in queries] if queries else files
    layers = ChunkLayers(kv, read_queries(question, sidecar, kv.shape[1]), sources[0], sidecar)
    return Found(
        [FoundPrompt(layers, token_ids=_tokens(files, kv.shape[2]))],
        model=_model(files),
        assumed=_continued(chunks, sources),
    )


def _continued(chunks: list[Stored], sources: list[Path]) -> tuple[str, ...]:
    """What joining several files assumes: ranks of tensor parallelism look like chunks of tokens."""
    if len(chunks) == 1:
        return ()
    if are_ranks(sources):
        return (f"{len(chunks)} files: read as tensor-parallel ranks, as they are named: heads side by side",)
    lengths = " + ".join(str(chunk.shape[2]) for chunk in chunks)
    return (
        f"{len(chunks)} files: read as consecutive tokens, {lengths}. Tensor-parallel ranks hold other heads "
        "of equal tokens: join such files along their last axis first, those of queries too",
    )


FORMAT = Format(
    name="lmcache",
    what="chunks [2, L, T, H * D] of LMCache's SDK, with queries [L, T, Hq * D]",
    recognises=_recognises,
    read=_read,
)


class ChunkLayers(Mapping[int, LayerArrays]):
    """Layers of kv [2, L, T, Hkv * D] or [2, L, T, Hkv, D] and q [L, Tq, Hq * D] or [L, Tq, Hq, D]."""

    def __init__(self, kv: Stored, q: Stored, source: Path, sidecar: Sidecar):
        self.sidecar = sidecar
        self.source = source
        self.kv = self._heads(kv, KV)
        self.q = self._heads(q, QUERIES)
        self.q_pos = query_positions(self.q.shape[1], self.kv.shape[2], source, sidecar)
        self.numbers = self._numbers()

    def __getitem__(self, number: int) -> LayerArrays:
        if number not in self.numbers:
            raise KeyError(number)
        at = self.numbers.index(number)
        return LayerArrays(
            q=_heads_first(self.q, at),
            k=_heads_first(self.kv, (0, at)),
            v=_heads_first(self.kv, (1, at)),
            q_pos=self.q_pos,
            **self.sidecar.facts_of(number, self.numbers),
        )

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.numbers))

    def __len__(self) -> int:
        return len(self.numbers)

    def _heads(self, given: Stored, name: str) -> Stored:
        """Splits the last axis into heads, unless it is split already."""
        if given.array.ndim == (5 if name == KV else 4):
            return given
        if name == KV:
            return split_heads(
                given, kv_head_dim(given.shape[-1], self.source, self.sidecar), KV, self.source
            )
        return split_heads(given, self.kv.shape[-1], QUERIES, self.source)

    def _numbers(self) -> list[int]:
        held = self.kv.shape[1]
        numbers = self.sidecar.layers or list(range(held))
        if len(set(numbers)) != held or not all(isinstance(n, int) for n in numbers):
            self.sidecar.fail("layers", f"must be {held} different numbers, one for each layer of kv")
        if self.q.shape[0] != held:
            fail(self.source, f"queries have {self.q.shape[0]} layers, kv has {held}")
        return numbers


def _heads_first(given: Stored, at: Any) -> Stored:
    """[..., T, H, D] -> [H, T, D] for one layer."""
    return Stored(np.ascontiguousarray(given.array[at].transpose(1, 0, 2)), given.type)


def _check_chunks(chunks: list[Stored], sources: list[Path]) -> None:
    for chunk, source in zip(chunks, sources, strict=True):
        shape = list(chunk.shape)
        if chunk.array.ndim not in (4, 5):
            fail(source, f"kv has shape {shape}, it must be [2, layers, tokens, heads * head_dim]")
        if shape[0] == 1:
            fail(source, f"kv has shape {shape}: the latent of an MLA model, not its keys and values")
        if shape[0] != 2:
            fail(source, f"kv has shape {shape}, its axis 0 must be 2: keys, then values")


# ---- files


def _files(sources: list[Path]) -> tuple[list[Path], list[Path]]:
    """(files of chunks, files of queries). A folder is listed: files named q* are queries, others chunks."""
    if len(sources) != 1 or not sources[0].is_dir():
        return sources, []
    found = sorted((p for p in sources[0].iterdir() if p.suffix in READERS), key=_natural)
    queries = [path for path in found if path.stem.startswith("q")]
    chunks = [path for path in found if path not in queries]
    if not chunks:
        fail(sources[0], f"holds no chunks: files named {', '.join('*' + suffix for suffix in READERS)}")
    return chunks, queries


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key that puts chunk 10 after chunk 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.stem)]


def _tokens(files: list[ArrayFile], n_tokens: int) -> list[int] | None:
    """Token ids of a prompt that is stored in one file. LMCache keeps whole chunks, so ids after the last
    whole chunk are cut off."""
    if len(files) != 1 or TOKENS not in files[0]:
        return None
    return np.asarray(files[0][TOKENS])[:n_tokens]


def _model(files: list[ArrayFile]) -> str:
    said = files[0].get(MODEL, "")
    return said if isinstance(said, str) else ""
