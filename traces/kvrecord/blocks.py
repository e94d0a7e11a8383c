"""A decoder as a chain of blocks: one forward pass, then backpropagation block by block.

Memory holds the graph of one block at a time. Each block is run again from its recorded input, and all
gradients at its output are propagated back through that graph. Rows before the first scored one affect later
rows only through their keys and values, and their gradient is not needed: blocks are run again only on the
rows from the first scored one on. The norm and head after the last block run for some rows at a time.
`gradient.check_chain` measures whether a model is such a chain.
"""

from contextlib import contextmanager

import torch
from kvbase.errors import TraceError

from .hook import NamedAttention, layer_of
from .masked_runs import Call
from .residual import first_of

REMEDY = "leave --with-gradient out"
MASK_DIMS = 4  # [1, 1 or Hq, rows, keys]


class LiveOutputs(NamedAttention):
    """While entered, collects the outputs of the attention calls with their graph, in `seen` {layer:
    [1, rows, Hq, Dv]}.

    `prefix` {layer: (key, value) [1, Hkv, first, .]}: keys and values of the sequence's first rows, for calls
    that run only the rows after them. `look(Call, output)` is called with each attention call;
    `instead(Call)` returns an output that replaces the model's. Either may be None.
    """

    def __init__(self, model):
        super().__init__(model)
        self.look = self.instead = None
        self.prefix = {}
        self.seen = {}
        self.modules = {}

    def attend(self, own, module, query, key, value, attention_mask, scaling=None, **kwargs):
        layer = layer_of(module)
        if layer in self.seen:
            raise TraceError(f"layer {layer} attends twice, so it has no single output: {REMEDY}")
        if layer in self.prefix:
            key, value = (torch.cat(parts, 2) for parts in zip(self.prefix[layer], (key, value), strict=True))
        call = Call(own, module, query, key, value, attention_mask, scaling, kwargs)
        output = self.instead(call) if self.instead else call.output()
        # With frozen weights, the first attention output is the first tensor that requires a gradient.
        if torch.is_grad_enabled() and not output.requires_grad:
            output.requires_grad_()
        self.seen[layer] = output
        self.modules[layer] = module
        if self.look:
            self.look(call, output)
        return output, None

    def take(self):
        """Returns `seen` and empties it."""
        seen, self.seen = self.seen, {}
        return seen


@contextmanager
def differentiable(model):
    """While entered, torch records graphs, and no parameter of the model requires a gradient. TraceError if a
    part of the model cannot be differentiated."""
    asking = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in asking:
        parameter.requires_grad_(False)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[0]
        raise TraceError(f"{type(model).__name__}: no gradient: {reason}: {REMEDY}") from error
    finally:
        for parameter in asking:
            parameter.requires_grad_(True)


def find_blocks(model, modules):
    """The model's list of blocks (ModuleList) that contain the attention modules. TraceError if there is
    none."""
    for blocks in model.modules():
        if not isinstance(blocks, torch.nn.ModuleList):
            continue
        owners = [{id(part) for part in block.modules()} for block in blocks]
        if all(any(id(module) in parts for parts in owners) for module in modules):
            return list(blocks)
    raise TraceError(
        f"{type(model).__name__} does not keep its blocks in a list that the recorder finds: {REMEDY}"
    )


