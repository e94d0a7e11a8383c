"""Runs the commands of a page of the documentation, in order and in one folder, as a reader would.

A fence of yaml or python whose first line is `# NAME` is the file NAME. In a console fence a line that
starts with `$ ` is a command (a backslash at its end continues it), and the lines up to the next one are
what it prints, stderr included, with `...` for what is left out (DIFFERS says what else is not compared).
A bash fence is one script that must succeed and whose output the page does not show. A command whose shown
text holds a line "WHERE: error: " must fail, and every other must succeed, unless it ends with `|| true`, or
`$ echo $?` follows it and shows the code.
"""

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from kvreplay_cli import BINARY, ROOT

TIMEOUT_S = 120


@dataclass
class Step:
    """One thing that a reader does: a file to save, a command with what it prints, or a script."""

    kind: str  # file, command, script
    text: str
    line: int
    name: str = ""
    shown: list = field(default_factory=list)


def steps_of(text):
    """All steps of a page, in order."""
    steps, lines = [], text.splitlines()
    fence = None
    for number, line in enumerate(lines, 1):
        if fence is None:
            if match := re.match(r"```(yaml|python|console|bash)$", line):
                fence, start = match[1], number
        elif line == "```":
            steps += _fence(fence, lines[start : number - 1], start + 1)
            fence = None
    return steps


def _fence(kind, lines, start):
    if kind == "bash":
        return [Step("script", "\n".join(lines), start)]
    if kind == "console":
        return _console(lines, start)
    name = re.match(r"# (\S+\.(?:yaml|py))$", lines[0])
    assert name, f"line {start}: the first line of a {kind} fence names its file: # NAME"
    return [Step("file", "\n".join(lines) + "\n", start, name[1])]


def _console(lines, start):
    steps, continued = [], False
    for number, line in enumerate(lines, start):
        if continued:
            steps[-1].text += "\n" + line
            continued = line.endswith("\\")
        elif line.startswith("$ "):
            steps.append(Step("command", line[2:], number))
            continued = line.endswith("\\")
        else:
            steps[-1].shown.append(line)
    return steps


# What depends on the machine or the moment, and what stands for it in a comparison: pages show real values.
DIFFERS = {
    r"[\d.]+ cells/s": "N cells/s",
    r"(· |about )(\d+[hms])+": r"\1T",
    r"(\d+/\d+) \d+\.\d s": r"\1 T",
    r"about \d+ MiB": "about N MiB",
    r"\d+ jobs": "N jobs",
    r"(?m)(\.h5): [\d.]+ [kM]B$": r"\1: SIZE",  # sizes of files, which hold a command line and versions
    r"\d\.\d\de[-+]\d\d \(<=": "X (<=",  # deviations of --verify; bound and verdict are compared
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ": "DATE",
    r"trace id  [0-9a-f]{64}": "trace id  ID",
    r"(?m)^drawing figure \d+ of \d+: \w+\n": "",  # told by the second
}

# A line that reports an error, not one that explains a table ("error: squared cosine distance").
MESSAGE = re.compile(r"^([^;(]*: )?[\w.]*[Ee]rror: ", re.M)


def normal(text):
    """The text without what depends on the machine or the moment."""
    for pattern, instead in DIFFERS.items():
        text = re.sub(pattern, instead, text)
    return text.strip()


def agrees(shown, printed):
    """Whether a printed text is what the page shows; `...` stands for anything, as a line for any lines."""
    parts = [re.escape(part) for part in re.split(r"(?<=\n)\.{3}\n|\.{3}", normal("\n".join(shown)))]
    return re.fullmatch(".*?".join(parts), normal(printed), re.S) is not None


class Reader:
    """A folder with links to what a checkout holds, and the commands of an installation."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.code = 0
        for name in ("traces", "configs"):
            (self.folder / name).symlink_to(ROOT / name)
        commands = self.folder / ".bin"
        commands.mkdir()
        for name, words in {"kvreplay": "-m kvreplay ", "python": ""}.items():
            (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
            (commands / name).chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHONPATH": ":".join(str(ROOT / room) for room in ("lib/python", "apps", "traces", "analysis")),
            "KVREPLAY": str(BINARY),
            "LC_ALL": "C.UTF-8",
            "COLUMNS": "80",
        }

    def save(self, name, text):
        """Write a file that the page gives."""
        (self.folder / name).write_text(text)

    def run(self, command):
        """Runs a command and returns its output, stderr included; the exit code is in `code`."""
        if command.startswith("kvreplay record ") and not re.search(r"[|&;<>]", command):
            words = shlex.split(command.replace("\\\n", " "))
            self.code, printed = self._inside(lambda: _record(words[2:]))
        elif re.fullmatch(r"python record\w*\.py", command):
            self.code, printed = self._inside(lambda: _script(command.split()[1]))
        else:
            self.code, printed = self._outside(command)
        printed = printed.replace(f"{self.folder.resolve()}/", "").replace(f"{self.folder}/", "")
        return "\n".join(line.rstrip() for line in printed.splitlines())

    def _outside(self, command):
        # The code of the command before, for `echo $?`.
        script = f"(exit {self.code})\n{command}\n"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
        return done.returncode, done.stdout

    def _inside(self, action):
        """In this process, where torch and the model are loaded already."""
        printed, before = io.StringIO(), Path.cwd()
        os.chdir(self.folder)
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                code = action()
        finally:
            os.chdir(before)
        return code, printed.getvalue()


def _record(words):
    from front_door import record as cli

    try:
        return cli.main(words)
    except SystemExit as end:  # the parser's own
        return end.code


def _script(name):
    from kvbase.errors import KvreplayError

    try:
        runpy.run_path(name, run_name="__main__")
    except KvreplayError as error:
        # The last line of Python's traceback, which is what a reader looks at.
        print(f"{type(error).__module__}.{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def needs_torch(step):
    """Whether a step loads a model, itself or by running a script that the page calls record_NAME.py."""
    return (
        step.kind == "command"
        and re.match(r"(\w+=\S+ )?kvreplay record |python record_", step.text) is not None
    )


def follow(page_text, reader, not_run=(), only=lambda step: True):
    """Do everything that a page says; gives what disagrees, as texts with the page's line."""
    wrong, steps = [], steps_of(page_text)
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        if step.kind == "file":
            reader.save(step.name, step.text)
        elif step.text not in not_run and only(step):
            wrong += _do(step, reader, code_is_shown=after is not None and after.text == "echo $?")
    return wrong


def _do(step, reader, code_is_shown):
    printed = reader.run(step.text)
    what = f"line {step.line}: {step.text}"
    shown = "\n".join(step.shown)
    must_fail = MESSAGE.search(shown) is not None and not step.text.endswith("|| true")
    if not code_is_shown and must_fail != (reader.code != 0):
        return [f"{what}\nended with {reader.code}, and printed\n{printed}"]
    if step.kind == "command" and not agrees(step.shown, printed):
        return [f"{what}\nthe page shows\n{shown}\nbut it printed\n{printed}"]
    return []
