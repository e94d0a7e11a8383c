"""`kvanalysis report|figures|table|parquet|epsilon|confirm OUT`, `kvanalysis figure|sweep CONFIG`.

Exit codes: 0 done, 2 bad usage or unwritable, 3 missing or foreign results, 130 interrupted. A step of a
figure or a round of a sweep that failed gives its own.
"""

import argparse
import math
import os
import shlex
import sys
from pathlib import Path

from . import __version__
from .errors import FigureError, ResultsError, SweepError, UserError

OK, BAD_USAGE, INTERRUPTED = 0, 2, 130
STOPPED = (75, INTERRUPTED)  # exit codes of a step that was told to end


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
        return _fail(problem, problem.code)
    except ModuleNotFoundError as missing:
        return _fail(f"{missing}: install kvreplay[analysis]", BAD_USAGE)
    except KeyboardInterrupt:
        return _fail("interrupted; run again to continue", INTERRUPTED)
    except BrokenPipeError:
        # `table | head`: the reader has seen enough. The interpreter must not flush once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as problem:
        return _fail(f"cannot write: {problem}", BAD_USAGE)
    return OK


def _parser():
    parser = _Parser(
        prog="kvanalysis", description="Figures, tables and a page from the results of `kvreplay run`."
    )
    parser.add_argument("--version", action="version", version=f"kvanalysis {__version__}")
    commands = parser.add_subparsers(
        required=True, metavar="report|figures|figure|table|parquet|sweep|epsilon|confirm"
    )
    report = _command(
        commands, "report", _report, "one self-contained HTML page of a run, or of a folder of figures"
    )
    report.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="the page (default: OUT/report.html)"
    )
    _command(commands, "figures", _figures, "OUT/figures/: PNG, PDF and the CSV behind each figure")
    _command(commands, "table", _table, "the summary table on stdout")
    _add_figure(commands)
    _add_parquet(commands)
    _add_sweep(commands)
    _add_epsilon(commands)
    _add_confirm(commands)
    return parser


def _command(commands, name, run, text):
    command = commands.add_parser(name, help=text, description=text)
    command.add_argument("out", metavar="OUT", type=Path, help="the folder that holds results.csv")
    command.set_defaults(run=run)
    return command


def _add_figure(commands):
    text = "runs a figure configuration (configs/figures/*.yaml), or all of a folder, and draws it"
    command = commands.add_parser("figure", help=text, description=text)
    command.add_argument("config", metavar="CONFIG", type=Path, help="a configuration, or a folder of them")
    command.add_argument(
        "-o", "--out", metavar="DIR", type=Path, default=Path("out/figures"), help="default: out/figures"
    )
    command.add_argument(
        "--trace",
        action="append",
        default=[],
        metavar="FILE",
        type=Path,
        help="instead of the configuration's traces",
    )
    command.add_argument(
        "-s", "--set", action="append", default=[], metavar="KEY=VALUE", help="override of every run step"
    )
    command.add_argument("--quick", action="store_true", help="one kv head per layer: a look, not a result")
    command.add_argument("--force", action="store_true", help="forget what an earlier run left")
    command.set_defaults(run=_figure)


def _add_parquet(commands):
    parquet = _command(commands, "parquet", _parquet, "the table as one typed, compressed file")
    parquet.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="the file (default: OUT/results.parquet)"
    )


def _add_sweep(commands):
    from .sweeps.rounds import ENGINES, RUN

    text = "replays a configuration round by round, where its section `sweep` leaves a question open"
    command = commands.add_parser("sweep", help=text, description=text)
    command.add_argument(
        "config", metavar="CONFIG", type=Path, help="a configuration (configs/sweeps/*.yaml)"
    )
    command.add_argument("-o", "--out", metavar="OUT", type=Path, required=True, help="the sweep's folder")
    command.add_argument("--engine", choices=ENGINES, default=RUN, help="default: run")
    command.add_argument(
        "--submit", default="", metavar="WORDS", help="further words of `kvreplay sweep submit`, in quotes"
    )
    command.add_argument(
        "--trace", action="append", default=[], metavar="FILE", type=Path, help="instead of the traces"
    )
    command.add_argument(
        "-s", "--set", action="append", default=[], metavar="KEY=VALUE", help="override of the configuration"
    )
    command.set_defaults(run=_sweep)


def _add_epsilon(commands):
    text = "OUT/epsilon.csv: the smallest replayed budget of each head that meets an epsilon"
    command = _command(commands, "epsilon", _epsilon, text)
    command.add_argument("--epsilon", required=True, metavar="LIST", help="errors to meet: 0.05,0.1")
    command.add_argument(
        "--measure", default="rel_err_out_mean", metavar="NAME", help="a column of the table"
    )


def _add_confirm(commands):
    text = (
        "which offline measure predicted what the model itself lost (kvconfirm); OUT/confirm_correlations.csv"
    )
    command = _command(commands, "confirm", _confirm, text)
    command.add_argument(
        "--target",
        choices=("loss_increase", "kl_mean", "top1"),
        default="loss_increase",
        help="what is predicted (default: loss_increase); top1: tokens whose first choice changed",
    )
    for option, what in (("--methods", "only"), ("--without", "without")):
        command.add_argument(
            option,
            metavar="NAMES",
            help=f"{what} these methods, a list with commas; prints, and writes nothing",
        )


