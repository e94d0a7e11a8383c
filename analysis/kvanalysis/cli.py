"""`kvanalysis report|figures|table OUT`: 0 done, 2 bad usage or unwritable, 3 missing or foreign results."""

import argparse
import os
import sys
from pathlib import Path

from .load import ResultsError, load

OK, BAD_USAGE, BAD_RESULTS = 0, 2, 3


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        """One line, where argparse would print the usage as well."""
        self.exit(BAD_USAGE, f"{self.prog}: error: {message} (see --help)\n")


def main(arguments=None):
    """Runs one command; returns the exit code. stdout is data, stderr says what went wrong."""
    options = _parser().parse_args(arguments)
    try:
        options.run(load(options.out), options)
        sys.stdout.flush()
    except ResultsError as problem:
        return _fail(problem, BAD_RESULTS)
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
    commands = parser.add_subparsers(required=True, metavar="report|figures|table")
    report = _command(commands, "report", _report, "one self-contained HTML page, and the figures beside it")
    report.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="the page (default: OUT/report.html)"
    )
    _command(commands, "figures", _figures, "OUT/figures/: PNG, PDF and the CSV behind each figure")
    _command(commands, "table", _table, "the summary table on stdout")
    return parser


def _command(commands, name, run, text):
    command = commands.add_parser(name, help=text, description=text)
    command.add_argument("out", metavar="OUT", type=Path, help="the folder that holds results.csv")
    command.set_defaults(run=run)
    return command


def _fail(problem, code):
    print(f"kvanalysis: error: {problem}", file=sys.stderr)
    return code


def _report(frame, options):
    from .report import write_report

    print(write_report(frame, options.out / "figures", options.output or options.out / "report.html"))


def _figures(frame, options):
    from .figures import write_figures

    for figure in write_figures(frame, options.out / "figures"):
        print(*(path for path in (figure.png, figure.narrow) if path), sep="\n")


def _table(frame, options):
    from .format import aligned, table_cells
    from .summary import summarise

    print(aligned(*table_cells(summarise(frame))))
