"""Runs the steps of a figure configuration through the kvreplay program."""

import json
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from kvbase.program import call

from ..data.toy_trace import write_toy_trace
from ..errors import FigureError

ONE_HEAD = {"select.kv_heads": [0]}  # first kv head of each layer, in a quick run


@dataclass(frozen=True)
class RunOptions:
    """The command line's options for all steps: `traces` instead of the configuration's, KEY=VALUE
    `overrides` of every run, one kv head per layer (`quick`), nothing reused (`force`)."""

    traces: tuple = ()
    overrides: tuple = ()
    quick: bool = False
    force: bool = False


def run_steps(config, out, options, derived=None):
    """Runs every step of `config` into the folder `out`; existing results are not computed again.

    `derived(step)` is called before each run and cluster step for values that depend on the trace or an
    earlier step, as {key: value}; a run step's own overrides and those in `options` take precedence.
    """
    out.mkdir(parents=True, exist_ok=True)
    for step in config.steps:
        if derived is not None:
            step = _completed(step, derived)
        _COMMANDS[step.command](config, step, out, options)


def _completed(step, derived):
    if step.command == "run":
        return replace(step, argument=derived(step) | step.argument)
    if step.command != "cluster":
        return step
    words = [f"-s {shlex.quote(f'{key}={json.dumps(value)}')}" for key, value in derived(step).items()]
    return replace(step, argument=" ".join([step.argument, *words]))


def _run(config, step, out, options):
    used = [out / f"{step.trace}.h5"] if step.trace else options.traces or config.traces
    own = step.argument | (ONE_HEAD | config.quick if options.quick else {})
    # A figure shows only the cells that its configuration asks for, not leftovers of an earlier one.
    words = ["run", config.path, "-o", out / step.name, "--plan-only", "--progress", "none", "-q"]
    for text in (
        f"traces={json.dumps([str(Path(trace).resolve()) for trace in used])}",
        *(f"{key}={json.dumps(value)}" for key, value in own.items()),
        *options.overrides,
    ):
        words += ["-s", text]
    # The figure itself reports failed cells.
    _call(config, step, words + (["--force"] if options.force else []), accept=(0, 1))


def _cluster(config, step, out, options):
    trace = _the_trace(config, step, out, options)
    words = ["cluster", trace, *(["--kv-heads", "0"] if options.quick else [])]
    _made_once(config, step, out / f"{step.name}.h5", words, options.force, trace)


def _synth(config, step, out, options):
    _made_once(config, step, out / f"{step.name}.h5", ["synth"], options.force)


def _bounds(config, step, out, options):
    trace = shlex.quote(str(_the_trace(config, step, out, options)))
    table = _call(config, step, ["bounds", *shlex.split(step.argument.replace("{trace}", trace)), "--csv"])
    (out / f"{step.name}.csv").write_text(table, encoding="utf-8")


def _toy(config, step, out, _wishes):
    try:
        write_toy_trace(out / f"{step.name}.h5", step.argument)
    except ValueError as problem:
        raise FigureError(f"{config.path}: step {step.name}: {problem}") from problem


_COMMANDS = {"run": _run, "cluster": _cluster, "synth": _synth, "bounds": _bounds, "toy": _toy}


def _the_trace(config, step, out, options):
    if step.trace:
        return out / f"{step.trace}.h5"
    traces = options.traces or config.traces
    if len(traces) != 1:
        raise FigureError(f"{config.path}: step {step.name} takes one trace, not {len(traces)}")
    return traces[0]


def _made_once(config, step, file, words, force, trace=None):
    """Makes a file again if its command line or the trace in it has changed."""
    words = [str(word) for word in [*words, *shlex.split(step.argument)]]
    note = file.with_suffix(".made_by.json")
    made_by = json.dumps({"words": words, "trace": _stamp(trace)})
    made = [file] if trace is None else [file, file.with_suffix(".csv")]
    if not force and all(part.is_file() for part in made) and _noted(note) == made_by:
        return
    note.unlink(missing_ok=True)
    for part in made:
        part.unlink(missing_ok=True)
    _call(config, step, [*words, "-o", file])
    note.write_text(made_by, encoding="utf-8")


def _noted(note):
    return note.read_text(encoding="utf-8", errors="replace") if note.is_file() else None


def _stamp(trace):
    """Identifies a trace, so that a replaced file is noticed; None without a trace."""
    if trace is None or not Path(trace).is_file():
        return None
    found = Path(trace).stat()
    return [found.st_size, found.st_mtime_ns]


def _call(config, step, words, accept=(0,)):
    """The program's stdout; its messages go to this process's stderr."""
    code, printed = call(words, accept)
    if code in accept:
        return printed
    ended = f"{config.path}: step {step.name} ended with exit code {code}"
    raise FigureError(ended, code if code > 1 else 2)
