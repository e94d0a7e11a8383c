"""Queries in files of arrays, and how files of one prompt are joined: along tokens, or ranks along heads."""

import re
from pathlib import Path

import numpy as np
from kvtrace.bits import Stored, stored

from .arrays import ArrayFile, as_safetensors, decoded_array, fail
from .sidecar import Sidecar

TOKENS = 1  # axis of queries [L, T, Hq * D]
RANK = re.compile(r"(?:rank|tp)[_-]?(\d+)", re.IGNORECASE)
KV, QUERIES, QUERY_OF_LAYER = "kv", "q", re.compile(r"layers\.(\d{1,3})\.q")
NO_QUERIES = (
    'holds no queries: give their files with --queries (in Python queries=...), or name them "q" in it'
)


def read_queries(files: list[ArrayFile], sidecar: Sidecar, layers: int) -> Stored:
    """Queries of all files: [L, T, Hq * D] or [L, T, Hq, D]. `layers`: how many there should be. TraceError
    if a file holds none, or others than the first one."""
    parts = [_queries_of(file, sidecar, layers) for file in files]
    paths = [file.path for file in files]
    return joined(parts, paths, axis=TOKENS + 1 if are_ranks(paths) else TOKENS)


def numbers_of_queries(file: ArrayFile) -> list[int]:
    """Numbers of the layers whose queries are named layers.N.q, ascending; empty if none is."""
    return sorted(int(match[1]) for name in file if (match := QUERY_OF_LAYER.fullmatch(name)))


def _queries_of(file: ArrayFile, sidecar: Sidecar, layers: int) -> Stored:
    of_layers = sorted((int(m[1]), name) for name in file if (m := QUERY_OF_LAYER.fullmatch(name)))
    if of_layers:
        rows = [stored(decoded_array(file[name], sidecar), name) for _, name in of_layers]
        sources = [file.path] * len(rows)
        return joined([Stored(row.array[None], row.type) for row in rows], sources, axis=0)
    if QUERIES not in file and KV in file:
        fail(file.path, NO_QUERIES)
    given = tensor_of(file, (QUERIES, "query", "queries"), sidecar)
    if given.array.ndim == 4 and given.shape[:2] == (1, layers):
        given = Stored(given.array[0], given.type)
    if given.array.ndim not in (3, 4):
        fail(
            file.path,
            f"queries have shape {list(given.shape)}, it must be [layers, tokens, heads * head_dim]",
        )
    return given


def are_ranks(sources: list[Path]) -> bool:
    """Whether names say that files hold ranks of tensor parallelism: other heads of equal tokens."""
    ranks = [RANK.search(path.stem) for path in sources]
    return len(sources) > 1 and [rank and int(rank[1]) for rank in ranks] == list(range(len(sources)))


def joined(parts: list[Stored], sources: list[Path], axis: int) -> Stored:
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


def tensor_of(file: ArrayFile, names: tuple[str, ...], sidecar: Sidecar) -> Stored:
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
