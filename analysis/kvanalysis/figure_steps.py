"""Runs the steps of a figure configuration through the kvreplay program."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from .figure_config import FigureError

CHECKOUT = Path(__file__).resolve().parents[2]


def program():
    """The kvreplay binary: KVREPLAY, that of this checkout, or the one on the path. Raises FigureError."""
    built = CHECKOUT / "build/release/kvreplay"
    found = os.environ.get("KVREPLAY") or (str(built) if built.is_file() else shutil.which("kvreplay"))
    if not found:
        raise FigureError("kvreplay is not built: run `bash apps/quickstart.sh`, or name it in KVREPLAY")
    return found


def run_steps(config, out, traces=None, overrides=(), force=False, settled=None):
    """Runs every step of `config` into the folder `out`; what is already there is not computed again.

    `traces` replaces the configuration's, `overrides` are KEY=VALUE for every `run` step. `settled(step)` is
    asked before each run and cluster step for what only the trace or an earlier step can tell, as
    {key: value}; a run step's own overrides and `overrides` stand above it.
    """
    out.mkdir(parents=True, exist_ok=True)
    for step in config.steps:
        if settled is not None:
            step = _completed(step, settled)
        _COMMANDS[step.command](config, step, out, traces or config.traces, [*overrides], force)


def _completed(step, settled):
    if step.command == "run":
        return replace(step, argument=settled(step) | step.argument)
    if step.command != "cluster":
        return step
    words = [f"-s {shlex.quote(f'{key}={json.dumps(value)}')}" for key, value in settled(step).items()]
    return replace(step, argument=" ".join([step.argument, *words]))


def _run(config, step, out, traces, overrides, force):
    used = [out / f"{step.trace}.h5"] if step.trace else traces
    own = [f"{key}={json.dumps(value)}" for key, value in step.argument.items()]
    words = ["run", config.path, "-o", out / step.name, "--progress", "none", "-q"]
    for text in (f"traces={json.dumps([str(Path(t).resolve()) for t in used])}", *own, *overrides):
        words += ["-s", text]
    # Failed cells are reported by the figure itself.
    _call(config, step, words + (["--force"] if force else []), accept=(0, 1))


def _cluster(config, step, out, traces, _overrides, force):
    _made_once(
        config, step, out / f"{step.name}.h5", ["cluster", _the_trace(config, step, out, traces)], force
    )


def _synth(config, step, out, _traces, _overrides, force):
    _made_once(config, step, out / f"{step.name}.h5", ["synth"], force)


def _bounds(config, step, out, traces, _overrides, _force):
    text = step.argument.format(trace=shlex.quote(str(_the_trace(config, step, out, traces))))
    table = _call(config, step, ["bounds", *shlex.split(text), "--csv"])
    (out / f"{step.name}.csv").write_text(table, encoding="utf-8")


_COMMANDS = {"run": _run, "cluster": _cluster, "synth": _synth, "bounds": _bounds}


def _the_trace(config, step, out, traces):
    if step.trace:
        return out / f"{step.trace}.h5"
    if len(traces) != 1:
        raise FigureError(f"{config.path}: step {step.name} takes one trace, not {len(traces)}")
    return traces[0]


def _made_once(config, step, file, words, force):
    """A file is made again when the words that made it have changed."""
    words = [str(word) for word in [*words, *shlex.split(step.argument)]]
    note = file.with_suffix(".made_by.json")
    if not force and file.is_file() and note.is_file() and json.loads(note.read_text()) == words:
        return
    file.unlink(missing_ok=True)
    _call(config, step, [*words, "-o", file])
    note.write_text(json.dumps(words), encoding="utf-8")


def _call(config, step, words, accept=(0,)):
    """What the program prints on stdout; its messages go to ours."""
    command = [program(), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode in accept:
        return done.stdout
    sys.stderr.write(done.stderr)
    raise FigureError(f"{config.path}: step {step.name} ended with exit code {done.returncode}")
