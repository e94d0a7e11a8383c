"""Errors of each layer's attention, in the full model and in the compressed run.

One pass of the full model measures every instance: in each layer, its output z is compared with the exact o,
for the queries, keys and values of the full model, as in the engine. Here all heads of a layer are available,
so the error can also be measured after the output projection W and relative to the residual stream x.
"""

from contextlib import contextmanager

import torch
from kvbase.errors import KvreplayError
from kvrecord.layout import check_layout
from kvrecord.residual import blocks_of, joining, o_proj_of, o_proj_weights, watch_residual

COLUMNS = (
    "layer",
    "rel_err_out_mean",  # |z - o| / |o|, mean over query heads and rows
    "rel_err_proj_mean",  # |(z - o) W| / |o W|, heads together, mean over rows
    "rel_err_resid_mean",  # |J(z W) - J(o W)| / |x|, x the residual stream after the attention block, J the
    # block's function of its attention's output before the sum: identity, a norm, or a factor
    "rel_err_resid_late",  # rel_err_resid_mean over the last quarter of the rows
    "drift_mean",  # |x' - x| / |x|, x' the residual stream of the compressed run
)


@contextmanager
def residuals(blocks, on_residual):
    """While entered, calls on_residual(layer, x [n, hidden]) with the stream after each block's attention."""
    taps = watch_residual(blocks, lambda layer, x: on_residual(layer, x[0]))
    try:
        yield
    finally:
        for tap in taps:
            tap.remove()


def known_blocks(model, layers):
    """[(layer, block)] for these layers; [] if a block does not add its projected attention to the stream, or
    multiplies it by a gate before.

    In that case only `rel_err_out_mean` of COLUMNS is filled, without a message; `kvreplay record
    --with-output` reports the reason.
    """
    try:
        if check_layout(model, layers):
            return []
    except KvreplayError:
        return []
    return blocks_of(model, layers)


class LayerErrors:
    """`way` callback of the full model's pass that also measures other ways on the same inputs.

    ways: {name: way}; blocks: from `known_blocks`; exact: the way that computes the exact output. After the
    pass, `found[name][layer]` holds the means of COLUMNS that apply. A way that raises KvreplayError is
    dropped. `progress` (kvbase.progress) counts `layers`.
    """

    def __init__(self, layers, blocks, exact, ways, progress):
        self.joins = {layer: joining(block) for layer, block in blocks}
        self.exact = exact
        self.ways = dict(ways)
        self.layers = set(layers)
        self.progress = progress
        self.found = {name: {} for name in ways}
        self.streams = {}  # layer -> x [R, hidden] of the full model
        self.waiting = {}  # (name, layer) -> |J(z W) - J(o W)| [R]

    def __call__(self, call):
        if call.layer in self.layers:
            self.progress.step(f"layer {call.layer}")
        exact = self.exact(call)
        join = self.joins.get(call.layer)
        projection = join and Projection(call.module, join, exact.float())
        for name in list(self.ways):
            try:
                out = self.ways[name](call)
            except KvreplayError:
                del self.ways[name], self.found[name]
                continue
            if out is not None:
                self.found[name][call.layer] = self._measure(name, call.layer, out, exact, projection)
        return exact

    def _measure(self, name, layer, out, exact, projection):
        error, exact = (out - exact).float(), exact.float()
        means = {"rel_err_out_mean": _mean(error.norm(dim=-1) / exact.norm(dim=-1))}
        if projection:
            lost = projection(error)
            means["rel_err_proj_mean"] = _mean(lost.norm(dim=-1) / projection.whole.norm(dim=-1))
            self.waiting[name, layer] = projection.joined(lost)
        return means

    def on_residual(self, layer, x):
        """Called after the layer's attention block."""
        self.streams[layer] = x.detach().clone()
        for name in self.ways:
            lost = self.waiting.pop((name, layer), None)
            if lost is None:
                continue
            share = lost / x.float().norm(dim=-1)
            late = share[3 * len(share) // 4 :]
            self.found[name][layer] |= {
                "rel_err_resid_mean": _mean(share),
                "rel_err_resid_late": _mean(late),
            }


class Drift:
    """Distance of a compressed run's residual stream from the full model's, layer by layer."""

    def __init__(self, streams):
        self.streams = streams
        self.found = {}

    def on_residual(self, layer, x):
        """Called after the layer's attention block."""
        exact = self.streams[layer].float()
        self.found[layer] = {"drift_mean": _mean((x.float() - exact).norm(dim=-1) / exact.norm(dim=-1))}


class Projection:
    """W of one layer, from heads' outputs [Hq, R, Dv] to [R, hidden], and J of its block (see COLUMNS).

    exact: o of all heads [Hq, R, Dv]; `whole` [R, hidden] is o W.
    """

    def __init__(self, module, join, exact):
        self.weights = o_proj_weights(module, len(exact)).float()
        self.join = join
        self.whole = self(exact)
        bias = getattr(o_proj_of(module), "bias", None)
        self.added = self.whole if bias is None else self.whole + bias.float()
        self.exact = self._joined(self.added)

    def __call__(self, heads):
        return torch.einsum("hrd,hdo->ro", heads, self.weights)

    def joined(self, lost):
        """|J(o W + e W + b) - J(o W + b)| [R], for lost = e W and the projection's bias b."""
        return (self._joined(self.added + lost) - self.exact).norm(dim=-1)

    def _joined(self, x):
        with torch.no_grad():
            return self.join(x).to(self.weights.dtype)


def _mean(x):
    return float(x.double().mean())
