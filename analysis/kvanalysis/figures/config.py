"""configs/figures/*.yaml: a sweep for `kvreplay run` with a section `figure` that says what to draw.

This description is for developers; docs/figures.md is the user's page.

figure:
  kind: error_vs_budget        # one of kvanalysis.plots.kinds()
  paper: H2O                   # the paper of the original figure
  number: Fig. 1 right, Fig. 4
  mark: P                      # R: reproducible at attention level, P: proxy
  title: Heavy hitters, recent tokens, or both
  expect: both beat either alone        # the paper's claim, in words
  steps: [run]                 # commands before drawing; [run] is the default
  options: {...}               # options of the kind
  quick: {seeds.count: 2}      # further overrides of a --quick run, which also takes one kv head per layer

A step is one of
  run                                    run this file's sweep, into OUT/run
  {run: {replay.prefill: 900}, as: late, trace: made}      run it with overrides, into OUT/late
  {cluster: "--layers 0,7", as: cluster} kvreplay cluster, into OUT/cluster.h5 and OUT/cluster.csv
  {bounds: "buzz --stride 3,4,5", as: bounds} kvreplay bounds --csv, into OUT/bounds.csv
  {synth: "--tokens 4096", as: made}     kvreplay synth, into OUT/made.h5: a trace for later steps
  {toy: [[1], [0.6, 0.4]], as: made}     a trace with these rows as its attention (data.toy_trace)
"""

import json
import re
import shlex
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import yaml
from kvbase.files import why_unreadable

from ..errors import FigureError
from ..plots import kinds

KEYS = {"kind", "paper", "number", "mark", "title", "expect", "steps", "options", "quick"}
NEEDED = ("kind", "paper", "number", "mark", "title", "expect")
MARKS = {"R": "reproduces the figure at attention level", "P": "proxy: the paper reports task scores"}
COMMANDS = {"run": dict, "cluster": str, "bounds": str, "synth": str, "toy": list}
TAKES = {dict: "a map of overrides", str: "a text of options", list: "rows of probabilities"}
MAKES_A_TRACE = ("synth", "toy")
FILE_NAME = re.compile(r"\w[\w .+-]*")  # name of a folder of figures or of a step: it must stay below --out
LONGEST = 60_000  # characters of a step's overrides: nested anchors can expand without limit


@dataclass(frozen=True)
class Step:
    """One command before drawing. `argument`: overrides of `run`, rows of `toy`, options of the others;
    `trace`: the step that makes its trace, or "" for the configuration's traces."""

    command: str
    name: str
    argument: object
    trace: str = ""


@dataclass(frozen=True)
class FigureConfig:
    path: Path
    name: str
    kind: str
    paper: str
    number: str
    mark: str
    title: str
    expect: str
    traces: list[Path]
    steps: list[Step]
    options: dict = field(default_factory=dict)
    quick: dict = field(default_factory=dict)
    sweep: dict = field(default_factory=dict)


def read_figure_config(path):
    """The FigureConfig of a file; raises FigureError. The sweep itself is checked by `kvreplay run`."""
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        raise FigureError(f"{path}: {why_unreadable(path, problem)}") from problem
    except RecursionError as problem:
        raise FigureError(f"{path}: cannot be read: nested too deeply") from problem
    figure = content.get("figure") if isinstance(content, dict) else None
    if not isinstance(figure, dict):
        raise FigureError(f"{path}: has no section `figure`; `kvreplay run` takes a plain sweep")
    _check_keys(path, figure)
    return FigureConfig(
        path=path,
        name=_file_name(path, "name", content.get("name", path.stem)),
        traces=[_beside(path, trace) for trace in _trace_names(path, content)],
        steps=_steps(path, figure.get("steps", ["run"])),
        options=figure.get("options", {}),
        quick=figure.get("quick", {}),
        sweep={key: value for key, value in content.items() if key != "figure"},
        **{key: str(figure[key]) for key in NEEDED},
    )


def _check_keys(path, figure):
    unknown = sorted(map(str, set(figure) - KEYS))
    if unknown:
        raise FigureError(f"{path}: figure: unknown key {unknown[0]}; known: {', '.join(sorted(KEYS))}")
    missing = [key for key in NEEDED if not str(figure.get(key, "")).strip()]
    if missing:
        raise FigureError(f"{path}: figure: {missing[0]} is missing")
    odd = [key for key in NEEDED if isinstance(figure[key], list | dict)]
    if odd:
        raise FigureError(f"{path}: figure.{odd[0]} must be text, not {figure[odd[0]]!r}")
    if figure["kind"] not in kinds():
        raise FigureError(f"{path}: figure.kind: no plot {figure['kind']}; plots: {', '.join(kinds())}")
    if figure["mark"] not in MARKS:
        raise FigureError(f"{path}: figure.mark: {figure['mark']} is not one of {', '.join(MARKS)}")
    for key in ("options", "quick"):
        if not isinstance(figure.get(key, {}), dict):
            raise FigureError(f"{path}: figure.{key} must be a map")
    _check_argument(f"{path}: figure.quick", figure.get("quick"))


def _file_name(path, key, given):
    if not isinstance(given, str | int) or not FILE_NAME.fullmatch(str(given)):
        raise FigureError(
            f"{path}: {key}: {given!r} is not a file name; write letters, digits, spaces and . _ + -"
        )
    return str(given)


def _trace_names(path, content):
    names = content.get("traces", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FigureError(f"{path}: traces: {names!r} is not a list of files; write [FILE.h5]")
    return names


def _beside(path, trace):
    return (path.parent / str(trace)).resolve()


def _steps(path, given):
    steps, made = [], set()
    for item in given if isinstance(given, list) else [given]:
        step = _step(path, item)
        if any(step.name == other.name for other in steps):
            raise FigureError(f"{path}: figure.steps: two steps are named {step.name}; name them with `as`")
        if step.trace and step.trace not in made:
            raise FigureError(f"{path}: figure.steps: {step.name}: no step before it makes {step.trace}")
        made |= {step.name} if step.command in MAKES_A_TRACE else set()
        steps.append(step)
    return steps


def _step(path, item):
    item = {item: None} if isinstance(item, str) else item
    commands = [key for key in item if key in COMMANDS] if isinstance(item, dict) else []
    if len(commands) != 1 or set(item) - {*commands, "as", "trace"}:
        raise FigureError(f"{path}: figure.steps: {item!r} is not a step; write one of {', '.join(COMMANDS)}")
    [command] = commands
    kind, argument = COMMANDS[command], item[command]
    if argument is not None and not isinstance(argument, kind):
        raise FigureError(f"{path}: figure.steps: {command} takes {TAKES[kind]}, not {argument!r}")
    name = _file_name(path, "figure.steps: as", item.get("as", command))
    _check_argument(f"{path}: figure.steps: {name}", argument)
    return Step(command, name, argument or kind(), str(item.get("trace", "")))


def _check_argument(where, argument):
    """Options must split into words; overrides become JSON on a command line."""
    try:
        if isinstance(argument, str):
            shlex.split(argument)
        elif any(islice(json.JSONEncoder().iterencode(argument), LONGEST, None)):
            raise FigureError(f"{where}: is too long; do YAML anchors repeat each other?")
    except (TypeError, ValueError, RecursionError) as problem:
        raise FigureError(f"{where}: {problem}") from problem
