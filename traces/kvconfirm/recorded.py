"""Attention over the tokens that the engine kept: turns the lists of kept.h5 into masks and weights."""

import numpy as np
import torch
from kvbase.errors import TraceError

from .attention import attend, bias_of
from .coded_rows import RowReader, with_columns
from .row_weights import LayerRows, first_seen, moves, stack, weigh


class RecordedRows:
    """`way` callback of PromptRun.decode: each of `layers` attends to its recorded rows, others to all."""

    def __init__(self, trace, kept, instance, layers, device, coder):
        self.trace = trace
        self.kept = kept
        self.instance = instance
        self.layers = set(layers)
        self.device = device
        self.parameters = instance.parameters()
        self.reader = RowReader(trace, instance, coder)

    def __call__(self, call):
        if call.layer not in self.layers:
            return None
        rows, holds = self.rows_of(call.layer)
        latent = self.trace.is_latent(self.instance.prompt, call.layer)
        caches, heads = len(rows.num), (1 if latent else call.k.shape[0], call.q.shape[0])
        if caches not in heads:
            raise TraceError(
                f"layer {call.layer}: lists of {caches} caches, {heads[0]} or {heads[1]} are needed"
            )
        if rows.plain and not self.reader.codes:
            return call.with_mask(bias_of(rows.num))
        if latent:
            return self._by_latents(call, rows, holds)
        k, v = self._every_token(call)
        if self.reader.codes:
            rows, k, v = self._as_stored(call.layer, rows, k, v, holds)
            if rows.plain and caches == heads[0]:
                return call.with_mask(bias_of(rows.num), k, v)
        rotary = self.trace.rotary(self.instance.prompt, call.layer)
        return attend(call.q.float(), k, v, rows, call.rule, rotary).to(call.q.dtype)

    def _by_latents(self, call, rows, holds):
        """Attention of the heads over the rows that they share, then each head's own projection."""
        latent = call.latent
        if latent is None:
            raise TraceError(f"layer {call.layer}: the model gives other latents than when it was recorded")
        q, k = latent.queries(call.q.float()), latent.keys(rotated_first=True).float()
        v = latent.rows[None].float()
        if self.reader.codes:
            rows, k, v = self._as_stored(call.layer, rows, k, v, holds)
        sums = attend(q, k, v, rows, call.rule, self.trace.rotary(self.instance.prompt, call.layer))
        return (sums @ latent.up_v.float()).to(call.q.dtype)

    def _every_token(self, call):
        missing = self.instance.n_tokens - call.k.shape[1]
        if missing and self.reader.codes:
            self.reader.check_window(call.layer)
        # No list names a token that a layer's window or chunk hides, so its rows may be zeros.
        return [torch.nn.functional.pad(x.float(), (0, 0, missing, 0)) for x in (call.k, call.v)]

    def _as_stored(self, layer, rows, k, v, holds):
        """(rows, keys, values) of each series, with a column for each state of its tokens."""
        if (series := len(rows.num)) > len(k):
            k, v = (x.repeat_interleave(series // len(x), 0) for x in (k, v))
        replayed = self.instance.replayed(layer)
        formats = self.reader.formats(replayed, len(k))
        backs = [self.reader.read(replayed, *one) for one in zip(formats, k, v, holds, strict=True)]
        return with_columns(rows, k, v, backs)

    def rows_of(self, layer):
        """(LayerRows of a layer as tensors, tokens in the cache of each of its series)."""
        i = self.instance
        lists = _alike([self.kept.lists(key, i.n_prefill, i.n_tokens) for key in i.keys_of(layer)])
        sight = self.trace.sight(i.prompt, layer)
        each = [
            weigh(series, one.kind, i.n_prefill, i.n_tokens, *sight) for one in lists for series in one.series
        ]
        num, den = stack(each)
        holds = [held for one in lists for held in one.holds(i.n_prefill)]
        return self._on_device(LayerRows(num, den, self._moved(layer, each))), holds

    def _moved(self, layer, each):
        if self.parameters.get("positions", "original") == "original":
            return None
        if self.trace.rotary(self.instance.prompt, layer) is None:
            return None
        return np.stack([moves(one.held, self.instance.n_prefill, self.reader.positions) for one in each])

    def _on_device(self, rows):
        num = torch.from_numpy(rows.num).to(self.device)
        den = num if rows.den is rows.num else torch.from_numpy(rows.den).to(self.device)
        moved = None if rows.moved is None else torch.from_numpy(rows.moved).to(self.device)
        return LayerRows(num, den, moved)


def _alike(lists):
    """Lists of a layer's kv heads, all with the same number of series. The file has a single series for a kv
    head whose query heads all read the same tokens, while another may have one per query head."""
    most = max(len(one.series) for one in lists)
    return [one.repeated(most) if len(one.series) == 1 else one for one in lists]


class EveryRow:
    """`way` callback of PromptRun.decode: every layer attends to all tokens in its window or chunk, through
    masks like those of compressed runs.

    `sight_of(layer)`: its sliding window and its chunk in tokens, 0 for none.
    """

    def __init__(self, run, sight_of):
        total, prefill = run.tokens.shape[1], run.prefill
        self.rows = torch.arange(prefill, total, device=run.tokens.device)[:, None]
        self.columns = torch.arange(total, device=run.tokens.device)[None, :]
        self.sight_of = sight_of

    def __call__(self, call):
        first = first_seen(self.rows, *self.sight_of(call.layer))
        hidden = (self.columns > self.rows) | (self.columns < first)
        mask = torch.zeros(hidden.shape, device=hidden.device).masked_fill(hidden, -torch.inf)
        return call.with_mask(mask[None, None])
