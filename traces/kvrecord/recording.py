"""record_texts: runs a loaded model on texts and records a trace."""

import math
import operator
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvbase.errors import ConfigError

from .job import Job
from .model import LoadedModel
from .prompts import prompts_of_texts
from .sinks import existing_trace

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Request:
    """The options of a Job: those that `record_texts` has, and defaults for the command line's others."""

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
    """Run a loaded Hugging Face decoder on texts and record its queries, keys and values; return the path.

    The trace (HDF5, schema 1) holds q [query heads, rows, head dim] and k, v [kv heads, tokens, head dim] of
    every chosen layer, after rotary embedding.

    model: in eval mode, on any device. It is not changed.
    texts: one str, or a list in which each prompt is a str or a list of token ids; a tensor or an array of
        ids counts as a list. The trace names its prompts "0", "1", ...
    out: path of the trace. A folder, or a name without a suffix, gets one file per layer and an `index.h5`,
        whose path is returned.
    tokenizer: the model's tokenizer; only texts need one. Default: what AutoTokenizer loads from the place
        that the model was loaded from.
    name: the model's name in the trace; default: the name that it was loaded by.
    layers: "all", "every:4" (0, 4, 8, ...), "0,7,15", or integers from 0 on.
    max_tokens: cut each prompt to its first so many tokens, at least 1.
    generate: how many tokens the model adds to each prompt, greedily; 0 or more. N tokens give N - 1 rows,
        because the last one is never fed back.
    dtype: how numbers are stored: "source" (as the model computes), "f32", "f16" or "bf16".
    query_stride: keep every n-th query, at least 1.
    with_text: also store the text and the class of every token (needs a tokenizer).
    gradient: how many samples of the gradient of the log-likelihood to record at every attention output, with
        labels drawn from the model's predictions; 0: none. Rows are those after the prompt, or the second
        half of a text that is all prompt. 8 samples take as long as about 20 forward passes.
    verify: run the model once more and compare it with the trace.
    progress: report progress on stderr.
    overwrite: replace an existing trace.

    Raises ConfigError if the request is wrong (a text, a layer, a length, no tokenizer, an existing file),
    and TraceError if the model cannot be recorded or disagrees with the trace. Messages are one line
    and name a remedy. `out` appears only when complete: after an error there is at most `<out>.part`. After
    a failed `verify` the trace stays, so that you can inspect it.
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
        raise ConfigError(f"{found} exists: pass overwrite=True, or another name")
    # Not a Path, which would drop a slash at the end: that means a folder.
    return os.fspath(out)


def _at_least(name, least, value):
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise ConfigError(f"{name} = {value!r} is not an integer of at least {least}")
    return number


def _known_dtype(dtype):
    if dtype not in ("source", "f32", "f16", "bf16"):
        raise ConfigError(f"dtype = {dtype!r}: choose 'source', 'f32', 'f16' or 'bf16'")
    return dtype


def _integers(layers):
    try:
        return list(map(operator.index, layers))
    except TypeError as error:
        raise ConfigError(f"layers = {layers!r}: give 'all', 'every:4' or a list of integers") from error
