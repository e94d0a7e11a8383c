"""kvreplay.record: what a loaded model attends with, as a trace."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .bar import watched
from .errors import ConfigError, TraceError
from .trace import Trace
from .trace import open as open_trace

if TYPE_CHECKING:
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
    """Record what a loaded Hugging Face decoder attends with on some texts.

        trace = kvreplay.record(model, ["a text", "another"], layers="every:4")
        kvreplay.replay(trace, prefill=768, methods=["h2o"], budgets=[64])

    model: in eval mode, on any device; it runs as it is, and nothing is left behind in it.
    texts: one str, or a list in which each prompt is a str or a list of token ids. Prompts are named "0",
        "1", ... in the trace.
    out: the trace's file; a name without a suffix is a folder with a file for each layer. None: a temporary
        file, which is removed once nobody holds the Trace, its layers or a Run of it, at the latest with the
        process.
    tokenizer: of the model; default: what AutoTokenizer finds where the model was loaded from.
    name: of the model in the trace; default: what it was loaded as.
    layers: "all", "every:4" (0, 4, 8, ...), "0,7,15", or numbers from 0.
    max_tokens: cut each prompt to its first tokens. generate: tokens that the model adds to each prompt,
        greedily; N of them give N - 1 rows. With neither a text is the prompt as a whole: say in
        `replay(prefill=...)` where the prompt ends.
    dtype: "source" (what the model computes in), "f32", "f16" or "bf16". query_stride: keep every n-th query.
    with_text: store the text and the class of every token (needs a tokenizer).
    gradient: samples of the gradient of the log-likelihood at every attention output (8 is a good number),
        of the rows behind the prompt, or of the second half of a text that is all prompt; 0: none.
    verify: run the model once more and compare it with the trace.
    overwrite: put the trace in place of one that is there.
    progress: say on stderr what is done; default: on a terminal or in a notebook.

    A trace takes 2 or 4 bytes for each of (query heads + 2 kv heads) * head_dim numbers, a layer and token:
    choose layers. Needs torch and transformers (`pip install 'kvreplay[dump]'`).

    Raises ConfigError where the request cannot be met (a text, a layer, a length, no tokenizer, a file that
    is there), TraceError where the model cannot be recorded, or does not agree with the trace.
    """
    from kvdump import DumpError, UsageError, record_texts

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
        if isinstance(error, UsageError):
            raise ConfigError(str(error)) from error
        if isinstance(error, DumpError):
            raise TraceError(str(error)) from error
        raise
    if folder is not None:
        weakref.finalize(trace, _remove, folder, os.getpid())
    return trace


def _remove(folder: Path, owner: int) -> None:
    """A process that was forked does not take the file away from the one that recorded it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
