"""The norm of what a layer projects to queries: of the vector behind the block's input norm, for
`--with-input` and `--repeat`."""

from contextlib import contextmanager

import torch

from .errors import DumpError
from .hook import AttentionHook

REMEDY = "leave --with-input and --repeat out"


def input_of(args, kwargs):
    """[1, n, hidden] among what an attention module is called with, or None."""
    given = args[0] if args else kwargs.get("hidden_states")
    return given if isinstance(given, torch.Tensor) else None


def find_modules(model, layers):
    """{layer: attention module}; DumpError where a module is given something else than its projections are,
    so that its input would say nothing of the queries. Seen on one token."""
    modules = {}
    if not layers:
        return modules

    def on_call(call):
        if call.layer in layers:
            modules[call.layer] = call.module

    with AttentionHook(model, on_call):
        _one_token(model)
    seen = {layer: _projected(model, module) for layer, module in modules.items()}
    for layer, told in seen.items():
        if not told:
            raise DumpError(
                f"layer {layer}: {type(modules[layer]).__name__} projects something else than what it is "
                f"given, so the norm of its input is not known: {REMEDY}"
            )
    return modules


def _projected(model, module):
    """Is what the module is given what one of its parts is given?"""
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


def watch_inputs(modules, on_norm):
    """Call `on_norm(layer, norm [n])`, float32, with the L2 norm of each row that a module of {layer: module}
    is given. Returns the listeners, each with `remove`."""

    def listen(layer):
        def before(_, args, kwargs):
            on_norm(layer, input_of(args, kwargs)[0].detach().float().norm(dim=-1))

        return before

    return [
        module.register_forward_pre_hook(listen(layer), with_kwargs=True) for layer, module in modules.items()
    ]


@contextmanager
def watching_inputs(modules, on_norm):
    """`watch_inputs` while it is entered."""
    taps = watch_inputs(modules, on_norm)
    try:
        yield
    finally:
        for tap in taps:
            tap.remove()
