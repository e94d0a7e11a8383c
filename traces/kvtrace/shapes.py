"""Which shapes q, k and v may have together; the same for what is read and what is written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from kvbase.errors import TraceError

MOST_TOKENS = 2**31 - 1  # token indices are int32
MOST_HEADS = 65535  # a head's random numbers count layer * 65536 + head
WIDEST_HEAD = 65536
MOST_LAYERS = 1000  # three digits


@dataclass(frozen=True)
class Shapes:
    """Extents of a layer: q [q_heads, n_query_rows, head_dim], k [kv_heads, n_tokens, head_dim],
    v [kv_heads, n_tokens, v_head_dim]."""

    q_heads: int
    kv_heads: int
    n_tokens: int
    n_query_rows: int
    head_dim: int
    v_head_dim: int


def fail(where: str, what: str) -> NoReturn:
    """Raise TraceError."""
    raise TraceError(f"{where}: {what}")


def check_shapes(shapes: Mapping[str, tuple[int, ...]], where: Callable[[str], str]) -> Shapes:
    """Extents of q, k and v, each of three axes; `where` names a tensor. TraceError where they disagree."""

    def extent(name: str, axis: int, what: str, most: int) -> int:
        n = shapes[name][axis]
        if not 1 <= n <= most:
            fail(where(name), f"has shape {list(shapes[name])}: {n} {what}, it must be from 1 to {most}")
        return n

    def same(name: str, axis: int, expected: int, why: str) -> None:
        if shapes[name][axis] != expected:
            fail(where(name), f"has shape {list(shapes[name])}, its axis {axis} must be {expected}, {why}")

    for name, shape in shapes.items():
        if len(shape) != 3:
            fail(where(name), f"has shape {list(shape)}, it must have 3 axes: [heads, tokens, head_dim]")
    found = Shapes(
        kv_heads=extent("k", 0, "heads", MOST_HEADS),
        n_tokens=extent("k", 1, "tokens", MOST_TOKENS),
        head_dim=extent("k", 2, "numbers per key", WIDEST_HEAD),
        v_head_dim=extent("v", 2, "numbers per value", WIDEST_HEAD),
        q_heads=extent("q", 0, "heads", MOST_HEADS),
        n_query_rows=extent("q", 1, "query rows", MOST_TOKENS),
    )
    same("v", 0, found.kv_heads, "the heads of k")
    same("v", 1, found.n_tokens, "the tokens of k")
    same("q", 2, found.head_dim, "the head_dim of k")
    if found.q_heads % found.kv_heads:
        fail(where("q"), f"has {found.q_heads} heads, which is not a multiple of k's {found.kv_heads}")
    if found.n_query_rows > found.n_tokens:
        fail(
            where("q"),
            f"has {found.n_query_rows} query rows, more than k's {found.n_tokens} tokens. "
            "Axes are [heads, tokens, dim]",
        )
    return found
