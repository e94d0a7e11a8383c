"""`--verify` of a repeated context.

Three checks: the repeated tokens are those of the context; the keys of the context, run again, are those of
the trace; and the repeated rows equal those of one pass over context and chunk without a cache.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import h5py
import numpy as np
import torch
from kvtrace.disk_file import open_hdf5
from kvtrace.dtypes import read_floats, stored_dtype, widen

from .attention import mean_relative_deviation
from .hook import AttentionHook
from .input_norms import query_input_modules, watching_inputs
from .repeat import positions_after, positions_or_none, run_at_once, run_cached
from .rows_in_memory import to_stored
from .sinks import layer_group
from .verify import Check, rows_bound


def verify_repeat(model, path):
    """List of Check for every prompt of a published trace with a repeated context."""
    with open_hdf5(path) as trace:
        return [
            check
            for prompt_id, prompt in trace["prompts"].items()
            if "repeat" in prompt
            for check in _Repeated(model, trace, prompt_id).checks()
        ]


@dataclass
class _Repeated:
    """One prompt with the content of its group `repeat`."""

    model: torch.nn.Module
    trace: h5py.File
    prompt_id: str
    layers: dict = field(init=False)

    def __post_init__(self):
        prompt = self.trace[f"prompts/{self.prompt_id}"]
        group = prompt["repeat"]
        self.n_context = int(group.attrs["context_tokens"])
        self.tokens, self.rows, self.ctx = (group[name][...].tolist() for name in ("tokens", "rows", "ctx"))
        self.context = prompt["tokens"][: self.n_context].tolist()
        positions = prompt["position_ids"][: self.n_context].tolist()
        self.positions = positions_or_none(positions)
        # Only then were the recorded keys computed in a pass over exactly these tokens.
        alone = "sampling" in prompt.attrs or len(prompt["tokens"]) == self.n_context
        self.same_pass = alone and int(prompt.attrs["n_prompt"]) == self.n_context
        names = [int(name) for name in prompt["layers"]]
        found = {layer: self.trace[layer_group(self.prompt_id, layer)] for layer in names}
        self.layers = {layer: group for layer, group in found.items() if "repeat_q" in group}

    def checks(self):
        """Yields all checks."""
        yield Check(self.prompt_id, "repeated tokens that are not the context's", self._wrong_tokens(), 0.0)
        yield from self._context_keys()
        yield from self._repeated_rows()

    def _wrong_tokens(self):
        wrong = 0
        for (_, end), (first, last) in zip(pairwise(self.rows), pairwise(self.ctx), strict=True):
            said = np.array(self.tokens[end - (last - first) : end])
            wrong += int(np.sum(said != np.array(self.context[first:last])))
        return float(wrong)

    def _context_keys(self):
        found = {}

        def on_call(call):
            if call.layer in self.layers:
                name, keys = next(iter(call.cached().items()))
                dataset = self.layers[call.layer][name]
                dtype = stored_dtype(dataset)
                recorded = read_floats(dataset)[..., : self.n_context, :]
                found[call.layer] = self._difference(widen(to_stored(keys, dtype), dtype), recorded)

        with AttentionHook(self.model, on_call), torch.no_grad():
            run_cached(self.model, self.context, self.positions)
        for layer, off in found.items():
            what = "keys of the repeated context against the recorded ones"
            yield Check(self.prompt_id, f"layer {layer}: {what}", off, self._bound(layer, self.same_pass))

    def _difference(self, found, recorded):
        if self.same_pass:
            return float(np.abs(found - recorded).max())
        return mean_relative_deviation(found, recorded)

    def _bound(self, layer, exact=False):
        return 0.0 if exact else rows_bound(stored_dtype(self.layers[layer]["repeat_k"]), self.model.dtype)

    def _repeated_rows(self):
        off = dict.fromkeys(self.layers, 0.0)
        modules = query_input_modules(self.model, list(self.layers))
        rows = slice(0, 0)

        def compare(layer, name, live):
            """Compares rows `live` [.., n, dim] of a pass over context and chunk with those stored at
            `rows`."""
            stored = self.layers[layer][name]
            stored = stored[...][:, None] if stored.ndim == 1 else read_floats(stored)
            live = live.detach().double().cpu().numpy()[..., self.n_context :, :]
            off[layer] = max(off[layer], mean_relative_deviation(stored[..., rows, :], live))

        def on_call(call):
            if call.layer in self.layers:
                compare(call.layer, "repeat_q", call.q)
                compare(call.layer, "repeat_k", call.cached_keys())

        def on_norm(layer, norm):
            compare(layer, "repeat_in_norm", norm[:, None])

        with AttentionHook(self.model, on_call), watching_inputs(modules, on_norm), torch.no_grad():
            for begin, end in pairwise(self.rows):
                rows = slice(begin, end)
                positions = self.positions and self.positions + positions_after(self.positions, end - begin)
                run_at_once(self.model, self.context + self.tokens[rows], positions)
        for layer, deviation in off.items():
            what = f"layer {layer}: repeated rows against one pass over context and chunk"
            yield Check(self.prompt_id, what, deviation, self._bound(layer))
