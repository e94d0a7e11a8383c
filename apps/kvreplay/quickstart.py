"""`kvreplay quickstart`: the sample trace replayed by eight methods, drawn, and shown on a page."""

import argparse
import os
import signal
import subprocess
from collections.abc import Sequence

from kvreplay.places import data_folder, program_path

KILLED = 128  # and the signal's number: the exit code of a program that a signal ended


def build_parser() -> argparse.ArgumentParser:
    """All options, each declared once."""
    parser = argparse.ArgumentParser(
        "kvreplay quickstart",
        description="Replays the sample trace with configs/quickstart.yaml: prints the table, and writes "
        "results.csv, figures and one self-contained page.",
    )
    parser.add_argument(
        "-o", "--out", metavar="DIR", default="out/quickstart", help="where to (default: %(default)s)"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Runs the command with its `arguments`; returns 0, or the exit code of the first step that failed."""
    out = build_parser().parse_args(arguments).out
    program = os.environ.get("KVREPLAY") or program_path()
    config, trace = (
        data_folder() / name for name in ("configs/quickstart.yaml", "traces/samples/smollm2-135m.h5")
    )
    print(f"replay: {config} on {trace}", flush=True)
    for words in (["run", str(config), "-o", out], ["report", out]):
        code = call([program, *words])
        if code != 0:
            return code
    print(f"done: {out}/results.csv, {out}/figures/, {out}/report.html")
    return 0


def call(words: Sequence[str]) -> int:
    """The exit code of a program that answers for itself to what asks us to end.

    A terminal's ^C reaches it as well as us; SIGTERM reaches us alone, and is passed on.
    """
    running, early = None, []

    def pass_on(number: int, _: object) -> None:
        if running is None:
            early.append(number)
        else:
            running.send_signal(number)

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, pass_on),
    }
    try:
        running = subprocess.Popen(words)
        for number in early:  # that came while it was started
            running.send_signal(number)
        code = running.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else KILLED - code
