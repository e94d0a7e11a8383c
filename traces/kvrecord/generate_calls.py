"""Calls of a model's `generate` while it is recorded: how long the prompt is, and which tokens end a row."""

from dataclasses import dataclass

import torch
from kvbase.errors import TraceError

NOT_TOLD = ("stopping_criteria", "stop_strings")  # rules that end a row, unknown to the recorder


@dataclass(frozen=True)
class Generation:
    """One call of `generate`. n_prompt: columns of its prompt, padding included. ends: tokens after which
    `generate` only pads a row of a batch."""

    n_prompt: int
    ends: frozenset


class GenerateWatch:
    """While entered, calls `on_begin(Generation)` and `on_end(failed)` around `generate` of the model.
    TraceError if the call searches with beams, where `guarded` lets it pass: it gets the work before each
    call."""

    def __init__(self, model, on_begin, on_end, guarded=lambda work: work()):
        self.model = model
        self.on_begin = on_begin
        self.on_end = on_end
        self.guarded = guarded

    def __enter__(self):
        if not hasattr(self.model, "generate"):
            return
        self.own = vars(self.model).get("generate")
        generate = self.model.generate

        def watched(*args, **kwargs):
            ids = args[0] if args else kwargs.get("inputs", kwargs.get("input_ids"))
            if isinstance(ids, torch.Tensor) and ids.ndim == 2:
                self.guarded(lambda: self.on_begin(_generation(self.model, ids, args, kwargs)))
            failed = True
            try:
                output = generate(*args, **kwargs)
                failed = False
                return output
            finally:
                self.on_end(failed)

        self.model.generate = watched

    def __exit__(self, *_):
        if "generate" not in vars(self.model):
            return
        del self.model.generate
        if self.own is not None:
            self.model.generate = self.own


def _generation(model, ids, args, kwargs):
    def option(name):
        return _option(model, args, kwargs, name)

    beams = option("num_beams") or 1
    if beams > 1:
        raise TraceError(
            f"num_beams = {beams}: beams exchange their caches, so no row is one text; generate with "
            "num_beams=1"
        )
    rows = len(ids) * (option("num_return_sequences") or 1)
    for name in NOT_TOLD:
        if rows > 1 and option(name):
            raise TraceError(
                f"{name} in a batch of {rows} sequences: the recorder cannot tell where a row ended; "
                f"generate without {name}, or one sequence at a time"
            )
    ends = option("eos_token_id")
    ends = ends.tolist() if isinstance(ends, torch.Tensor) else ends
    return Generation(ids.shape[1], frozenset([ends] if isinstance(ends, int) else ends or ()))


def _option(model, args, kwargs, name):
    """What `generate` takes for an option: its argument, else its configuration's, else the model's."""
    if name in kwargs:
        return kwargs[name]
    given = args[1] if len(args) > 1 else kwargs.get("generation_config")
    values = (getattr(config, name, None) for config in (given, getattr(model, "generation_config", None)))
    return next((value for value in values if value is not None), None)
