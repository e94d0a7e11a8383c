"""`kvreplay compare`: which method has the lowest error or loss at equal bytes.

A trace or a configuration is replayed at the shares first; the answer is read from the results.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvanalysis.answer.selection import shares_in
from kvanalysis.answer.sizes import PEAK, PROMPT
from kvanalysis.cli import add_compare_options
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
REPLAYED = {"out": "-o", "jobs": "-j", "seeds": "--seeds", "prefill": "--prefill"}  # words of `kvreplay run`
SOME_FAILED = 1


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
        given = [words for name, words in REPLAYED.items() if getattr(options, name) is not None]
        if given:
            raise ConfigError(
                f"{options.place}: is replayed already: {', '.join(given)} belong to a trace or a config"
            )
        options.out = options.place
    else:
        usual = PROMPT if _has_prompt(options) else PEAK
        options.of = options.of or usual
        options.out = Path(options.out or _default_folder(options, usual))
        code = attend(_words(options))
        if code not in (0, SOME_FAILED):
            return code
    compare(options)
    return None


def _words(options: argparse.Namespace) -> list[str]:
    """What the engine's program runs."""
    shares = ",".join(f"{100 * share:.10g}%" for share in shares_in(options.at))
    words = [
        "run",
        str(options.place),
        "--budget",
        shares,
        "-s",
        f"budget.of={options.of}",
        "-o",
        str(options.out),
    ]
    methods = options.methods or (CONTENDERS if _is_trace(options.place) else None)
    if _is_trace(options.place):
        words.append("--predict")
    if methods:
        words += ["--method", methods]
    for name in ("jobs", "seeds", "prefill"):
        if (value := getattr(options, name)) is not None:
            words += [REPLAYED[name], value]
    return (["-q"] if options.quiet else []) + words


def _default_folder(options: argparse.Namespace, usual: str) -> str:
    """Shares of one table are shares of the same bytes."""
    of = "" if options.of == usual else f"-{options.of}"
    return f"out/compare-{options.place.stem}{of}"


def _is_trace(place: Path) -> bool:
    try:
        with place.open("rb") as file:
            if file.read(8) == b"\x89HDF\r\n\x1a\n":
                return True
    except OSError:
        pass
    return place.suffix in (".h5", ".hdf5", ".part")


def _has_prompt(options: argparse.Namespace) -> bool:
    """Whether a prompt is cut and tokens follow it. What cannot be read, the program refuses in its words."""
    if options.prefill is not None:
        return options.prefill != "0"
    if _is_trace(options.place):
        return _tokens_follow(options.place)
    import yaml

    try:
        config = yaml.safe_load(options.place.read_text())
        replay: Any = config.get("replay") or {}
        if replay.get("prefill", "trace") != "trace":
            return bool(replay["prefill"])
        return _tokens_follow(options.place.parent / config["traces"][0])
    except (OSError, UnicodeError, yaml.YAMLError, AttributeError, KeyError, IndexError, TypeError):
        return False


def _tokens_follow(trace: Path) -> bool:
    import h5py

    try:
        with h5py.File(trace) as file:
            prompts = list(file["prompts"].values())
            return bool(prompts) and all(
                0 < int(one.attrs.get("n_prompt", 0)) < len(one["tokens"]) for one in prompts
            )
    except (OSError, KeyError, ValueError, TypeError, AttributeError):
        return False
