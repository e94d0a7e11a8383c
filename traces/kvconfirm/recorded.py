"""Attending to what the engine kept: the lists of kept.h5 as masks and weights of each layer."""

import numpy as np
import torch
from kvdump.errors import DumpError

from .attention import attend, bias_of
from .row_formats import row_coding
from .row_weights import LayerRows, moves, stack, weigh

REBUILT = ("source", "f32", "f16", "bf16", "int8", "int4", "kivi")


def check_parameters(parameters):
    """DumpError for an instance whose rows cannot be rebuilt from lists and the model's own numbers."""
    name = format_of(parameters)["name"]
    if name not in REBUILT:
        raise DumpError(f"row_format {name} is not rebuilt here: use --select own, which asks the engine")


def format_of(parameters):
    """{"name": ..., parameters} of the instance's row format."""
    given = parameters.get("row_format", "source")
    return given if isinstance(given, dict) else {"name": given}


class RecordedRows:
    """`way` of PromptRun.decode: each of `layers` attends to its recorded rows, the others to all."""

    def __init__(self, trace, kept, instance, layers, device):
        self.trace = trace
        self.kept = kept
        self.instance = instance
        self.layers = set(layers)
        self.positions = trace.prompt(instance.prompt, instance.n_tokens)[1]
        self.device = device
        self.parameters = instance.parameters()
        check_parameters(self.parameters)

    def __call__(self, call):
        if call.layer not in self.layers:
            return None
        rows = self.rows_of(call.layer)
        caches, heads = len(rows.num), (call.k.shape[0], call.q.shape[0])
        if caches not in heads:
            raise DumpError(
                f"layer {call.layer}: lists of {caches} caches, {heads[0]} or {heads[1]} are needed"
            )
        if rows.plain:
            return call.with_mask(bias_of(rows.num))
        missing = self.instance.n_tokens - call.k.shape[1]
        if missing and any(coding.key_blocks for coding in rows.codings):
            raise DumpError(f"layer {call.layer}: kivi in a layer with a window: use --select own")
        # What left a layer's window is in no list: any number may stand in its place.
        k, v = (torch.nn.functional.pad(x, (0, 0, missing, 0)) for x in (call.k, call.v))
        rotary = self.trace.rotary(self.instance.prompt, call.layer)
        return attend(call.q.float(), k.float(), v.float(), rows, call.rule, rotary).to(call.q.dtype)

    def rows_of(self, layer):
        """LayerRows of a layer, as tensors."""
        i = self.instance
        keys = [key for (at, _), key in sorted(i.cells.items()) if at == layer]
        lists = _alike([self.kept.lists(key, i.n_prefill, i.n_tokens) for key in keys])
        window = self.trace.window(i.prompt, layer)
        each = [
            weigh(series, one.kind, i.n_prefill, i.n_tokens, window) for one in lists for series in one.series
        ]
        num, den = stack(each)
        rows = LayerRows(num, den, self._codings(lists), self._moved(layer, each))
        return self._on_device(rows)

    def _codings(self, lists):
        row_format = format_of(self.parameters)
        if row_format["name"] == "source":
            return []
        i = self.instance
        return [
            row_coding(row_format, residents, i.n_prefill, i.n_tokens)
            for one in lists
            for residents in one.residents(i.n_prefill)
        ]

    def _moved(self, layer, each):
        if self.parameters.get("positions", "original") == "original":
            return None
        if self.trace.rotary(self.instance.prompt, layer) is None:
            return None
        return np.stack([moves(one.held, self.instance.n_prefill, self.positions) for one in each])

    def _on_device(self, rows):
        num = torch.from_numpy(rows.num).to(self.device)
        den = num if rows.den is rows.num else torch.from_numpy(rows.den).to(self.device)
        moved = None if rows.moved is None else torch.from_numpy(rows.moved).to(self.device)
        return LayerRows(num, den, rows.codings, moved)


def _alike(lists):
    """Lists of a layer's kv heads, each with as many series: where all query heads of one read the same, its
    file has one series, and those of another may have one each."""
    most = max(len(one.series) for one in lists)
    return [one.repeated(most) if len(one.series) == 1 else one for one in lists]


class EveryRow:
    """`way` of PromptRun.decode: every layer attends to all that it sees, through masks as the others have.

    `window_of(layer)`: its sliding window, 0 for none.
    """

    def __init__(self, run, window_of):
        total, prefill = run.tokens.shape[1], run.prefill
        rows = torch.arange(prefill, total, device=run.tokens.device)[:, None]
        columns = torch.arange(total, device=run.tokens.device)[None, :]
        self.distance = rows - columns
        self.window_of = window_of

    def __call__(self, call):
        hidden = self.distance < 0
        if window := self.window_of(call.layer):
            hidden = hidden | (self.distance >= window)
        mask = torch.zeros_like(self.distance, dtype=torch.float32).masked_fill(hidden, -torch.inf)
        return call.with_mask(mask[None, None])
