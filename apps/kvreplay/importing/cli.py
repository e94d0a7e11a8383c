"""`kvreplay import`: a trace from arrays that another program saved."""

import argparse
from pathlib import Path

from kvbase.command import say as report
from kvbase.errors import ConfigError
from kvbase.files import why_unwritable

from .formats import FORMATS
from .run import import_file

EXAMPLES = (
    "formats:\n"
    + "\n".join(f"  {known.name:12} {known.what}" for known in FORMATS)
    + """

examples:
  kvreplay import dump.safetensors -o mine.h5           # layers.N.q, .k, .v and dump.json beside it
  kvreplay import dump.npz -o mine.h5 --sidecar facts.json
  kvreplay import kv0.npy kv1.npy -o mine.h5 --queries q0.npy q1.npy --sidecar facts.json    # LMCache
  kvreplay import flashinfer_dumps -o mine.h5           # FlashInfer's flight recorder
  kvreplay import saves/HASH -o mine.h5 --queries q.safetensors --sidecar facts.json         # vLLM
"""
)
EXTRA = "import"
STOPPED = "nothing was written"


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options, each declared once."""
    add = parser.add_argument
    add("source", nargs="+", type=Path, metavar="SOURCE", help="a file or folder, or several in order")
    add("-o", "--output", required=True, type=Path, metavar="OUT.h5", help="the trace")
    add("--format", metavar="F", help="name of the format (default: recognised from SOURCE)")
    add("--sidecar", type=Path, metavar="J", help="JSON file of facts (default: SOURCE with suffix .json)")
    add("--queries", nargs="+", type=Path, default=[], metavar="Q", help="files of queries (LMCache, vLLM)")
    add("--compress", action="store_true", help="gzip; saves little")
    add("--force", action="store_true", help="overwrite OUT.h5")


def say(text: str) -> None:
    """A line on stderr."""
    report(f"kvreplay import: {text}")


def run(options: argparse.Namespace) -> None:
    """Writes the trace and prints its path."""
    out = options.output
    if out.is_dir():
        raise ConfigError(f"{out}: is a folder: name a file, such as -o {out / 'trace.h5'}")
    if why := why_unwritable(out):
        raise ConfigError(f"{out}: {why}: choose another -o")
    if out.exists() and not options.force:
        raise ConfigError(f"{out} exists: use --force to overwrite it")
    trace = import_file(
        options.source,
        out,
        format=options.format,
        sidecar=options.sidecar,
        queries=options.queries,
        compress=options.compress,
        say=say,
    )
    say(repr(trace))
    print(out)
