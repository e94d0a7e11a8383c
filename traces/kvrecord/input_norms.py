"""L2 norms of the vectors that a layer projects to queries (after the block's input norm), for `--with-input`
and `--repeat`."""

from contextlib import contextmanager

import torch
from kvbase.errors import TraceError

from .hook import AttentionHook

REMEDY = "leave --with-input and --repeat out"


def input_of(args, kwargs):
    """The hidden states [batch, n, hidden] among an attention module's arguments, or None."""
    given = args[0] if args else kwargs.get("hidden_states")
    return given if isinstance(given, torch.Tensor) else None


def attention_modules(model, layers):
    """{layer: attention module} of these layers, from a pass over one token."""
    modules = {}

    def on_call(call):
        if call.layer in layers:
            modules[call.layer] = call.module

    if layers:
        with AttentionHook(model, on_call):
            _one_token(model)
    return modules


def query_input_modules(model, layers):
    """{layer: attention module}. TraceError if a module's input is not the input of its projections, because
    its norm would then say nothing about the queries. Tested on one token."""
    modules = attention_modules(model, layers)
    seen = {layer: _projected(model, module) for layer, module in modules.items()}
    for layer, told in seen.items():
        if not told:
            raise TraceError(
                f"layer {layer}: {type(modules[layer]).__name__} does not project its own input, so the norm "
                f"of what it projects is not known: {REMEDY}"
            )
    return modules


def _projected(model, module):
    """Does one of the module's parts receive the module's input unchanged?"""
    given, found = [], []

    def on_module(_, args, kwargs):
        given.append(input_of(args, kwargs))

    def on_part(_, args):
        found.append(
            bool(args)
            and given[-1] is not None
            and args[0].shape[-1:] == given[-1].shape[-1:]
            and torch.equal(args[0].flatten(), given[-1].flatten())
        )

    handles = [module.register_forward_pre_hook(on_module, with_kwargs=True)]
    handles += [part.register_forward_pre_hook(on_part) for part in module.children()]
    try:
        _one_token(model)
    finally:
        for handle in handles:
            handle.remove()
    return any(found)


def _one_token(model):
    token = torch.tensor([[model.config.get_text_config().vocab_size // 3]], device=model.device)
    with torch.no_grad():
        model(input_ids=token, use_cache=False)


def watch_inputs(modules, on_norms):
    """Calls `on_norms(layer, norms [batch, n])`, float32, with the L2 norm of each input row of the modules
    {layer: module}. Returns the hooks, each with `remove`."""

    def listen(layer):
        def before(_, args, kwargs):
            on_norms(layer, input_of(args, kwargs).detach().float().norm(dim=-1))

        return before

    return [
        module.register_forward_pre_hook(listen(layer), with_kwargs=True) for layer, module in modules.items()
    ]


@contextmanager
def watching_inputs(modules, on_norm):
    """`watch_inputs` as a context manager, for one sequence: `on_norm(layer, norm [n])`."""
    taps = watch_inputs(modules, lambda layer, norms: on_norm(layer, norms[0]))
    try:
        yield
    finally:
        for tap in taps:
            tap.remove()
