"""`--verify` of a gradient: compares it with finite differences of the log-likelihood.

Attention outputs are moved by +e u and by -e u, and (L(+) - L(-)) / (2 e) is compared with the sum of g u.
Each prompt is tested in three directions: all layers and the recorded tokens; one layer and the recorded
tokens; all layers and one sample of drawn labels. With an answer, also all layers and the log-odds
of its tokens.
"""

from dataclasses import dataclass

import numpy as np
import torch
from kvtrace.disk_file import open_hdf5
from kvtrace.dtypes import read_floats

from .hook import NamedAttention, base_attention, layer_of
from .labels import draw, uniforms
from .sinks import layer_group
from .verify import Check

# g is stored in bfloat16: each number has a relative error of at most 2^-8, a sum of them less. The rest of
# the tolerance covers the rounding of L (1e-5 per row, against STEP) and its third order (STEP squared).
TOLERANCE = 2e-2
# How far one step moves L, in nats times the square root of the number of rows; rounding grows at this rate.
STEP = 0.005
CHUNK_ROWS = 128


@dataclass
class Direction:
    """One test: `g` {layer: [Hq, rows, Dv]}, the rows of g, and the labels [n] of the rows from `start`
    on, over which the log-likelihood is summed, or with `odds` the log-odds."""

    what: str
    g: dict
    rows: np.ndarray
    start: int
    labels: torch.Tensor
    odds: bool = False


class Moved(NamedAttention):
    """While entered, adds `by` {layer: [Hq, rows, Dv]} to the layers' attention outputs."""

    def __init__(self, model, rows, by):
        super().__init__(model)
        self.rows = rows
        self.by = by

    def attend(self, own, module, query, key, value, attention_mask, scaling=None, **kwargs):
        out, *rest = own(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        by = self.by.get(layer_of(module))
        if by is not None:
            out = out.clone()
            out[0, self.rows] += torch.from_numpy(by).to(out).transpose(0, 1)
        return out, *rest


def verify_gradient(model, path):
    """List of Check for every prompt of a published trace. It is empty without a gradient, and for a 16-bit
    model, because rounding moves its log-likelihood by more than a step does."""
    with open_hdf5(path) as trace, torch.no_grad():
        if "g_samples" not in trace.attrs or model.dtype in (torch.float16, torch.bfloat16):
            return []
        return [check for prompt_id in trace["prompts"] for check in _checks(model, trace, prompt_id)]


def _checks(model, trace, prompt_id):
    tokens = trace[f"prompts/{prompt_id}/tokens"][...].astype(np.int64)
    ids = torch.from_numpy(tokens)[None].to(model.device)
    random = np.random.default_rng(list(prompt_id.encode()))
    for direction in _directions(model, trace, prompt_id, ids, random):
        off = _deviation(model, ids, direction, random)
        yield Check(prompt_id, f"gradient, {direction.what}, against finite differences", off, TOLERANCE)


def _directions(model, trace, prompt_id, ids, random):
    groups = trace[f"prompts/{prompt_id}/layers"]
    layers = [int(name) for name in groups if "g_recorded" in groups[name]]
    rows = groups[f"{layers[0]:03d}/g_rows"][...]
    n_tokens = ids.shape[1]
    start = int(rows[0])

    def of(dataset, chosen, pick=slice(None)):
        read = {layer: trace[f"{layer_group(prompt_id, layer)}/{dataset}"] for layer in chosen}
        return {layer: read_floats(found)[pick] for layer, found in read.items()}

    recorded = ids[0, start + 1 :]
    yield Direction("all layers", of("g_recorded", layers), rows, start, recorded)
    one = int(random.choice(layers))
    yield Direction(f"layer {one}", of("g_recorded", [one]), rows, start, recorded)
    if "g_answer" in groups[f"{layers[0]:03d}"]:
        first = int(trace[f"prompts/{prompt_id}"].attrs["answer_from"])
        yield Direction("the answer", of("g_answer", layers), rows, first - 1, ids[0, first:], True)
    if trace.attrs["g_labels"] == "model":
        sample = int(random.integers(trace.attrs["g_samples"]))
        numbers = uniforms(int(trace.attrs["g_seed"]), prompt_id, sample + 1, range(start, n_tokens - 1))
        labels = _drawn(model, ids, start, numbers[sample])
        yield Direction(f"all layers, sample {sample}", of("g", layers, sample), rows, start, labels)


def _deviation(model, ids, direction, random):
    """|finite difference - sum of g u| / |sum of g u|, for u = g / |g| + a random direction.

    The random direction gets the sign for which its product with g is positive. So the sum is at least |g|,
    and a wrong factor or a missing part of g cannot hide behind a small sum.
    """
    g = direction.g
    drawn = {layer: random.standard_normal(part.shape, dtype=np.float32) for layer, part in g.items()}
    size = np.sqrt(sum(float(np.vdot(part, part)) for part in g.values()))
    if size == 0:
        return 0.0
    side = np.sign(sum(float(np.vdot(g[layer], part)) for layer, part in drawn.items())) or 1.0
    u = {layer: part / size + side * drawn[layer] for layer, part in g.items()}
    expected = sum(float(np.vdot(g[layer], part)) for layer, part in u.items())
    step = STEP * np.sqrt(len(direction.labels)) / size
    ahead, back = (
        _log_likelihood(model, ids, direction, {layer: (to * step * part) for layer, part in u.items()})
        for to in (1, -1)
    )
    return abs((ahead - back) / (2 * step) - expected) / expected


def _log_likelihood(model, ids, direction, by):
    with Moved(model, direction.rows, by):
        logits = model(input_ids=ids, use_cache=False).logits[0, direction.start : -1]
    parts = zip(logits.split(CHUNK_ROWS), direction.labels.split(CHUNK_ROWS), strict=True)
    # Summed in double precision, because the difference of two such sums is small.
    return sum(
        float(_of_labels(rows.float().log_softmax(-1), labels[:, None], direction.odds).double().sum())
        for rows, labels in parts
    )


def _of_labels(log_probs, labels, odds):
    """Log-probabilities of labels [rows, 1], or their log-odds."""
    own = log_probs.gather(1, labels)[:, 0]
    return own - log_probs.scatter(1, labels, -torch.inf).logsumexp(-1) if odds else own


def _drawn(model, ids, start, numbers):
    with base_attention(model):
        logits = model(input_ids=ids, use_cache=False).logits[0, start:-1]
    labels = [
        draw(rows.float().log_softmax(-1), part[None])[0]
        for rows, part in zip(
            logits.split(CHUNK_ROWS),
            np.array_split(numbers, range(CHUNK_ROWS, len(numbers), CHUNK_ROWS)),
            strict=True,
        )
    ]
    return torch.cat(labels)
