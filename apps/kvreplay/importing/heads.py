"""Where heads end in rows that hold them side by side, and the tokens of query rows, as the sidecar says."""

from pathlib import Path

import numpy as np
from kvtrace.bits import Stored

from .arrays import fail
from .sidecar import Sidecar


def kv_head_dim(width: int, source: Path, sidecar: Sidecar) -> int:
    """Numbers of a head where `width` numbers of a token are the kv heads side by side.

    TraceError if the sidecar has neither head_dim nor n_kv_heads, ConfigError if n_kv_heads does not fit.
    """
    said = sidecar.head_dim
    if said is None and sidecar.n_kv_heads:
        heads = sidecar.n_kv_heads
        if width % heads:
            sidecar.fail("n_kv_heads", f"is {heads}, but {width} numbers per token are not a multiple of it")
        said = width // heads
    if not said:
        fail(
            source,
            f'kv has {width} numbers per token, but not the number of heads. Write "head_dim" or '
            '"n_kv_heads" into the sidecar',
        )
    return said


def split_heads(given: Stored, head_dim: int, name: str, source: Path) -> Stored:
    """[..., H * D] as [..., H, D]. TraceError if the last axis is no multiple of `head_dim`."""
    width = given.shape[-1]
    if not head_dim or width % head_dim:
        fail(
            source,
            f"{name} has {width} numbers per token, which is not a multiple of head_dim {head_dim}",
        )
    return Stored(given.array.reshape(*given.shape[:-1], width // head_dim, head_dim), given.type)


def query_positions(n_rows: int, n_tokens: int, source: Path, sidecar: Sidecar) -> np.ndarray | None:
    """int32 [n_rows]: tokens of the query rows, from the sidecar's q_from on; None if every token has a
    query. TraceError if q_from is needed and missing, ConfigError if the rows end after the tokens."""
    first = sidecar.q_from
    if first is None and n_rows != n_tokens:
        fail(
            source,
            f"queries have {n_rows} rows, kv has {n_tokens} tokens. Give queries of the same tokens, or "
            'write the token of the first query into the sidecar as "q_from"',
        )
    first = first or 0
    if first + n_rows > n_tokens:
        sidecar.fail("q_from", f"is {first}: {n_rows} query rows end after the {n_tokens} tokens of kv")
    return None if n_rows == n_tokens else np.arange(first, first + n_rows, dtype=np.int32)
