"""A decoder as a chain of blocks, run forwards once and backwards block by block.

The graph of one block at a time is in memory. Each block is run again from its recorded input, and each of
the gradients at its output is taken back through that one graph. Rows before the first scored one reach the
others through their keys and values alone, and nobody asks for their gradient: blocks are run again on the
rows from the first scored one on. The norm and head behind the last block run for some rows at a time.
`gradient.check_chain` measures whether a model is such a chain.
"""

from contextlib import contextmanager

import torch

from .errors import DumpError
from .hook import NamedAttention, layer_of
from .masked_runs import Call
from .residual import first_of

REMEDY = "leave --with-gradient out"
MASK_DIMS = 4  # [1, 1 or Hq, rows, keys]


class LiveOutputs(NamedAttention):
    """While it is entered, `seen` {layer: [1, rows, Hq, Dv]} takes the outputs of the attention calls, with
    their graph, as they flow on.

    `prefix` {layer: (key, value) [1, Hkv, first, .]} holds what the first rows of the sequence left, where a
    call is of the rows behind them. `look(Call, output)`, where it is not None, is shown each call;
    `instead(Call)`, where it is not None, gives the output.
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
            raise DumpError(f"layer {layer} attends twice, so it has no single output: {REMEDY}")
        if layer in self.prefix:
            key, value = (torch.cat(parts, 2) for parts in zip(self.prefix[layer], (key, value), strict=True))
        call = Call(own, module, query, key, value, attention_mask, scaling, kwargs)
        output = self.instead(call) if self.instead else call.output()
        # Frozen weights ask for no gradient before the first of these.
        if torch.is_grad_enabled() and not output.requires_grad:
            output.requires_grad_()
        self.seen[layer] = output
        self.modules[layer] = module
        if self.look:
            self.look(call, output)
        return output, None

    def take(self):
        """What was seen since the last time."""
        seen, self.seen = self.seen, {}
        return seen


@contextmanager
def differentiable(model):
    """While it is entered, torch makes graphs, and no parameter of the model asks for a gradient. DumpError
    where a part cannot be differentiated."""
    asking = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in asking:
        parameter.requires_grad_(False)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[0]
        raise DumpError(f"{type(model).__name__}: no gradient: {reason}: {REMEDY}") from error
    finally:
        for parameter in asking:
            parameter.requires_grad_(True)


def find_blocks(model, modules):
    """The list of blocks (ModuleList) in which each of the attention modules has a block of its own."""
    for blocks in model.modules():
        if not isinstance(blocks, torch.nn.ModuleList):
            continue
        owners = [{id(part) for part in block.modules()} for block in blocks]
        if all(any(id(module) in parts for parts in owners) for module in modules):
            return list(blocks)
    raise DumpError(f"{type(model).__name__} keeps its blocks in no list that kvdump can find: {REMEDY}")


class Chain:
    """One sequence's way through the blocks.

    `live`: LiveOutputs of the model, entered. `ids` [1, n]; `positions` [1, n] or None where they count from
    0. Blocks run again on the rows from `first` on. `last` [1, n - first, hidden] is what the last block gave
    them. Use it inside `differentiable`.
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
            raise DumpError(f"the blocks ({name}) do not run once each, one after the other: {REMEDY}")
        for output, (_, args, kwargs) in zip(outputs, self.inputs[1:], strict=False):
            given, made = _stream(args, kwargs), first_of(output)
            if given is not made and not (given.shape == made.shape and torch.equal(given, made)):
                raise DumpError(f"what a block ({name}) is given is not what the one before gave: {REMEDY}")

    def run_again(self, number):
        """(input, output) [1, n - first, hidden] of block `number`, the second with its graph from the first
        on. The chain forgets the input: from the last block to the first, memory shrinks."""
        block, args, kwargs = self.inputs[number]
        self.inputs[number] = None
        given = _stream(args, kwargs).detach().requires_grad_()
        return given, _run(block, given, args, kwargs)

    def last_under(self, instead):
        """[1, n - first, hidden]: what the last block gives where each attention call's output is
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
        """Logits [n, vocabulary] of rows [1, n, hidden] of `last`, with their graph."""
        with self._passed_by(rows):
            return self.model(input_ids=self.ids[:, : rows.shape[1]], use_cache=False).logits[0]

    @contextmanager
    def _passed_by(self, rows):
        """No block runs; the last one gives `rows`."""
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
            # Beside the stream, a block of an older release may return weights and a cache: nobody asks here.
            return (stream, None, None) if is_tuple else stream

        return forward


def _run(block, stream, args, kwargs):
    if args:
        return first_of(block(stream, *args[1:], **kwargs))
    return first_of(block(**{**kwargs, "hidden_states": stream}))


def rows_from(first, n_rows, x):
    """What a block is given of the rows from `first` on: a tensor of n_rows rows, a mask [..., n_rows, keys],
    or a container of such; anything else as it is."""
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
