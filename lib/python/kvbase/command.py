"""The frame of all verbs that Python has: one parser, one way from errors to exit codes.

A verb is a module with `add_options(parser)` and `run(options)`, which returns an exit code or None (0). It
may also have `EXAMPLES`, text that ends its --help; `EXTRA`, the extra of the package that installs what it
imports; and `STOPPED`, what a user does after ^C.
"""

from __future__ import annotations

import argparse
import difflib
import os
import shlex
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TextIO

from kvbase import __version__
from kvbase.errors import KvreplayError, TraceError
from kvbase.files import reason

OK, SOME_FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130
SHOWN_ALWAYS = ("error: ", "warning: ", "Traceback")


@dataclass(frozen=True)
class Verb:
    """A verb of `kvreplay`: its name, one line of help, and the module (`module` or `module:object`)."""

    name: str
    summary: str
    home: str

    def module(self) -> Any:
        """What has its options and its work: a module, or an object in it."""
        name, _, attribute = self.home.partition(":")
        module = import_module(name)
        return getattr(module, attribute) if attribute else module


class Parser(argparse.ArgumentParser):
    """Reports a mistake on one line, with the option that was probably meant."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_USAGE, f"kvreplay: error: {message}{self._meant(message)}. See {self.prog} --help\n")

    def _meant(self, message: str) -> str:
        unknown = message.partition("unrecognized arguments: ")[2].split()
        options = [name for action in self._actions for name in action.option_strings]
        for word in unknown:
            if close := difflib.get_close_matches(word.partition("=")[0], options, 1):
                return f" (did you mean {close[0]}?)"
        return ""


def parser_of(verb: Verb, module: Any) -> Parser:
    """The parser of a verb. The general options are those of the engine's verbs."""
    parser = Parser(
        f"kvreplay {verb.name}",
        description=f"{verb.summary[0].upper()}{verb.summary[1:]}.",
        epilog=getattr(module, "EXAMPLES", None),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_options(parser)
    add_general(parser, quiet=False, log=None)
    return parser


def add_general(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    """The options of all verbs. A parser below a verb's takes no `defaults`, which would undo what stood
    before its name."""
    add = parser.add_argument_group("general").add_argument
    quiet, log = (defaults.get(name, argparse.SUPPRESS) for name in ("quiet", "log"))
    add("-q", "--quiet", action="store_true", default=quiet, help="warnings and errors only")
    add("--log", metavar="FILE", default=log, help="also append all messages to FILE")
    add("--version", action="version", version=f"kvreplay {__version__}")


def run_verb(verb: Verb, words: list[str]) -> int:
    """Runs a verb with the words that follow its name; returns the exit code.

    stdout is data, stderr is progress and what went wrong: 0 done, 1 some of the work failed, 2 bad usage or
    output, 3 bad trace, model or results, 4 no device or out of memory, 130 interrupted.
    """
    module = verb.module()
    options = parser_of(verb, module).parse_args(words)
    options.command_line = shlex.join(["kvreplay", verb.name, *words])
    with _Messages(options.quiet, options.log):
        return _guarded(module, options)


def _guarded(module: Any, options: argparse.Namespace) -> int:
    code = OK
    try:
        code = module.run(options)
        sys.stdout.flush()
    except KvreplayError as problem:
        return fail(problem, problem.exit_code)
    except ModuleNotFoundError as missing:
        extra = getattr(module, "EXTRA", "analysis")
        advice = f"pip install 'kvreplay[{extra}]', in a checkout pip install '.[{extra}]'"
        return fail(f"{missing}: {advice}", BAD_USAGE if extra == "analysis" else TraceError.exit_code)
    except KeyboardInterrupt:
        say(f"kvreplay: interrupted; {getattr(module, 'STOPPED', 'run again to continue')}")
        return INTERRUPTED
    except BrokenPipeError:
        discard_stdout()
    except OSError as problem:
        place = f"{problem.filename}: " if problem.filename else ""
        return fail(f"cannot write: {place}{reason(problem)}", BAD_USAGE)
    return OK if code is None else code


def discard_stdout() -> None:
    """Sends what is still buffered nowhere, once the reader of a pipe (`| head`) has closed it.

    Otherwise the interpreter flushes at its exit and reports the closed pipe again.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(problem: object, code: int) -> int:
    """Writes each line of a problem as an error on stderr; returns the exit code."""
    for line in str(problem).splitlines():
        say(f"kvreplay: error: {line}")
    return code


def say(text: str) -> None:
    """Writes one line of progress on stderr."""
    print(text, file=sys.stderr, flush=True)


class _Messages:
    """While entered, stderr is as --quiet and --log want it. Errors and warnings are always shown."""

    def __init__(self, quiet: bool, log: str | None):
        self.quiet, self.log = quiet, log
        self.filtered: _Filtered | None = None

    def __enter__(self) -> None:
        self.before = sys.stderr
        if self.quiet or self.log:
            self.filtered = _Filtered(self.before, self.quiet, _opened_log(self.log) if self.log else None)
            sys.stderr = self.filtered

    def __exit__(self, *_: object) -> None:
        sys.stderr = self.before
        if self.filtered is not None:
            self.filtered.end_log()


def _opened_log(path: str) -> TextIO:
    try:
        return Path(path).open("a", encoding="utf-8")
    except OSError as problem:
        remedy = "name a file in an existing folder"
        raise SystemExit(
            fail(f"--log {path}: cannot be written ({reason(problem)}): {remedy}", BAD_USAGE)
        ) from problem


class _Filtered:
    """A stream like stderr that drops progress and copies lines to a log."""

    def __init__(self, stream: Any, quiet: bool, log: Any):
        self._stream, self._quiet, self._log = stream, quiet, log
        self._shown = True

    def write(self, text: str) -> int:
        if self._log is not None and not text.startswith("\r"):
            self._log.write(text)
            self._log.flush()
        if text != "\n":  # print writes the end of a line on its own
            self._shown = not self._quiet or any(word in text for word in SHOWN_ALWAYS)
        if self._shown:
            self._stream.write(text)
        return len(text)

    def end_log(self) -> None:
        """Closes the log. Loggers that a library made meanwhile may write to this stream later."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def isatty(self) -> bool:
        return not self._quiet and self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
