"""`--verify`: compares a trace with the model that made it.

Three checks per prompt. The logits with and without the hook are equal. One full prefill over the recorded
tokens gives the recorded q, k, v, so the decode steps recorded the same rows. Exact attention recomputed from
the stored q, k, v gives the layer's output.
"""

from dataclasses import dataclass

import numpy as np
import torch
from kvtrace.disk_file import open_hdf5
from kvtrace.dtypes import read_floats, stored_dtype

from .attention import exact_attention, mean_relative_deviation
from .hook import AttentionHook, base_attention
from .input_norms import query_input_modules, watching_inputs
from .sinks import layer_group

# Mean relative deviations. float32: the order of sums differs between decode and prefill. 16 bit: rounding
# of the stored q, k, v (2^-9 bfloat16, 2^-11 float16), amplified by the softmax.
TOLERANCE_OUT = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}
TOLERANCE_ROWS = {"f32": 1e-4, "f16": 2e-3, "bf16": 5e-3}
# A model that computes in 16 bits is no more precise than this.
TOLERANCE_HALF_MODEL = 3e-2
STATES = ("linear", "mamba", "recurrent", "conv", "hybrid")  # in the names of layers that carry a state
HALF_UNIT = {"f16": 2.0**-11, "bf16": 2.0**-9}  # relative error of rounding
SMALL_MOVE = 0.02  # a logit; attention weights then change by 2 %
LOGIT_ROWS = 1024  # last tokens: the logits of all tokens can take more memory than model and trace


@dataclass
class Check:
    """One measured deviation and its bound."""

    prompt: str
    what: str
    deviation: float
    bound: float
    reason: str = ""  # why it fails although the recording is right

    @property
    def ok(self):
        """True if the deviation is within the bound; False for NaN."""
        return self.deviation <= self.bound

    def __str__(self):
        verdict = f"(<= {self.bound:.0e}) {'ok' if self.ok else 'FAILED'}"
        reason = f": {self.reason}" if self.reason else ""
        return f"verify: prompt {self.prompt}: {self.what}: {self.deviation:.2e} {verdict}{reason}"


def rows_bound(dtype, model_dtype):
    """Bound on the deviation of rows, from their stored type and the type in which the model computes."""
    half = model_dtype in (torch.float16, torch.bfloat16)
    return max(TOLERANCE_ROWS[dtype], TOLERANCE_HALF_MODEL if half else 0)


def too_few_digits(group):
    """Why rows in a 16-bit type may not give the layer's output; "" if their rounding is too small for that.

    A logit is a sum over channels. Rounding moves it by up to scaling * sum |q| |k| / 2^9 (bfloat16), which
    is not small where a bias of the keys makes channels of hundreds.
    """
    dtype = cache_dtype(group)
    if dtype == "f32":
        return ""
    q, k = (np.abs(rows) for rows in head_rows(group)[:2])
    largest = float(k.max())
    typical = np.einsum("hd,gd->", q.mean(axis=1), k.mean(axis=1)) / (len(q) * len(k))
    moved = float(group.attrs["scaling"]) * float(typical) * HALF_UNIT[dtype]
    if moved < SMALL_MOVE:
        return ""
    return (
        f"{dtype} keeps too few digits of these keys (largest channel {largest:.3g}): rounding moves logits "
        f"by about {moved:.1g}. Record with --dtype f32"
    )


