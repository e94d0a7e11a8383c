"""Turns and branches of a prompt to be written. What does not fit together, the reader finds before the file
gets its name."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .given import MOST_TOKENS, as_a, check_numbers, fail, integers, stored_tensors, whole
from .writer import TraceFile

KINDS = ("context", "input", "output")


@dataclass(frozen=True)
class BranchArrays:
    """A branch to be written: its layers {number: (q, k, v)} with the prompt's numbers, heads and types.

    q [Hq, Tb, D], k [Hkv, Tb, D], v [Hkv, Tb, Dv]; input_tokens: the first rows, which are the question;
    name: free text; token_ids: [Tb].
    """

    layers: Mapping[int, Any]
    input_tokens: int
    name: str = ""
    token_ids: Any = None


@dataclass(frozen=True)
class BranchTensors:
    """A layer of a branch."""

    q: Any
    k: Any
    v: Any


def write_segments(
    file: TraceFile, group: str, segments: Sequence[Any], n_tokens: int, where: str
) -> dict[str, int]:
    """Write the group `segments`. The lengths that follow from it."""
    parts = [(*segment, "")[:3] for segment in segments]
    starts = [whole(start, 0, n_tokens - 1, where, "the first token of a segment") for start, _, _ in parts]
    unknown = next((kind for _, kind, _ in parts if kind not in KINDS), None)
    if unknown is not None:
        fail(where, f"a segment is of kind {unknown!r}, it must be {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    kinds = [KINDS.index(kind) for _, kind, _ in parts]
    if kinds[0] == KINDS.index("output"):
        fail(where, "the segments begin with an output: a context or an input comes first")
    file.add(f"{group}/segments/start", np.array([*starts, n_tokens], np.int32))
    file.add(f"{group}/segments/kind", np.array(kinds, np.uint8))
    file.set_attributes(f"{group}/segments", {"names": json.dumps([name for _, _, name in parts])})
    n_prompt = starts[kinds.index(2)] if 2 in kinds else n_tokens
    return {"n_prompt": n_prompt, "n_generated": n_tokens - n_prompt}


def write_branches(
    file: TraceFile, group: str, branches: Sequence[Any], behind: tuple[int, int], where: str
) -> None:
    """Write the group `branches`. behind: tokens of the context, and the position of the first token
    after it."""
    file.set_attributes(f"{group}/branches", {"context_tokens": behind[0]})
    for number, given in enumerate(branches):
        here = f"{where}, branch {number:03d}"
        branch = as_a(BranchArrays, given, here)
        n_tokens = _write_rows(file, f"{group}/branches/{number:03d}", branch.layers, here)
        _write_facts(file, f"{group}/branches/{number:03d}", branch, n_tokens, behind[1], here)


def _write_rows(file: TraceFile, group: str, layers: Mapping[int, Any], where: str) -> int:
    """Write the layers of a branch. Its number of tokens."""
    n_tokens = 0
    for number in sorted(layers):
        here = f"{where}, layer {number}"
        given = layers[number]
        if not isinstance(given, tuple | list) or len(given) != 3:
            fail(here, "must be (q, k, v)")
        tensors = stored_tensors(BranchTensors(*given), here, ("q", "k", "v"))
        for name, tensor in tensors.items():
            check_numbers(tensor, name, here)
            if len(tensor.shape) != 3:
                fail(f"{here}: {name}", f"has shape {list(tensor.shape)}, it must be [heads, tokens, dim]")
            file.add(f"{group}/layers/{number:03d}/{name}", tensor.array, tensor.type.short)
        # A reader takes 16-bit integers for bfloat16 where the layer says so.
        file.set_attributes(f"{group}/layers/{number:03d}", {"source_dtype": tensors["k"].type.name})
        n_tokens = n_tokens or tensors["k"].shape[1]
    if not n_tokens:
        fail(where, "has no layers, or no tokens")
    return n_tokens


def _write_facts(
    file: TraceFile, group: str, branch: BranchArrays, n_tokens: int, first: int, where: str
) -> None:
    if branch.token_ids is not None:
        ids = integers(branch.token_ids, n_tokens, -MOST_TOKENS - 1, MOST_TOKENS, f"{where}: token_ids")
        file.add(f"{group}/tokens", ids.astype(np.int32))
    file.add(f"{group}/position_ids", np.arange(first, first + n_tokens, dtype=np.int32))
    question = whole(branch.input_tokens, 0, n_tokens, where, "input_tokens")
    file.set_attributes(group, {"input_tokens": question, "name": branch.name})
