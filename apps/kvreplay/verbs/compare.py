"""`kvreplay compare`: which method has the lowest error or loss at equal bytes.

A trace or a configuration is replayed at the shares first; the answer is read from the results.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvanalysis.answer.selection import shares_in
from kvanalysis.cli import add_compare_options
from kvbase.command import SOME_FAILED
from kvbase.errors import ConfigError
from kvbase.program import attend

if TYPE_CHECKING:
    import argparse

EXAMPLES = """examples:
  kvreplay compare mine.h5 --at 20%
  kvreplay compare out/first --at 10%,20%,40% --methods h2o,snapkv --of peak
"""
# What people choose between, each as its paper has it.
CONTENDERS = (
    "h2o,tova,scissorhands,buzz,streaming_llm,snapkv,pyramidkv,adakv,expected_attention,knorm,keydiff,lagkv,"
    "balancekv,subgen,uniform,window"
)
REPLAYED = {"out": "-o", "jobs": "-j", "seeds": "--seeds", "prefill": "--prefill"}  # only for the replay
ASKED = {"layers": "--layers", "of": "--of"}  # for the replay and the comparison
CONFIGS = (".yaml", ".yml", ".json")  # any other file is a trace


def add_options(parser: argparse.ArgumentParser) -> None:
    """The results, the question, and how a trace or a configuration is replayed."""
    what = "output directory of a run; or a trace, or a configuration, which is replayed"
    parser.add_argument("place", metavar="OUT|TRACE|CONFIG", type=Path, help=what)
    add_compare_options(parser)
    add = parser.add_argument_group("with a trace or a configuration").add_argument
    add("-o", "--out", metavar="DIR", help="where results go (default: out/compare-NAME)")
    add("-j", "--jobs", metavar="N", help="threads (default: all cores)")
    add("--seeds", metavar="N", help="seeds of the random methods (default: 5)")
    prefill = (
        "tokens that arrive in the one prompt call, or a share of them: 768 or 75%% (default: as recorded)"
    )
    add("--prefill", metavar="N|SHARE", help=prefill)


def run(options: argparse.Namespace) -> int | None:
    """Replays what is missing and prints the answers; returns the exit code."""
    from kvanalysis.commands import compare

    shares_in(options.at)
    if options.place.is_dir():
        extra = [words for name, words in REPLAYED.items() if getattr(options, name) is not None]
        if extra:
            raise ConfigError(
                f"{options.place}: is replayed already: {', '.join(extra)} belong to a trace or a config"
            )
        options.out = options.place
    else:
        options.out = Path(options.out or _default_folder(options))
        code = attend(_words(options))
        if code not in (0, SOME_FAILED):
            return code
    compare(options)
    return None


def _words(options: argparse.Namespace) -> list[str]:
    """What the engine's program runs."""
    shares = ",".join(f"{100 * share:.10g}%" for share in shares_in(options.at))
    words = ["run", str(options.place), "--budget", shares, "-o", str(options.out)]
    methods = options.methods
    if options.place.suffix not in CONFIGS:
        words.append("--predict")
        methods = methods or CONTENDERS
    if methods:
        words += ["--method", methods]
    for name, word in (REPLAYED | ASKED).items():
        if name != "out" and (value := getattr(options, name)) is not None:
            words += [word, value]
    return (["-q"] if options.quiet else []) + words


def _default_folder(options: argparse.Namespace) -> str:
    """Shares of one table are shares of the same bytes."""
    of = f"-{options.of}" if options.of else ""
    return f"out/compare-{options.place.stem}{of}"
