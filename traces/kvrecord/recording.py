"""record_texts: runs a loaded model on texts and records a trace."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbase.errors import ConfigError

from .job import Job
from .model import LoadedModel
from .options import TEXTS, options_of, takes_options
from .prompts import prompts_of_texts
from .sinks import existing_trace

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@takes_options(TEXTS)
def record_texts(
    model: "PreTrainedModel",
    texts: str | Sequence[str | Sequence[int]],
    out: str | os.PathLike,
    *,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    name: str | None = None,
    verify: bool = False,
    progress: bool = True,
    overwrite: bool = False,
    **options: Any,
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
    verify: run the model once more and compare it with the trace.
    progress: report progress on stderr.
    overwrite: replace an existing trace.
    {options}

    Raises ConfigError if the request is wrong (a text, a layer, a length, no tokenizer, an existing file),
    and TraceError if the model cannot be recorded or disagrees with the trace. Messages are one line
    and name a remedy. `out` appears only when complete: after an error there is at most `<out>.part`. After
    a failed `verify` the trace stays, so that you can inspect it.
    """
    request = options_of(TEXTS, options)
    output = _free_target(out, overwrite)
    say = _say if progress else lambda text: None
    subject = LoadedModel(model, tokenizer, name)
    prompts = prompts_of_texts(texts)
    job = Job(request, say, subject, prompts, output, f"{TEXTS}()", show_progress=progress)
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