class Chain:
    """One sequence's path through the blocks.

    `live`: the model's LiveOutputs, entered. `ids` [1, n]; `positions` [1, n], or None if they are 0..n-1.
    Blocks are run again on the rows from `first` on. `last` [1, n - first, hidden]: the last block's output
    for these rows. Use it inside `differentiable`.
    """

    def __init__(self, model, blocks, live, ids, positions=None, first=0):
        self.model = model
        self.blocks = blocks
        self.live = live
        self.ids = ids
        self.first = first
        self.inputs = []
        outputs = []
        live.look = self._keep_first_rows if first else None
        taps = [self._listen(block, outputs) for block in blocks]
        where = {} if positions is None else {"position_ids": positions}
        try:
            with torch.no_grad():
                model(input_ids=ids, use_cache=False, logits_to_keep=1, **where)
        finally:
            for tap in (tap for pair in taps for tap in pair):
                tap.remove()
        live.look = None
        live.take()
        self._check_links(outputs)
        self.last = first_of(outputs[-1])[:, first:]
        self.tuples = [isinstance(output, tuple) for output in outputs]
        self.inputs = [
            (block, rows_from(first, ids.shape[1], args), rows_from(first, ids.shape[1], kwargs))
            for block, args, kwargs in self.inputs
        ]

    def _keep_first_rows(self, call, _):
        kept = (x[:, :, : self.first].clone() for x in (call.key, call.value))
        self.live.prefix[call.layer] = tuple(kept)

    def _listen(self, block, outputs):
        def before(_, args, kwargs):
            self.inputs.append((block, args, kwargs))

        def after(_, args, output):
            outputs.append(output)

        return block.register_forward_pre_hook(before, with_kwargs=True), block.register_forward_hook(after)

    def _check_links(self, outputs):
        name = type(self.blocks[0]).__name__
        if [id(block) for block, _, _ in self.inputs] != list(map(id, self.blocks)):
            raise TraceError(f"the blocks ({name}) do not run once each, one after the other: {REMEDY}")
        for output, (_, args, kwargs) in zip(outputs, self.inputs[1:], strict=False):
            given, made = _stream(args, kwargs), first_of(output)
            if given is not made and not (given.shape == made.shape and torch.equal(given, made)):
                raise TraceError(f"a block ({name}) does not receive its predecessor's output: {REMEDY}")

    def run_again(self, number):
        """(input, output) [1, n - first, hidden] of block `number`; the output has its graph from the input.
        The chain drops the recorded input, so memory shrinks from the last block to the first."""
        block, args, kwargs = self.inputs[number]
        self.inputs[number] = None
        given = _stream(args, kwargs).detach().requires_grad_()
        return given, _run(block, given, args, kwargs)

    def last_block_with(self, instead):
        """[1, n - first, hidden]: the last block's output if each attention call's output is
        instead(Call)."""
        self.live.instead = instead
        try:
            stream = _stream(*self.inputs[0][1:])
            for block, args, kwargs in self.inputs:
                stream = _run(block, stream, args, kwargs)
        finally:
            self.live.instead = None
            self.live.take()
        return stream

    def logits_of(self, rows):
        """Logits [n, vocabulary] for some rows [1, n, hidden] of `last`, with their graph."""
        with self._blocks_skipped(rows):
            return self.model(input_ids=self.ids[:, : rows.shape[1]], use_cache=False).logits[0]

    @contextmanager
    def _blocks_skipped(self, rows):
        """While entered, no block computes anything; the last one returns `rows`."""
        own = [block.__dict__.get("forward") for block in self.blocks]
        for number, block in enumerate(self.blocks):
            is_last = number + 1 == len(self.blocks)
            block.forward = self._stand_in(rows if is_last else None, self.tuples[number])
        try:
            yield
        finally:
            for block, forward in zip(self.blocks, own, strict=True):
                if forward is None:
                    del block.forward
                else:
                    block.forward = forward

    @staticmethod
    def _stand_in(rows, is_tuple):
        def forward(*args, **kwargs):
            stream = _stream(args, kwargs) if rows is None else rows
            # Blocks of older releases return (stream, weights, cache); the last two are not used here.
            return (stream, None, None) if is_tuple else stream

        return forward


def _run(block, stream, args, kwargs):
    if args:
        return first_of(block(stream, *args[1:], **kwargs))
    return first_of(block(**{**kwargs, "hidden_states": stream}))


def rows_from(first, n_rows, x):
    """A block's argument restricted to the rows from `first` on: a tensor with n_rows rows, a mask
    [..., n_rows, keys], or a container of them. Other values are returned unchanged."""
    if isinstance(x, dict):
        return {name: rows_from(first, n_rows, part) for name, part in x.items()}
    if isinstance(x, (tuple, list)):
        return type(x)(rows_from(first, n_rows, part) for part in x)
    if not isinstance(x, torch.Tensor) or not first:
        return x
    if x.dim() == MASK_DIMS:
        return x[:, :, first:] if x.shape[2] == n_rows else x
    at = next((axis for axis, size in enumerate(x.shape[:2]) if size == n_rows), None)
    return x if at is None else x.narrow(at, first, n_rows - first)


def _stream(args, kwargs):
    return args[0] if args else kwargs["hidden_states"]
