"""`--verify` of rows that were generated behind a cut prompt.

The same rows come out of one pass behind the whole prompt, in which a mask hides what was cut; and each token
is what the model found likeliest there.
"""

import h5py
import numpy as np

from .attention import mean_relative_deviation
from .dtypes import read_floats, stored_dtype
from .lookahead import ahead_by_mask
from .repeat import unless_from_zero
from .sinks import layer_group
from .snapkv_cut import Cut
from .verify import Check, rows_bound


def verify_lookahead(model, path):
    """Checks (list of Check) of every prompt of a published trace; none where nothing was generated ahead."""
    with h5py.File(path, "r") as trace:
        return [
            check
            for prompt_id, prompt in trace["prompts"].items()
            if "lookahead" in prompt
            for check in _checks(model, trace, prompt_id)
        ]


def _checks(model, trace, prompt_id):
    prompt = trace[f"prompts/{prompt_id}"]
    group = prompt["lookahead"]
    tokens, n_context = group["tokens"][...].tolist(), int(group.attrs["context_tokens"])
    context, positions = (prompt[name][:n_context].tolist() for name in ("tokens", "position_ids"))
    cut = Cut(*(int(group.attrs[name]) for name in ("budget", "window", "kernel")))
    off, bounds = {}, []

    def on_row(call):
        name = layer_group(prompt_id, call.layer)
        if name in trace and "lookahead_q" in trace[name]:
            stored = trace[name]["lookahead_q"]
            live = call.q.detach().double().cpu().numpy()
            off[call.layer] = mean_relative_deviation(read_floats(stored), live)
            bounds.append(rows_bound(stored_dtype(stored), model.dtype))

    logits = (
        ahead_by_mask(model, context, tokens, cut, on_row, unless_from_zero(positions))[:-1].cpu().numpy()
    )
    worst = max(bounds, default=0.0)
    yield Check(prompt_id, "lookahead tokens against the likeliest ones", _less_likely(logits, tokens), worst)
    for (layer, deviation), bound in zip(off.items(), bounds, strict=True):
        what = f"layer {layer}: lookahead rows against one pass behind the masked prompt"
        yield Check(prompt_id, what, deviation, bound)


def _less_likely(logits, tokens):
    """The most that a token's logit falls short of the largest, as a share of what that is above the mean."""
    top, chosen = logits.max(1), logits[np.arange(len(tokens)), tokens]
    return float(((top - chosen) / np.maximum(top - logits.mean(1), np.finfo(np.float32).tiny)).max())
