"""`kvanalysis report|figures|table|compare|parquet|epsilon|confirm|predict|allocate OUT`,
`kvanalysis figure|leaderboard|sweep|study CONFIG`, and `kvanalysis claims DIR...`.

Exit codes: 0 done, 2 bad usage or unwritable, 3 missing or foreign results, 130 interrupted. A step of a
figure or a round of a sweep that failed gives its own.
"""

import argparse
import os
import sys
from pathlib import Path

from . import __version__, commands
from .answer.sizes import PEAK, SIZES
from .commands import INTERRUPTED, fail
from .errors import UserError

OK, BAD_USAGE = 0, 2


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        """One line, where argparse would print the usage as well."""
        self.exit(BAD_USAGE, f"{self.prog}: error: {message} (see --help)\n")


def main(arguments=None):
    """Runs one command; returns the exit code. stdout is data, stderr says what went wrong."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except UserError as problem:
        return fail(problem, problem.code)
    except ModuleNotFoundError as missing:
        return fail(
            f"{missing}: pip install 'kvreplay[analysis]', in a checkout pip install '.[analysis]'", BAD_USAGE
        )
    except KeyboardInterrupt:
        return fail("interrupted; run again to continue", INTERRUPTED)
    except BrokenPipeError:
        # `table | head`: the reader has seen enough. The interpreter must not flush once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as problem:
        return fail(f"cannot write: {problem}", BAD_USAGE)
    return OK


def _parser():
    parser = _Parser(
        prog="kvanalysis", description="Figures, tables and a page from the results of `kvreplay run`."
    )
    parser.add_argument("--version", action="version", version=f"kvanalysis {__version__}")
    parsers = parser.add_subparsers(
        required=True,
        metavar="report|figures|figure|claims|leaderboard|table|compare|parquet|sweep|study|epsilon|confirm|predict"
        "|allocate",
    )
    for add in (
        *(_of_results, _compare, _figure, _claims, _leaderboard, _sweep, _study, _epsilon, _confirm),
        *(_predict, _allocate),
    ):
        add(parsers)
    return parser


def _command(parsers, run, text, place="out", what="the folder that holds results.csv", **how):
    parser = parsers.add_parser(run.__name__, help=text, description=text)
    parser.add_argument(place, **{"metavar": place.upper(), "type": Path, "help": what} | how)
    parser.set_defaults(run=run)
    return parser.add_argument


def _of_results(parsers):
    file = {"metavar": "FILE", "type": Path}
    page = "one self-contained HTML page of a run, or of a folder of figures"
    add = _command(parsers, commands.report, page)
    add("-o", "--output", help="the page (default: OUT/report.html)", **file)
    _command(parsers, commands.figures, "OUT/figures/: PNG, PDF and the CSV behind each figure")
    _command(parsers, commands.table, "the summary table on stdout")
    add = _command(parsers, commands.parquet, "the table as one typed, compressed file")
    add("-o", "--output", help="the file (default: OUT/results.parquet)", **file)


def _of_config(add, overridden):
    """Options of what replays a configuration."""
    add("--trace", action="append", default=[], metavar="FILE", type=Path, help="instead of its traces")
    add("-s", "--set", action="append", default=[], metavar="KEY=VALUE", help=f"override of {overridden}")


def _compare(parsers):
    text = "which method loses least at equal bytes, and which are told apart"
    add = _command(parsers, commands.compare, text)
    shares = "shares of the full cache's bytes: 20%% or 10%%,20%%,40%%"
    add("--at", required=True, metavar="SHARES", help=shares)
    which = "which bytes: at the peak (default), the mean over steps, or those of the prompt after its cut"
    add("--of", choices=tuple(SIZES), default=PEAK, help=which)
    add("--layers", metavar="LIST", help="these layers only: 7 or 0,15-29")
    nats = "nats (predicted from a gradient; the default where all methods have them)"
    others = "distance (squared cosine distance, else the default), error, cosine, or a column"
    less = f"what is compared: {nats}, {others} in which less is better"
    add("--measure", metavar="NAME", help=less)
    add("--methods", metavar="LIST", help="these methods only: h2o,tova")
    add("--phase", choices=("stream", "oneshot"), help="methods of this phase only")


def _figure(parsers):
    text = "runs a figure configuration (configs/figures/*.yaml), or all of a folder, and draws it"
    add = _command(parsers, commands.figure, text, "config", "a configuration, or a folder of them")
    _of_run_steps(add, Path("out/figures"))


def _claims(parsers):
    text = "which claims hold on which models: folders of `kvreplay figures` in one table"
    what = "a model's folder of figures (default name: the folder's)"
    how = {"metavar": "[NAME=]DIR", "type": str, "nargs": "+"}
    add = _command(parsers, commands.claims, text, "folders", what, **how)
    add("--csv", metavar="FILE", type=Path, help="also write one row a claim and model")


def _leaderboard(parsers):
    text = "replays a configuration of kind leaderboard, ranks its methods, and writes the page"
    add = _command(parsers, commands.leaderboard, text, "config", "as configs/leaderboard.yaml")
    _of_run_steps(add, Path("out/leaderboard"))


def _of_run_steps(add, default):
    """Options of a command that replays a figure configuration: where to, on what, and how much of it."""
    add("-o", "--out", metavar="DIR", type=Path, default=default, help=f"default: {default}")
    _of_config(add, "every run step")
    add("--quick", action="store_true", help="one kv head per layer: a look, not a result")
    add("--force", action="store_true", help="forget what an earlier run left")


def _sweep(parsers):
    from .sweeps.rounds import ENGINES, RUN

    text = "replays a configuration round by round, where its section `sweep` leaves a question open"
    add = _command(parsers, commands.sweep, text, "config", "a configuration (configs/sweeps/*.yaml)")
    add("-o", "--out", metavar="OUT", type=Path, required=True, help="the sweep's folder")
    add("--engine", choices=ENGINES, default=RUN, help=f"default: {RUN}")
    words = "further words of `kvreplay sweep submit`, in quotes"
    add("--submit", default="", metavar="WORDS", help=words)
    _of_config(add, "the configuration")


def _study(parsers):
    text = "records, replays and confirms several models: which measure orders methods as their loss does"
    add = _command(parsers, commands.study, text, "config", "as configs/models.yaml")
    add("-o", "--out", metavar="OUT", type=Path, default=Path("out/models"), help="default: out/models")
    add("--files", metavar="DIR", type=Path, help="the folder of GGUF files (default: the configuration's)")
    add("--models", metavar="NAMES", help="these models only, a list with commas")
    add("--dry-run", action="store_true", help="print the commands, then stop")
    add("--tables", action="store_true", help="the tables of what is finished, without running anything")


def _epsilon(parsers):
    text = "OUT/epsilon.csv: the smallest replayed budget of each head that meets an epsilon"
    add = _command(parsers, commands.epsilon, text)
    add("--epsilon", required=True, metavar="LIST", help="errors to meet: 0.05,0.1")
    add("--measure", default="rel_err_out_mean", metavar="NAME", help="a column of the table")


def _confirm(parsers):
    text = (
        "which offline measure predicted what the model itself lost (kvconfirm); OUT/confirm_correlations.csv"
    )
    add = _command(parsers, commands.confirm, text)
    targets = ("loss_increase", "kl_mean", "top1")
    predicted = f"what is predicted (default: {targets[0]}); top1: tokens whose first choice changed"
    add("--target", choices=targets, default=targets[0], help=predicted)
    for option, what in (("--methods", "only"), ("--without", "without")):
        text = f"{what} these methods, a list with commas; prints, and writes nothing"
        add(option, metavar="NAMES", help=text)


def _predict(parsers):
    text = (
        "nats a token that each method costs the model, from the trace alone: OUT/predicted.csv and a table"
    )
    _command(parsers, commands.predict, text)


def _allocate(parsers):
    text = "tokens for each kv head with the least predicted loss, as `allocator: file:PATH` reads them"
    add = _command(parsers, commands.allocate, text)
    add("--method", required=True, metavar="LABEL", help="a method instance, as `kvanalysis table` names it")
    budget = "the mean over kv heads in tokens, or a share of the full cache's bytes: 128 or 25%%"
    add("--budget", required=True, metavar="BUDGET", help=budget)
    prompts = "the prompt whose losses count; several times: their mean (default: the only one)"
    add("--prompt", action="append", metavar="ID", help=prompts)
    formats = "each layer chooses its row format too, at equal bytes: JSON only"
    add("--formats", action="store_true", help=formats)
    csv = "the CSV file (default: stdout, without --json)"
    add("-o", "--output", metavar="FILE", type=Path, help=csv)
    add("--json", metavar="FILE", type=Path, help="the same by layer, with what is predicted")
