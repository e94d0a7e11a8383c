"""Options of the verbs that read results. commands.py runs the verbs."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbase.selections import HELP as LAYERS

from . import commands
from .answer.sizes import SIZES

FILE = {"metavar": "FILE", "type": Path}
OUT = "folder that holds results.csv"


@dataclass(frozen=True)
class Work:
    """A verb for kvbase.command: its options, its function, and the text at the end of its --help."""

    add_options: Callable[[Any], None]
    run: Callable[[Any], int | None]
    EXAMPLES: str
    EXTRA: str = "analysis"
    STOPPED: str = "run again to continue"


def _examples(*lines):
    return "examples:\n" + "\n".join(f"  kvreplay {line}" for line in lines)


def _report(parser):
    parser.add_argument(
        "out", metavar="OUT", type=Path, help=f"{OUT}, or figures of `kvreplay figures CONFIG`"
    )
    parser.add_argument("-o", "--output", help="the page (default: OUT/report.html)", **FILE)


def _out_only(parser):
    parser.add_argument("out", metavar="OUT", type=Path, help=OUT)


def _table(parser):
    _out_only(parser)
    more = "with 95 %% intervals over layers, more measures, and notes on rows"
    parser.add_argument("--intervals", action="store_true", help=more)


def add_run_options(parser, overridden, default):
    """Options of a verb that replays a configuration: output, traces, and how much to run."""
    add = parser.add_argument
    add("-o", "--out", metavar="DIR", type=Path, default=default, help=f"default: {default}")
    add_overrides(parser, overridden)
    add("--quick", action="store_true", help="only one kv head per layer: a quick look, not a result")
    add("--force", action="store_true", help="discard the results of an earlier run")


def add_overrides(parser, overridden):
    """Options that change a configuration."""
    add = parser.add_argument
    add("--trace", action="append", default=[], metavar="FILE", type=Path, help="instead of its traces")
    add("-s", "--set", action="append", default=[], metavar="KEY=VALUE", help=f"override of {overridden}")


def add_compare_options(parser):
    """The question for `compare`: shares of bytes, layers, methods and the measure."""
    add = parser.add_argument
    shares = "compare at these shares of the cache's bytes: 20%% or 10%%,20%%,40%%"
    add("--at", required=True, metavar="SHARES", help=shares)
    which = (
        "bytes to count: the prompt's after its cut, as papers count them (the default if the trace has a "
        "prompt and tokens after it), at the peak, or the mean over steps"
    )
    add("--of", choices=tuple(SIZES), help=which)
    add("--layers", metavar="LIST", help=LAYERS)
    nats = "nats (predicted from a gradient; the default if all methods have them with intervals)"
    others = "distance (squared cosine distance, the default otherwise), error, cosine, or a column"
    add("--measure", metavar="NAME", help=f"measure to compare: {nats}, {others} in which less is better")
    add("--methods", "--method", metavar="LIST", help="these methods only: h2o,tova")
    add("--phase", choices=("stream", "oneshot"), help="methods of this phase only")


def _figures(parser):
    what = f"{OUT}, a figure's configuration, or a folder of configurations"
    parser.add_argument("place", metavar="OUT|CONFIG", type=Path, help=what)
    add_run_options(parser.add_argument_group("with a configuration"), "every run step", Path("out/figures"))


def _claims(parser):
    what = "a model's folder of figures (default name: the folder's)"
    parser.add_argument("folders", metavar="[NAME=]DIR", nargs="+", help=what)
    parser.add_argument("--csv", help="also write one row for each claim and model", **FILE)


def _leaderboard(parser):
    parser.add_argument("config", metavar="CONFIG", type=Path, help="such as configs/leaderboard.yaml")
    add_run_options(parser, "every run step", Path("out/leaderboard"))


def _refine(parser):
    from .sweeps.rounds import ENGINES, RUN

    add = parser.add_argument
    add("config", metavar="CONFIG", type=Path, help="a configuration (configs/sweeps/*.yaml)")
    add("-o", "--out", metavar="OUT", type=Path, required=True, help="the sweep's folder")
    add("--engine", choices=ENGINES, default=RUN, help=f"default: {RUN}")
    add("--submit", default="", metavar="WORDS", help="further options of `kvreplay sweep submit`, in quotes")
    add_overrides(parser, "the configuration")


def _study(parser):
    add = parser.add_argument
    add("config", metavar="CONFIG", type=Path, help="such as configs/models.yaml")
    add("-o", "--out", metavar="OUT", type=Path, default=Path("out/models"), help="default: out/models")
    add("--files", metavar="DIR", type=Path, help="the folder of GGUF files (default: the configuration's)")
    add("--models", metavar="NAMES", help="these models only, separated by commas")
    add("--dry-run", action="store_true", help="print the commands, then stop")
    add("--tables", action="store_true", help="only print the tables of finished models, run nothing")


def _export(parser):
    _out_only(parser)
    add = parser.add_argument
    add("-o", "--output", help="the Parquet file (default: OUT/results.parquet)", **FILE)
    add("--epsilon", metavar="LIST", help="write OUT/epsilon.csv instead: the smallest budget of each "
        "head that meets these errors, 0.05,0.1")  # fmt: skip
    add("--measure", default="rel_err_out_mean", metavar="NAME", help="the column that --epsilon reads")


def add_confirmed_options(parser):
    """Options of the tables of confirmed losses."""
    add = parser.add_argument
    targets = ("loss_increase", "kl_mean", "top1")
    predicted = f"target of the prediction (default: {targets[0]}); top1: tokens whose first choice changed"
    add("--target", choices=targets, default=targets[0], help=predicted)
    add("--without", metavar="NAMES", help="without these methods, separated by commas; writes nothing")


def _allocate(parser):
    _out_only(parser)
    add = parser.add_argument
    method = "a method, as `kvreplay compare` names it (--formats without --budget: the only one)"
    add("--method", metavar="LABEL", help=method)
    budget = "the mean over kv heads in tokens, or a share of the full cache's bytes: 128 or 25%%"
    add("--budget", metavar="BUDGET", help=budget)
    prompts = "the prompt whose losses count; repeat it for the mean of several (default: the only one)"
    add("--prompt", action="append", metavar="ID", help=prompts)
    formats = "each kv head chooses its row format; with --budget each layer does, beside its tokens"
    add("--formats", action="store_true", help=formats)
    limit = parser.add_mutually_exclusive_group()
    least = "--formats: at most as many bytes, all heads together after the last row"
    limit.add_argument("--bytes", metavar="N", help=least)
    like = "--formats: the bytes of this row format (default: a table with a line for each of the run)"
    limit.add_argument("--like", metavar="FORMAT", help=like)
    csv = "the CSV file: tokens, or formats without --budget (default: stdout, without --json)"
    add("-o", "--output", help=csv, **FILE)
    json = "the same with the predicted losses; with --formats, formats.csv is written beside it"
    add("--json", help=json, **FILE)


report = Work(_report, commands.report, _examples("report out/first", "report out/figures -o claims.html"))
figures = Work(_figures, commands.figures, _examples("figures out/first", "figures configs/figures --quick"))
table = Work(_table, commands.table, _examples("table out/first", "table out/first --intervals"))
export = Work(_export, commands.export, _examples("export out/first", "export out/first --epsilon 0.05,0.1"))
claims = Work(
    _claims, commands.claims, _examples("claims out/figures", "claims smol=out/a gemma=out/b --csv c.csv")
)
leaderboard = Work(
    _leaderboard,
    commands.leaderboard,
    _examples("leaderboard configs/leaderboard.yaml", "leaderboard configs/leaderboard.yaml --trace mine.h5"),
)
refine = Work(
    _refine,
    commands.refine,
    _examples(
        "refine configs/sweeps/epsilon.yaml -o out/e",
        "refine configs/sweeps/budgets.yaml -o out/b --engine local",
    ),
)
study = Work(
    _study,
    commands.study,
    _examples(
        "study configs/models.yaml --dry-run", "study configs/models.yaml --files models --models smollm2"
    ),
)
formats = Work(
    _out_only, commands.formats, _examples("formats out/confirm", "formats out/confirm > formats.txt")
)
predict = Work(
    _out_only, commands.predict, _examples("predict out/first", "predict out/first > predicted.txt")
)
allocate = Work(
    _allocate,
    commands.allocate,
    _examples(
        "allocate out/first --method snapkv --budget 128 -o budgets.csv",
        "allocate out/first --method snapkv --budget 25% --formats --json budgets.json",
        "allocate out/first --formats",
        "allocate out/first --formats --like q4_0 --json formats.json",
    ),
)
