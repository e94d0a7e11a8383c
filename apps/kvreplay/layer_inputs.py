"""What a model had of one layer of a text, for methods in Python that see whole layers or hidden states."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from kvtrace.bits import Stored

if TYPE_CHECKING:
    import torch

NO_HIDDEN = "hidden states are known while a model runs only: use kvreplay.live"


@dataclass(frozen=True)
class LayerInputs:
    """What the model had of one layer of a text of T tokens, as tensors on their own device.

    q [Hq, T, D], k [Hkv, T, D], v [Hkv, T, Dv]. Only if the model runs: module, the attention module; hidden
    [T, hidden], its input; position_embeddings, cos and sin [1, T, rotary dims], or None.
    """

    q: Any
    k: Any
    v: Any
    module: Any = None
    hidden: "torch.Tensor | None" = None
    position_embeddings: "tuple[torch.Tensor, torch.Tensor] | None" = None

    def prompt(self, tokens: int) -> "LayerInputs":
        """The first `tokens` tokens of it, as tensors of torch."""
        tables = self.position_embeddings
        return LayerInputs(
            *(_tensor(rows)[:, :tokens] for rows in (self.q, self.k, self.v)),
            self.module,
            None if self.hidden is None or len(self.hidden) < tokens else self.hidden[:tokens],
            None if tables is None else (tables[0][:, :tokens], tables[1][:, :tokens]),
        )

    def hidden_states(self) -> np.ndarray:
        """`hidden` as float32. ValueError if no model runs, or if it read the prompt in several calls."""
        if self.hidden is None:
            raise ValueError(NO_HIDDEN)
        return self.hidden.float().cpu().numpy()


# inputs(prompt, layer): prompt is its rank, which numbers its random streams.
InputsOf = Callable[[int, int], LayerInputs]


def _tensor(rows: Any) -> "torch.Tensor":
    """A tensor over the same numbers."""
    import torch

    if isinstance(rows, Stored):
        bits = torch.from_numpy(np.array(rows.array).view(rows.type.bits.str.replace("u", "i")))
        return bits.view(getattr(torch, rows.type.name))
    if isinstance(rows, torch.Tensor):
        return rows.detach()
    if hasattr(rows, "__dlpack__") and not isinstance(rows, np.ndarray):
        return torch.from_dlpack(rows)
    array = np.asarray(rows)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array))
