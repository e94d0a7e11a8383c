"""Command line of `kvreplay import`."""

import argparse
import sys
from pathlib import Path

from ..errors import KvreplayError
from .formats import FORMATS
from .run import import_file

EXAMPLES = """
examples:
  kvreplay import dump.safetensors -o mine.h5           # layers.N.q, .k, .v and dump.json beside it
  kvreplay import dump.npz -o mine.h5 --sidecar facts.json
  kvreplay import kv0.npy kv1.npy -o mine.h5 --queries q0.npy q1.npy --sidecar facts.json    # LMCache
"""


def build_parser() -> argparse.ArgumentParser:
    """Options of the command."""
    formats = "\n".join(f"  {known.name:12} {known.what}" for known in FORMATS)
    parser = argparse.ArgumentParser(
        "kvreplay import",
        description="Makes a trace of numbers that another program recorded.",
        epilog=f"formats:\n{formats}\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", nargs="+", type=Path, metavar="SOURCE", help="a file, or several in order")
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="OUT.h5", help="the trace")
    parser.add_argument("--format", metavar="F", help="default: what SOURCE looks like")
    parser.add_argument(
        "--sidecar", type=Path, metavar="J", help="JSON; default: SOURCE with the suffix .json"
    )
    parser.add_argument(
        "--queries", nargs="+", type=Path, default=[], metavar="Q", help="beside LMCache's chunks"
    )
    parser.add_argument("--compress", action="store_true", help="gzip; saves little")
    parser.add_argument("--force", action="store_true", help="overwrite OUT.h5")
    return parser


def say(text: str) -> None:
    """A line on stderr."""
    print(f"kvreplay import: {text}", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    """Entry point: 0 ok, 2 bad usage, 3 a source that cannot become a trace, 130 interrupted."""
    args = build_parser().parse_args(argv)
    if args.output.exists() and not args.force:
        say(f"error: {args.output} exists: use --force to overwrite it")
        return 2
    try:
        trace = import_file(
            args.source,
            args.output,
            format=args.format,
            sidecar=args.sidecar,
            queries=args.queries,
            compress=args.compress,
            say=say,
        )
        say(repr(trace))
    except KvreplayError as error:
        say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted; nothing was written")
        return 130
    print(args.output)
    return 0
