"""What each layer's attention loses, in the full model and on the way through the compressed one.

One pass of the full model measures every instance: in each layer its output z stands beside the exact o, with
the queries, keys and values of the full model, as in the engine; but here all heads of a layer are at hand,
and so is what their error becomes behind the output projection W and beside the residual stream x.
"""

from contextlib import contextmanager

import torch
from kvdump.errors import DumpError
from kvdump.layout import check_layout
from kvdump.residual import blocks_of, joining, o_proj_of, o_proj_weights, watch_residual

COLUMNS = (
    "layer",
    "rel_err_out_mean",  # |z - o| / |o|, mean over query heads and rows
    "rel_err_proj_mean",  # |(z - o) W| / |o W|, heads together, mean over rows
    "rel_err_resid_mean",  # |J(z W) - J(o W)| / |x|, x the residual stream behind the attention block, J what
    # the block does with its attention's output before the sum: nothing, a norm, or a factor
    "rel_err_resid_late",  # the same over the last quarter of the rows
    "drift_mean",  # |x' - x| / |x| in the compressed run, x' its residual stream
)


@contextmanager
def residuals(blocks, on_residual):
    """While entered, on_residual(layer, x [n, hidden]) sees the stream behind the attention of each block."""
    taps = watch_residual(blocks, lambda layer, x: on_residual(layer, x[0]))
    try:
        yield
    finally:
        for tap in taps:
            tap.remove()


def known_blocks(model, layers):
    """[(layer, block)] of these layers; none where some block does not add what its names say.

    Then nothing is said of what lies behind the heads, without a word: of COLUMNS only `rel_err_out_mean`
    is filled. `kvdump --with-output` gives the reason.
    """
    try:
        check_layout(model, layers)
    except DumpError:
        return []
    return blocks_of(model, layers)


class LayerErrors:
    """`way` of the full model's pass that measures other ways beside it.

    ways: {name: way}; blocks: `known_blocks`, which say what reaches the residual stream. Then
    `found[name][layer]` holds the means of COLUMNS that apply. A way that cannot be followed is left out.
    `progress` (kvdump.progress) counts `layers`.
    """

    def __init__(self, layers, blocks, exact, ways, progress):
        self.joins = {layer: joining(block) for layer, block in blocks}
        self.exact = exact
        self.ways = dict(ways)
        self.layers = set(layers)
        self.progress = progress
        self.found = {name: {} for name in ways}
        self.streams = {}  # layer -> x of the full model
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
            except DumpError:
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


class Projection:
    """W of one layer, from heads' outputs [Hq, R, Dv] to [R, hidden], and J of its block (see COLUMNS).

    exact: o of all heads; `whole` [R, hidden] is o W.
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
        """|J(o W + e W + b) - J(o W + b)| [R] of lost = e W."""
        return (self._joined(self.added + lost) - self.exact).norm(dim=-1)

    def _joined(self, x):
        with torch.no_grad():
            return self.join(x).to(self.weights.dtype)


def _mean(x):
    return float(x.double().mean())
