"""How stored rows are coded, and when: int8, int4, f16, bf16, f32 and kivi, as the engine stores them.

A token is exact in the prompt and in its own step. After the prompt and after every step the survivors are
coded, and later steps read what is stored. What is coded when follows from the lists alone; the numbers are
those of the model that runs.
"""

from dataclasses import dataclass

import numpy as np
import torch

NEVER = np.iinfo(np.int32).max
CASTS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass
class RowCoding:
    """When and how the rows of one cache are coded.

    `key_from`, `value_from` [T] int32: the first decode row (0-based) that reads a token's coded key, value.
    `key_blocks`: tokens whose keys are coded together, in order (kivi), else empty.
    """

    format: dict
    key_from: np.ndarray
    value_from: np.ndarray
    key_blocks: list

    def keys(self, k):
        """Coded keys of k [T, D]."""
        if self.format["name"] != "kivi":
            return _code_rows(k, self.format)
        coded = k.clone()
        for tokens in self.key_blocks:
            coded[tokens] = quantise(k[tokens].T, self.format["g"], self.format["bits"]).T.to(k.dtype)
        return coded

    def values(self, v):
        """Coded values of v [T, Dv]."""
        if self.format["name"] != "kivi":
            return _code_rows(v, self.format)
        return quantise(v, self.format["g"], self.format["bits"]).to(v.dtype)


def _code_rows(x, row_format):
    name = row_format["name"]
    if name in CASTS:
        return x.to(CASTS[name]).to(x.dtype)
    return quantise(x, row_format["group"], 8 if name == "int8" else 4).to(x.dtype)


def quantise(x, group, bits):
    """Rows of x [N, D] in groups of `group` numbers (the last may be shorter): codes from the exact extremes,
    values from offset and step as they are stored, in float16. Returns float64."""
    levels = 2**bits - 1
    parts = []
    for part in x.double().split(group, dim=-1):
        low, high = part.amin(-1, keepdim=True), part.amax(-1, keepdim=True)
        width = (high - low).clamp(min=torch.finfo(torch.float64).tiny)
        codes = ((part - low) * levels / width).clamp(0, levels).round()  # round halves to even
        offset, step = low.half().double(), ((high - low) / levels).half().double()
        parts.append(torch.where(high == low, offset, codes * step + offset))
    return torch.cat(parts, dim=-1)


def row_coding(row_format, residents, prefill, tokens):
    """RowCoding of a cache that holds the ascending tokens residents(i) after the prompt (i = 0) and step i.

    `row_format`: {"name": ..., parameters}. Returns None for `source`.
    """
    name = row_format["name"]
    if name == "source":
        return None
    steps = tokens - prefill
    if name != "kivi":
        # A survivor is coded at the end of its own step; who does not survive is read by nobody.
        since = np.maximum(np.arange(tokens) - prefill + 1, 0).astype(np.int32)
        return RowCoding(row_format, since, since, [])
    return _kivi(row_format, residents, steps, tokens)


def _kivi(row_format, residents, steps, tokens):
    """Keys: the waiting ones in groups of g tokens once R of them are there. Values: all but the newest R."""
    group, residual = row_format["g"], row_format["R"]
    key_from = np.full(tokens, NEVER, dtype=np.int32)
    value_from = np.full(tokens, NEVER, dtype=np.int32)
    blocks = []
    for i in range(steps):
        held = residents(i)
        waiting = held[key_from[held] == NEVER]
        due = waiting[: len(waiting) - len(waiting) % residual]
        key_from[due] = i
        blocks += [due[first : first + group] for first in range(0, len(due), group)]
        old = held[: max(0, len(held) - residual)]
        value_from[old[value_from[old] == NEVER]] = i
    return RowCoding(row_format, key_from, value_from, blocks)
