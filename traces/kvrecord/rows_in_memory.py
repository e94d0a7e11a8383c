"""Rows as tensors: as stored, and kept in memory until their prompt is complete."""

import torch

TORCH_OF = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
STORAGE_OF = {torch_type: name for name, torch_type in TORCH_OF.items()}


def to_stored(tensor, dtype):
    """Tensor -> contiguous numpy array as stored: "f32", "f16", or "bf16" as its bits (uint16)."""
    stored = tensor.detach().to(TORCH_OF[dtype]).contiguous().cpu()
    return stored.view(torch.uint16).numpy() if dtype == "bf16" else stored.numpy()


class MemorySpool:
    """Rows of a batch's prompts in memory, as tensors on the model's device."""

    def part(self, number):
        """The empty RowsInMemory of a row of the batch."""
        return RowsInMemory()

    def close(self):
        """Nothing is left behind."""


class RowsInMemory:
    """Rows of a prompt with the interface of RowSpool. Tensors are kept as they are: what the model's cache
    holds is a view of it, and nothing is copied."""

    def __init__(self):
        self._rows = {}

    def append(self, layer, name, rows, dtype):
        """Appends rows [heads, n, dim] of a tensor."""
        self._rows.setdefault((layer, name), []).append(rows.detach().to(TORCH_OF[dtype]))

    def hold(self, layer, name, rows, dtype):
        """Takes all rows of a tensor so far, in place of those before: a view of the model's cache."""
        self._rows[layer, name] = [rows.detach().to(TORCH_OF[dtype])]

    def names(self, layer):
        """Names of the tensors with rows for this layer."""
        return [name for of, name in self._rows if of == layer]

    def first_rows(self, layer, name, n):
        """The first n rows [heads, n, dim] of a tensor, as stored."""
        rows = torch.cat(self._rows[layer, name], 1)[:, :n]
        return to_stored(rows, STORAGE_OF[rows.dtype])

    def take(self, layer, name):
        """All rows [heads, tokens, dim] of a tensor, which are then forgotten."""
        rows = self._rows.pop((layer, name))
        return rows[0] if len(rows) == 1 else torch.cat(rows, 1)
