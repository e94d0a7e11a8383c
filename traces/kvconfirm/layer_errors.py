"""What each layer's attention loses, in the full model and on the way through the compressed one.

One pass of the full model measures every instance: in each layer its output z stands beside the exact o, with
the queries, keys and values of the full model, as in the engine; but here all heads of a layer are at hand,
and so is what their error becomes behind the output projection W and beside the residual stream x.
"""

from contextlib import contextmanager

import torch
from kvdump.errors import DumpError
from kvdump.residual import o_proj_weights, watch_residual

COLUMNS = (
    "layer",
    "rel_err_out_mean",  # |z - o| / |o|, mean over query heads and rows
    "rel_err_proj_mean",  # |(z - o) W| / |o W|, heads together, mean over rows
    "rel_err_resid_mean",  # |(z - o) W| / |x|, x the residual stream behind the attention block
    "rel_err_resid_late",  # the same over the last quarter of the rows
    "drift_mean",  # |x' - x| / |x| in the compressed run, x' its residual stream
)


@contextmanager
def residuals(model, layers, on_residual):
    """While entered, on_residual(layer, x [n, hidden]) sees the stream behind each attention block; nothing
    where the model's layout is not known."""
    try:
        taps = watch_residual(model, layers, lambda layer, x: on_residual(layer, x[0]))
    except DumpError:
        taps = []
    try:
        yield
    finally:
        for tap in taps:
            tap.remove()


class LayerErrors:
    """`way` of the full model's pass that measures other ways beside it.

    ways: {name: way}. Then `found[name][layer]` holds the means of COLUMNS that apply. A way that cannot be
    followed is left out. `tell(layer)` hears where the pass is.
    """

    def __init__(self, exact, ways, tell):
        self.exact = exact
        self.ways = dict(ways)
        self.tell = tell
        self.found = {name: {} for name in ways}
        self.streams = {}  # layer -> x of the full model
        self.waiting = {}  # (name, layer) -> |(z - o) W| [R]

    def __call__(self, call):
        self.tell(call.layer)
        exact = self.exact(call)
        weights = _projection(call)
        for name in list(self.ways):
            try:
                out = self.ways[name](call)
            except DumpError:
                del self.ways[name], self.found[name]
                continue
            if out is not None:
                self.found[name][call.layer] = self._measure(name, call.layer, out, exact, weights)
        return exact

    def _measure(self, name, layer, out, exact, weights):
        error = (out - exact).float()
        means = {"rel_err_out_mean": _mean(error.norm(dim=-1) / exact.float().norm(dim=-1))}
        if weights is not None:
            lost = _project(error, weights)
            means["rel_err_proj_mean"] = _mean(lost / _project(exact.float(), weights))
            self.waiting[name, layer] = lost
        return means

    def on_residual(self, layer, x):
        """After the layer's attention block."""
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
    """How far the residual stream of a compressed run is from the full model's, layer by layer."""

    def __init__(self, streams):
        self.streams = streams
        self.found = {}

    def on_residual(self, layer, x):
        """After the layer's attention block."""
        exact = self.streams[layer].float()
        self.found[layer] = {"drift_mean": _mean((x.float() - exact).norm(dim=-1) / exact.norm(dim=-1))}


def _projection(call):
    try:
        return o_proj_weights(call.module, call.q.shape[0]).float()
    except DumpError:
        return None


def _project(heads, weights):
    """Norm [R] of the sum over heads of heads [Hq, R, Dv] @ weights [Hq, Dv, hidden]."""
    return torch.einsum("hrd,hdo->ro", heads, weights).norm(dim=-1)


def _mean(x):
    return float(x.double().mean())