def _fail(problem, code):
    for line in str(problem).splitlines():
        print(f"kvanalysis: error: {line}", file=sys.stderr)
    return code


def _report(options):
    file = options.output or options.out / "report.html"
    print(_report_of_figures(options, file) if _only_figures(options.out) else _report_of_run(options, file))


def _only_figures(folder):
    from .page.figure_folder import holds_figures

    return not (folder / "results.csv").is_file() and holds_figures(folder)


def _report_of_run(options, file):
    from .page.report import write_report

    frame = _whole_curves(options.out)
    _say_drawing(frame)
    return write_report(frame, options.out / "figures", file)


def _say_drawing(frame):
    """To who waits at a terminal: pictures take some seconds."""
    if sys.stderr.isatty():
        from .stats.words import count

        print(f"drawing figures of {count(len(frame), 'cell')} ...", file=sys.stderr)


def _whole_curves(out):
    """The table of a run; of an adaptive sweep only what allows means over heads."""
    from .budgets.replayed import at_common_budgets
    from .data.load import load

    frame = load(out)
    if not frame.attrs["meta"].get("rounds"):
        return frame
    kept = at_common_budgets(frame)
    kept.attrs["searched"] = len(frame) - len(kept)
    return kept


def _report_of_figures(options, file):
    from .page.figures_page import write_figures_page

    return write_figures_page(options.out, file)


def _figures(options):
    from .figures.of_run import write_figures

    frame = _whole_curves(options.out)
    _say_drawing(frame)
    _print_pictures(write_figures(frame, options.out / "figures"))


def _figure(options):
    from .figures.make import figure_configs, make_figure
    from .figures.steps import RunOptions

    asked = RunOptions(tuple(options.trace), tuple(options.set), options.quick, options.force)
    configs, failed = figure_configs(options.config), []
    for config in configs:
        print(f"{config.name}: {config.title}", file=sys.stderr)
        try:
            result = make_figure(config, options.out / config.name, asked)
        except (FigureError, ResultsError) as problem:
            # The other figures of a folder may well suit a trace that this one does not.
            failed.append(config.name)
            if len(configs) == 1 or getattr(problem, "code", 0) in STOPPED:
                raise
            _fail(problem, 0)
            continue
        _print_pictures(result.figures)
        for verdict in result.verdicts:
            print(f"  {verdict.outcome}: {verdict.claim} ({verdict.numbers})", file=sys.stderr)
    if failed:
        raise FigureError(f"{len(failed)} of {len(configs)} figures were not drawn: {', '.join(failed)}")


def _print_pictures(figures):
    for figure in figures:
        print(*(path for path in (figure.png, figure.narrow) if path), sep="\n")


def _table(options):
    from .stats.format import aligned, table_cells
    from .stats.summary import summarise

    print(aligned(*table_cells(summarise(_whole_curves(options.out)))))


def _parquet(options):
    from .data.parquet import write_parquet

    print(write_parquet(options.out, options.output))


def _sweep(options):
    from .sweeps.config import read_sweep_config
    from .sweeps.drive import run_sweep
    from .sweeps.rounds import RUN, Engine

    words = _words(options.submit)
    if words and options.engine == RUN:
        raise SweepError("--submit: `kvreplay run` takes no such words; add --engine local or slurm")
    config = read_sweep_config(options.config, options.set, options.trace)
    for path in run_sweep(config, options.out, Engine(options.engine, words)):
        print(path)


def _words(text):
    try:
        return tuple(shlex.split(text))
    except ValueError as problem:
        raise SweepError(f"--submit {text}: {problem}") from problem


def _epsilon(options):
    from .data.load import load
    from .sweeps.products import write_epsilon

    print(write_epsilon(options.out, load(options.out), options.measure, _epsilons(options.epsilon)))


def _confirm(options):
    from .predict.cells import correlation_cells, group_cells, group_words
    from .predict.tables import chosen, correlation_table, of_traces, written
    from .predict.words import METHODS_NOTE, confirmed_note
    from .stats.format import aligned

    frame = _whole_curves(options.out)
    traces = chosen(of_traces(frame, options.out), options.methods, options.without)
    table = correlation_table(traces)
    if not (options.methods or options.without):
        for path in written(options.out, traces, table):
            print(path, file=sys.stderr)
    target = "top1_lost" if options.target == "top1" else options.target
    for each in traces:
        print(confirmed_note(each.instances), METHODS_NOTE, file=sys.stderr)
        of_all = (table["scope"] == "all") & (table["target"] == target) & (table["trace_id"] == each.trace)
        print(aligned(*correlation_cells(table[of_all])))
        for group in each.retrieved:
            print(f"\n{group_words(group)}\n{aligned(*group_cells(group))}")


def _epsilons(text):
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(math.isfinite(epsilon) and epsilon > 0 for epsilon in found):
        raise UserError(f"--epsilon {text}: write numbers above 0, as in 0.05,0.1")
    return sorted(set(found))
