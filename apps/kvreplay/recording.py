"""kvreplay.record: records the queries, keys and values of a loaded model into a trace."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbase.progress import watched
from kvrecord.options import LIVE, TEXTS, takes_options

from .arguments import suggest_arguments
from .trace import Trace
from .trace import open as open_trace

if TYPE_CHECKING:
    from kvrecord.recorder import Recorder
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@suggest_arguments
@takes_options(TEXTS)
def record(
    model: "PreTrainedModel",
    texts: str | Sequence[str | Sequence[int]],
    out: str | Path | None = None,
    *,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    name: str | None = None,
    verify: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    **options: Any,
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
    verify: run the model once more and compare it with the trace.
    overwrite: replace an existing trace.
    progress: report progress on stderr; default: only on a terminal or in a notebook.
    {options}

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
            verify=verify,
            progress=watched() if progress is None else progress,
            overwrite=overwrite,
            **options,
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


@suggest_arguments
@takes_options(LIVE)
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
    loaded as. Inside, `rec.prompt("id")` names a prompt.
    {options}

    Raises ConfigError where an option is wrong, TraceError where the model never calls the attention
    interface, its input is padded or batched, or it runs without a growing cache.
    """
    from kvrecord import record as start

    return start(model, out, tokenizer=tokenizer, name=name, **options)
