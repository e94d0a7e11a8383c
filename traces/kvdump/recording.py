"""Recording texts with a model that is loaded already."""

import math
import operator
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import UsageError
from .job import Job
from .model import LoadedModel
from .prompts import prompts_of_texts
from .sinks import existing_trace

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Request:
    """What a Job asks of its options: those of the command line that a loaded model has a use for, and what
    the others stand at."""

    output: str
    layers: str | list[int]
    max_tokens: int | None
    generate: int
    dtype: str
    query_stride: int
    with_text: bool
    temperature: float = 0.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0
    ignore_eos: bool = False
    out_layers: str = ""
    with_output: bool = False
    compress: bool = False
    with_gradient: int = 0
    labels: str = "model"
    gradient_from: int | float | None = None
    gradient_seed: int = 0
    repeat: int = 0
    context_tokens: int | None = None
    with_input: bool = False
    lookahead: int = 0
    lookahead_budget: int | None = None
    max_bytes: float = math.inf
    resume: bool = False
    force: bool = True
    command_line: str = "record_texts()"


def record_texts(
    model: "PreTrainedModel",
    texts: str | Sequence[str | Sequence[int]],
    out: str | os.PathLike,
    *,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    name: str | None = None,
    layers: str | Iterable[int] = "all",
    max_tokens: int | None = None,
    generate: int = 0,
    dtype: str = "source",
    query_stride: int = 1,
    with_text: bool = False,
    gradient: int = 0,
    verify: bool = False,
    progress: bool = True,
    overwrite: bool = False,
) -> Path:
    """Record what a loaded Hugging Face decoder attends with on some texts; returns the trace's path.

    The trace (HDF5, schema 1) holds q [query heads, rows, head dim] and k, v [kv heads, tokens, head dim] of
    every chosen layer, after rotary embedding. Nothing is left behind in the model.

    model: in eval mode, on any device; it runs as it is.
    texts: one str, or a list in which each prompt is a str or a list of token ids; a tensor or an array of
        ids counts as a list. Prompts are named "0", "1", ... in the trace.
    out: the trace's file; a name without a suffix, or a folder, gets one file a layer and an `index.h5`,
        whose path is returned.
    tokenizer: of the model; only texts need one. By default what AutoTokenizer finds where the model was
        loaded from.
    name: of the model in the trace; by default what it was loaded as.
    layers: "all", "every:4" (0, 4, 8, ...), "0,7,15", or integers from 0 on.
    max_tokens: cut each prompt to its first tokens, at least 1.
    generate: tokens that the model adds to each prompt, greedily; 0 or more. N of them give N - 1 rows.
    dtype: "source" (what the model computes in), "f32", "f16" or "bf16".
    query_stride: keep every n-th query, at least 1.
    with_text: store the text of every token and its class as well (needs a tokenizer).
    gradient: samples of the gradient of the log-likelihood at every attention output, with labels drawn
        from the model's own predictions, of the rows behind the prompt (of a text that is all prompt, the
        second half); 0: none. 8 samples take as long as about 20 forward passes.
    verify: run the model once more and compare it with the trace.
    progress: say on stderr what is done.
    overwrite: put the trace in place of one that is there.

    Raises UsageError where the request cannot be met (a text, a layer, a length, a tokenizer, a file that is
    there), and DumpError, its parent, where the model cannot be recorded or the trace does not agree with it.
    Both say on one line what helps. `out` appears when it is whole: after an error there is `<out>.part` at
    most, but after a failed `verify` the trace stays for you to look at.
    """
    request = Request(
        output=_free_target(out, overwrite),
        layers=layers if isinstance(layers, str) else _integers(layers),
        max_tokens=None if max_tokens is None else _at_least("max_tokens", 1, max_tokens),
        generate=_at_least("generate", 0, generate),
        dtype=_known_dtype(dtype),
        query_stride=_at_least("query_stride", 1, query_stride),
        with_text=with_text,
        with_gradient=_at_least("gradient", 0, gradient),
    )
    say = _say if progress else lambda text: None
    subject = LoadedModel(model, tokenizer, name)
    job = Job(request, say, subject, prompts_of_texts(texts), show_progress=progress)
    job.print_plan()
    job.check_space()
    path = job.dump()
    if verify:
        job.verify(path)
    return path


def _say(text):
    print(text, file=sys.stderr, flush=True)


def _free_target(out, overwrite):
    found = existing_trace(out)
    if found and not overwrite:
        raise UsageError(f"{found} exists: pass overwrite=True, or another name")
    # Not a Path: a slash behind a new name says that it is a folder.
    return os.fspath(out)


def _at_least(name, least, value):
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise UsageError(f"{name} = {value!r} is not an integer of at least {least}")
    return number


def _known_dtype(dtype):
    if dtype not in ("source", "f32", "f16", "bf16"):
        raise UsageError(f"dtype = {dtype!r}: choose 'source', 'f32', 'f16' or 'bf16'")
    return dtype


def _integers(layers):
    try:
        return list(map(operator.index, layers))
    except TypeError as error:
        raise UsageError(f"layers = {layers!r}: give 'all', 'every:4' or a list of integers") from error