def states_differ(model):
    """Why generated rows may differ from those of one pass: layers that carry a state instead of keys; else
    ""."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    states = sorted({kind for kind in kinds if any(word in kind for word in STATES)})
    if not states:
        return ""
    return (
        f"layers of {' and '.join(states)} compute one token at a time otherwise than a whole text, so rows "
        "that were generated differ from those of one pass. Record the text without --generate"
    )


def cache_dtype(group):
    """Stored type of what a cache holds: keys, or latents."""
    return stored_dtype(group["latent" if "latent" in group else "k"])


def head_rows(group):
    """q [Hq, Tq, D], k [Hkv, T, D] and v [Hkv, T, Dv] of an open layer group. From latents, k and v are
    those of every query head."""
    q = read_floats(group["q"])
    if "latent" not in group:
        return q, read_floats(group["k"]), read_floats(group["v"])
    rows, rope_k, up_k, up_v = (read_floats(group[name]) for name in ("latent", "rope_k", "up_k", "up_v"))
    shared = np.broadcast_to(rope_k, (len(q), *rope_k.shape))
    return q, np.concatenate([rows @ up_k, shared], axis=-1), rows @ up_v


def attend_stored(group):
    """Exact attention [Hq, Tq, Dv] from the stored tensors of an open layer group."""
    q, k, v = head_rows(group)
    q_pos = group["q_pos"][...] if "q_pos" in group else np.arange(k.shape[1])
    attributes = group.attrs
    return exact_attention(
        q,
        k,
        v,
        q_pos,
        float(attributes["scaling"]),
        int(attributes["sliding_window"]),
        float(attributes["softcap"]),
        group["sinks"][...] if "sinks" in group else None,
        int(attributes.get("attention_chunk", 0)),
    )


def verify(model, path):
    """List of Check: every prompt of a published trace against its model."""
    checks = []
    with open_hdf5(path) as trace, torch.no_grad():
        for prompt_id in trace["prompts"]:
            tokens = trace[f"prompts/{prompt_id}/tokens"][...].astype(np.int64)
            ids = torch.from_numpy(tokens)[None].to(model.device)
            compare = _LayerComparison(model, trace, prompt_id)
            kept = {"logits_to_keep": LOGIT_ROWS} if _may_skip_logits(trace, prompt_id) else {}
            with AttentionHook(model, compare), watching_inputs(compare.modules, compare.on_norm):
                hooked = model(input_ids=ids, use_cache=False, **kept).logits
            plain = _plain_logits(model, ids, kept)
            difference = float((hooked - plain).abs().max())
            checks.append(Check(prompt_id, "largest logit difference with the hook", difference, 0.0))
            checks += compare.checks
    return checks


def _may_skip_logits(trace, prompt_id):
    """Whether a prompt is long, and no layer skips rows whose logits nobody asks for: layers that share keys
    do."""
    prompt = trace[f"prompts/{prompt_id}"]
    shares = any("kv_layer" in layer.attrs for layer in prompt["layers"].values())
    return len(prompt["tokens"]) > LOGIT_ROWS and not shares


def _plain_logits(model, ids, kept):
    with base_attention(model):
        return model(input_ids=ids, use_cache=False, **kept).logits


class _LayerComparison:
    """Compares each recorded layer with the attention call while it runs, so memory holds one layer."""

    def __init__(self, model, trace, prompt_id):
        self.half = model.dtype in (torch.float16, torch.bfloat16)
        self.trace = trace
        self.prompt_id = prompt_id
        self.checks = []
        self.of_states = states_differ(model) if trace[f"prompts/{prompt_id}"].attrs["n_generated"] else ""
        layers = trace[f"prompts/{prompt_id}/layers"]
        self.modules = query_input_modules(
            model, [int(name) for name in layers if "resid_in_norm" in layers[name]]
        )

    def on_norm(self, layer, norm):
        """Compares the norms of a module's input rows with the recorded ones."""
        group = self.trace[layer_group(self.prompt_id, layer)]
        off = mean_relative_deviation(group["resid_in_norm"][...][:, None], _doubles(norm)[:, None])
        bound = TOLERANCE_ROWS[cache_dtype(group)]
        self._add(layer, "norm of what q is projected from against one full prefill", off, bound)

    def __call__(self, call):
        name = layer_group(self.prompt_id, call.layer)
        if name not in self.trace:
            return
        group = self.trace[name]
        dtype = cache_dtype(group)
        q_pos = group["q_pos"][...] if "q_pos" in group else slice(None)
        seen = {"q": call.q[:, q_pos], **call.cached()}
        rows = max(
            mean_relative_deviation(read_floats(group[tensor]), _doubles(live))
            for tensor, live in seen.items()
        )
        self._add(
            call.layer,
            f"{', '.join(seen)} against one full prefill",
            rows,
            TOLERANCE_ROWS[dtype],
            lambda: self.of_states,
        )
        out = attend_stored(group)
        live = mean_relative_deviation(out, _doubles(call.out[:, q_pos]))
        self._add(
            call.layer,
            "recomputed attention against the layer's output",
            live,
            TOLERANCE_OUT[dtype],
            lambda: too_few_digits(group) or self.of_states,
        )
        if "out" in group:
            stored = mean_relative_deviation(out, read_floats(group["out"]))
            self._add(call.layer, "recomputed attention against stored out", stored, TOLERANCE_OUT[dtype])

    def _add(self, layer, what, deviation, bound, why=str):
        """why(): a reason for a check that fails; "" if none is known."""
        bound = max(bound, TOLERANCE_HALF_MODEL) if self.half else bound
        check = Check(self.prompt_id, f"layer {layer}: {what}", deviation, bound)
        check.reason = "" if check.ok else why()
        self.checks.append(check)


def _doubles(tensor):
    return tensor.detach().double().cpu().numpy()
