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
from kvtrace.bits import Stored, stored

from ..trace import LayerArrays
from .arrays import READERS, ArrayFile, as_safetensors, decoded_array, fail, open_arrays
from .format_type import Format, Found
from .sidecar import OF_LAYERS, Sidecar

HEADS = 3  # axis of kv, one behind that of tokens
RANK = re.compile(r"(?:rank|tp)[_-]?(\d+)", re.IGNORECASE)
KV, QUERIES, QUERY_OF_LAYER = "kv", "q", re.compile(r"layers\.(\d{1,3})\.q")
NO_QUERIES = (
    'holds no queries: give their files with --queries (in Python queries=...), or name them "q" in it'
)
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
    chunks = [_tensor(file, (KV,), sidecar) for file in files]
    _check_chunks(chunks, sources)
    kv = _joined(chunks, sources, axis=HEADS if _are_ranks(sources) else HEADS - 1)
    if not queries and all(len(file) == 1 and QUERIES not in file for file in files):
        fail(files[0].path, NO_QUERIES)
    question = [open_arrays(path) for path in queries] if queries else files
    layers = ChunkLayers(kv, _queries(question, sidecar, kv.shape[1]), sources[0], sidecar)
    return Found(
        layers,
        token_ids=_tokens(files, kv.shape[2]),
        model=_model(files),
        assumed=_continued(chunks, sources),
    )


def _are_ranks(sources: list[Path]) -> bool:
    """Whether names say that files hold ranks of tensor parallelism: other heads of equal tokens."""
    ranks = [RANK.search(path.stem) for path in sources]
    return len(sources) > 1 and [rank and int(rank[1]) for rank in ranks] == list(range(len(sources)))


