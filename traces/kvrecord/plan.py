"""Content and size of a trace, estimated before anything runs."""

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

from kvbase.errors import ConfigError
from kvtrace.dtypes import STORED

from .sizes import human_bytes

# Factor for chunk index, headers and checksums; they take less for any trace of a few hundred tokens.
HDF5_OVERHEAD = 1.01
# Numbers per token in the graph of a block: per hidden dimension, and per dimension of the query heads.
GRAPH_STREAMS, GRAPH_HEADS = 40, 12
# Logits processed at a time, and bytes for each: float32, and float64 for drawing labels.
CHUNK_LOGITS = 1 << 23
LOGIT_BYTES = 40


@dataclass(frozen=True)
class Shape:
    """Sizes of a model: layers, query heads, kv heads, key and value dims per head, hidden size.

    latent, rotated: with latent attention, the numbers of a token's latent and of the rotated part beside it.
    """

    n_layers: int
    n_q_heads: int
    n_kv_heads: int
    head_dim: int
    v_head_dim: int
    hidden: int
    latent: int = 0
    rotated: int = 0

    @property
    def cached(self):
        """Numbers of a token in the cache of a layer."""
        per_head = self.n_kv_heads * (self.head_dim + self.v_head_dim)
        return self.latent + self.rotated if self.latent else per_head

    @property
    def projections(self):
        """Numbers of a layer that make keys and values of the latent."""
        return self.n_q_heads * self.latent * (self.head_dim - self.rotated + self.v_head_dim)


def layer_bytes(shape, tokens, dtype, query_stride=1, with_out=False, with_output=False, gradients=0):
    """Bytes of one layer of one prompt: q, k, v; `out` if `with_out`; `out`, `o_proj` and `resid_norm` if
    `with_output`. `gradients`: rows of gradients, over all losses."""
    element = STORED[dtype][1]
    queries = math.ceil(tokens / query_stride)
    size = element * (queries * shape.n_q_heads * shape.head_dim)
    size += element * (tokens * shape.cached + shape.projections)
    if with_out or with_output:
        size += element * queries * shape.n_q_heads * shape.v_head_dim
    if with_output:
        size += 4 * (shape.n_q_heads * shape.v_head_dim * shape.hidden + tokens)
    size += STORED["bf16"][1] * gradients * shape.n_q_heads * shape.v_head_dim
    return size


def repeat_bytes(shape, rows, dtype):
    """Bytes of `rows` repeated rows in one layer: queries, keys and a norm."""
    keys = shape.cached if shape.latent else shape.head_dim * shape.n_kv_heads
    return rows * (STORED[dtype][1] * (shape.head_dim * shape.n_q_heads + keys) + 4)


def lookahead_bytes(shape, rows, dtype):
    """Bytes of `rows` rows of lookahead queries in one layer."""
    return rows * STORED[dtype][1] * shape.head_dim * shape.n_q_heads


def branch_bytes(shape, rows, dtype):
    """Bytes of `rows` rows of branches in one layer: queries, and what a cache holds of them."""
    return rows * STORED[dtype][1] * (shape.head_dim * shape.n_q_heads + shape.cached)


def gradient_memory(shape, tokens, scored, losses, width):
    """Estimated memory in bytes for the gradient of a prompt, besides the model, at `width` bytes a number.

    It counts the inputs of the blocks, the gradients at a block's output and at its attention, the graph of
    one block (with a feed-forward part of four times the hidden size), and one chunk of predictions. An
    attention that stores its probabilities (sinks, a soft cap) takes heads * tokens^2 numbers more.
    """
    heads = shape.n_q_heads * max(shape.head_dim, shape.v_head_dim)
    inputs = shape.n_layers * tokens * shape.hidden
    gradients = losses * scored * (shape.hidden + 2 * heads)
    graph = tokens * (GRAPH_STREAMS * shape.hidden + GRAPH_HEADS * heads)
    return width * (inputs + gradients + graph) + LOGIT_BYTES * CHUNK_LOGITS


def dump_bytes(shape, prompt_tokens, layers, options, gradient_rows=None, repeated=None, branch_rows=0):
    """Estimated bytes of the whole trace. The lists hold, for each prompt, how many rows are recorded, how
    many rows of gradients over all losses, and how many rows repeat its context. branch_rows: rows of all
    branches."""
    size = len(layers) * branch_bytes(shape, branch_rows, options.dtype)
    none = [0] * len(prompt_tokens)
    for tokens, gradients, rows in zip(prompt_tokens, gradient_rows or none, repeated or none, strict=True):
        size += len(layers) * (repeat_bytes(shape, rows, options.dtype) + 4 * tokens * options.with_input)
        size += len(layers) * lookahead_bytes(shape, options.lookahead, options.dtype)
        for layer in layers:
            with_out = layer in options.out_layers
            size += layer_bytes(
                shape, tokens, options.dtype, options.query_stride, with_out, options.with_output, gradients
            )
    return int(size * HDF5_OVERHEAD)


def check_space(size, largest_layer, path, max_bytes):
    """ConfigError if the trace exceeds `max_bytes` or the free disk space.

    Rows are first written to a spool file per layer and then moved layer by layer, so the disk must hold the
    trace and one more layer.
    """
    if size > max_bytes:
        raise ConfigError(
            f"the dump would take {human_bytes(size)}, more than --max-bytes {human_bytes(max_bytes)}: "
            "choose fewer layers, --query-stride, --dtype bf16, or raise --max-bytes"
        )
    folder = Path(path).absolute().parent
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if size + largest_layer > free:
        raise ConfigError(
            f"the dump needs {human_bytes(size + largest_layer)} while it is written, "
            f"the disk of {folder} has {human_bytes(free)} free"
        )
