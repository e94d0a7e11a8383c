"""kvreplay.record: records the queries, keys and values of a loaded model into a trace."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbase.progress import watched

from .trace import Trace
from .trace import open as open_trace

if TYPE_CHECKING:
    from kvrecord.recorder import Recorder
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def record(
    model: "PreTrainedModel",
    texts: str | Sequence[str | Sequence[int]],
    out: str | Path | None = None,
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
    overwrite: bool = False,
    progress: bool | None = None,
) -> Trace:
    """Run a loaded Hugging Face decoder on texts and record its queries, keys and values as a trace.

        trace = kv.record(model, ["a text", "another"], tokenizer=tokenizer, layers="every:4")
        run = kv.replay(trace, prefill=768, methods=["h2o"], budgets=[64])

    model: in eval mode, on any device. It is not changed.
    texts: one str, or a list in which each prompt is a str or a list of token ids. The trace names its
        prompts "0", "1", ...
    out: path of the trace. A name without a suffix becomes a folder with one file per layer. None: a
        temporary file, which is removed once no Trace, Layer or Run refers to it, at the latest when the
        process ends.
    tokenizer: the model's tokenizer; default: what AutoTokenizer loads from the same place.
    name: the model's name in the trace; default: the name that it was loaded by.
    layers: "all", "every:4" (0, 4, 8, ...), "0,7,15", or a list of numbers from 0.
    max_tokens: cut each prompt to its first so many tokens.
    generate: how many tokens the model adds to each prompt, greedily. N tokens give N - 1 rows, because the
        last one is never fed back. With 0 the whole text is the prompt: set `replay(prefill=...)`.
    dtype: how numbers are stored: "source" (as the model computes), "f32", "f16" or "bf16".
    query_stride: keep every n-th query.
    with_text: also store the text and the class of every token. Needs a tokenizer.
    gradient: how many samples of the gradient of the log-likelihood to record at every attention output; 8
        is a good number, 0 records none. Rows with a gradient are those after the prompt, or the second half
        of a text that is all prompt.
    verify: run the model once more and compare it with the trace.
    overwrite: replace an existing trace.
    progress: report progress on stderr; default: only on a terminal or in a notebook.

    Returns a Trace. It takes 2 or 4 bytes for each of (query heads + 2 kv heads) * head_dim numbers per layer
    and token, so choose layers. Needs torch and transformers: `pip install 'kvreplay[record]'`.

    Raises ConfigError if the request is wrong (a text, a layer, a length, no tokenizer, an existing file),
    TraceError if the model cannot be recorded or disagrees with the trace.
    """
    from kvrecord import ConfigError, TraceError, record_texts

    if not hasattr(model, "config"):
        raise ConfigError(f"model is a {type(model).__name__}: give a decoder that transformers has loaded")
    folder = None if out is not None else Path(tempfile.mkdtemp(prefix="kvreplay-"))
    try:
        path = record_texts(
            model,
            texts,
            out if folder is None else folder / "trace.h5",
            tokenizer=tokenizer,
            name=name,
            layers=layers,
            max_tokens=max_tokens,
            generate=generate,
            dtype=dtype,
            query_stride=query_stride,
            with_text=with_text,
            gradient=gradient,
            verify=verify,
            progress=watched() if progress is None else progress,
            overwrite=overwrite,
        )
        trace = open_trace(path)
    except BaseException as error:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, ConfigError):
            raise ConfigError(str(error)) from error
        if isinstance(error, TraceError):
            raise TraceError(str(error)) from error
        raise
    if folder is not None:
        weakref.finalize(trace, _remove, folder, os.getpid())
    return trace


def _remove(folder: Path, owner: int) -> None:
    """Removes the folder, but not in a forked process: the file belongs to the process that recorded it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def recorder(
    model: "PreTrainedModel",
    out: str | Path,
    *,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    name: str | None = None,
    **options: Any,
) -> "Recorder":
    """A context manager: all that your code runs on the model inside it goes into a trace.

        with kvreplay.recorder(model, "trace.h5", layers="every:4", dtype="bf16"):
            model.generate(ids, max_new_tokens=64)

    model: a loaded Hugging Face decoder in eval mode. out: the trace's file, or a folder: one file a layer.
    tokenizer: needed by `with_text` and `repeat` alone. name: of the model in the trace; default: what it was
    loaded as. options: layers, dtype ("source", "f32", "f16" or "bf16"), query_stride, with_text, out_layers,
    with_output, with_input, compress, gradient, repeat, lookahead. Inside, `rec.prompt("id")` names a prompt.

    Raises ConfigError where an option is wrong, TraceError where the model never calls the attention
    interface, its input is padded or batched, or it runs without a growing cache.
    """
    from kvrecord import record as start

    return start(model, out, tokenizer=tokenizer, name=name, **options)