def _continued(chunks: list[Stored], sources: list[Path]) -> str:
    """What joining several files assumes: ranks of tensor parallelism look like chunks of tokens."""
    if len(chunks) == 1:
        return ""
    if _are_ranks(sources):
        return f"{len(chunks)} files: read as tensor-parallel ranks, as they are named: heads side by side"
    lengths = " + ".join(str(chunk.shape[2]) for chunk in chunks)
    return (
        f"{len(chunks)} files: read as consecutive tokens, {lengths}. Tensor-parallel ranks hold other heads "
        "of equal tokens: join such files along their last axis first, those of queries too"
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
        self.q_pos = self._positions()
        self.numbers = self._numbers()

    def __getitem__(self, number: int) -> LayerArrays:
        if number not in self.numbers:
            raise KeyError(number)
        facts = {name: self.sidecar.of_layer(name, number, self.numbers) for name in OF_LAYERS}
        at = self.numbers.index(number)
        return LayerArrays(
            q=_heads_first(self.q, at),
            k=_heads_first(self.kv, (0, at)),
            v=_heads_first(self.kv, (1, at)),
            q_pos=self.q_pos,
            **{name: value for name, value in facts.items() if value is not None},
        )

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.numbers))

    def __len__(self) -> int:
        return len(self.numbers)

    def _heads(self, given: Stored, name: str) -> Stored:
        """Splits the last axis into heads, unless it is split already."""
        n_axes = 5 if name == KV else 4
        if given.array.ndim == n_axes:
            return given
        width = given.shape[-1]
        head_dim = self._head_dim(width if name == KV else None)
        if width % head_dim:
            fail(
                self.source,
                f"{name} has {width} numbers per token, which is not a multiple of head_dim {head_dim}",
            )
        split = given.array.reshape(*given.shape[:-1], width // head_dim, head_dim)
        return Stored(split, given.type)

    def _head_dim(self, kv_width: int | None) -> int:
        if kv_width is None:
            return self.kv.shape[-1]
        said = self.sidecar.head_dim
        if said is None and self.sidecar.n_kv_heads:
            heads = self.sidecar.n_kv_heads
            if kv_width % heads:
                self.sidecar.fail(
                    "n_kv_heads", f"is {heads}, but {kv_width} numbers per token are not a multiple of it"
                )
            said = kv_width // heads
        if not said:
            fail(
                self.source,
                f'kv has {kv_width} numbers per token, but not the number of heads. Write "head_dim" or '
                '"n_kv_heads" into the sidecar',
            )
        return said

    def _positions(self) -> np.ndarray | None:
        """int32 [Tq]: tokens of the query rows; None if every token has a query."""
        n_tokens, n_rows = self.kv.shape[2], self.q.shape[1]
        first = self.sidecar.q_from
        if first is None and n_rows != n_tokens:
            fail(
                self.source,
                f"queries have {n_rows} rows, kv has {n_tokens} tokens. Give queries of the same tokens, or "
                'write the token of the first query into the sidecar as "q_from"',
            )
        first = first or 0
        if first + n_rows > n_tokens:
            self.sidecar.fail(
                "q_from", f"is {first}: {n_rows} query rows end after the {n_tokens} tokens of kv"
            )
        return None if n_rows == n_tokens else np.arange(first, first + n_rows, dtype=np.int32)

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


def _joined(parts: list[Stored], sources: list[Path], axis: int) -> Stored:
    """Concatenates the parts along the axis of tokens, or of heads."""
    first = parts[0]
    for part, source in zip(parts, sources, strict=True):
        same = [a == b for i, (a, b) in enumerate(zip(part.shape, first.shape, strict=False)) if i != axis]
        if part.type is not first.type or part.array.ndim != first.array.ndim or not all(same):
            fail(
                source,
                f"has shape {list(part.shape)} of {part.type.name}, which does not continue "
                f"{list(first.shape)} of {first.type.name} in {sources[0].name}",
            )
    if len(parts) == 1:
        return first
    return Stored(np.concatenate([part.array for part in parts], axis=axis), first.type)


# ---- queries


def _queries(files: list[ArrayFile], sidecar: Sidecar, layers: int) -> Stored:
    """Queries of all files: [L, T, Hq * D] or [L, T, Hq, D]."""
    parts = [_queries_of(file, sidecar, layers) for file in files]
    paths = [file.path for file in files]
    return _joined(parts, paths, axis=HEADS - 1 if _are_ranks(paths) else HEADS - 2)


def _queries_of(file: ArrayFile, sidecar: Sidecar, layers: int) -> Stored:
    of_layers = sorted((int(m[1]), name) for name in file if (m := QUERY_OF_LAYER.fullmatch(name)))
    if of_layers:
        rows = [stored(decoded_array(file[name], sidecar), name) for _, name in of_layers]
        sources = [file.path] * len(rows)
        return _joined([Stored(row.array[None], row.type) for row in rows], sources, axis=0)
    if QUERIES not in file and KV in file:
        fail(file.path, NO_QUERIES)
    given = _tensor(file, (QUERIES, "query", "queries"), sidecar)
    if given.array.ndim == 4 and given.shape[:2] == (1, layers):
        given = Stored(given.array[0], given.type)
    if given.array.ndim not in (3, 4):
        fail(
            file.path,
            f"queries have shape {list(given.shape)}, it must be [layers, tokens, heads * head_dim]",
        )
    return given


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


def _tensor(file: ArrayFile, names: tuple[str, ...], sidecar: Sidecar) -> Stored:
    """The file's tensor with one of these names, or its only tensor."""
    name = next((name for name in names if name in file), None)
    if name is None and len(file) == 1:
        name = next(iter(file))
    if name is None and file.path.suffix == ".pt" and any(each.startswith("layers.") for each in file):
        fail(file.path, f"holds layers.N arrays, which are read of safetensors: {as_safetensors(file.path)}")
    if name is None:
        fail(file.path, f'holds {", ".join(file)[:80] or "nothing"}. Name the tensor "{names[0]}"')
    try:
        return stored(decoded_array(file[name], sidecar), name)
    except (TypeError, ValueError) as error:
        fail(file.path, str(error))


def _tokens(files: list[ArrayFile], n_tokens: int) -> list[int] | None:
    """Token ids of a prompt that is stored in one file. LMCache keeps whole chunks, so ids after the last
    whole chunk are cut off."""
    if len(files) != 1 or TOKENS not in files[0]:
        return None
    return np.asarray(files[0][TOKENS])[:n_tokens]


def _model(files: list[ArrayFile]) -> str:
    said = files[0].get(MODEL, "")
    return said if isinstance(said, str) else ""
