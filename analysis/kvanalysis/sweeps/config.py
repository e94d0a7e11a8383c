"""The configuration of an adaptive sweep: a configuration of `kvreplay run` with a section `sweep`.

sweep:
  budgets: {first: 16, last: 512, count: 6}   # tokens, evenly spaced on a logarithmic scale
  measure: rel_err_out_mean                   # the default; any measure in which less is better
  refine: {tolerance: 0.05, rounds: 3}        # adds budgets where the curve bends
  epsilon: [0.05, 0.1, 0.2]                   # searches the budget from which on each is met
  resolution: 1.05                            # the default: ratio of two budgets at which a search ends
"""

import difflib
import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from ..budgets.replayed import log_spaced
from ..data.metrics import LESS, MAIN, MORE, metric_facts
from ..errors import SweepError
from .tree import child, node_of, override, read_tree, tree_text, with_absolute_paths, with_value, without

KEYS = ("budgets", "measure", "refine", "epsilon", "resolution")
DEFAULT_RESOLUTION = 1.05
EXAMPLE = "{first: 16, last: 512, count: 6}"
MOST_TOKENS, MOST_BUDGETS = 2**31 - 1, 1000


@dataclass(frozen=True)
class Budgets:
    """Budgets of the first round; rounding to whole tokens may leave fewer than `count`."""

    first: int
    last: int
    count: int

    def tokens(self):
        return log_spaced(self.first, self.last, self.count)


@dataclass(frozen=True)
class Refine:
    """Budgets are added where ln(error) differs from the line between its neighbours by more than
    `tolerance`, in `rounds` rounds after the first."""

    tolerance: float
    rounds: int


@dataclass(frozen=True)
class SweepConfig:
    """`path`: the user's file; `root`: the engine's configuration without its budgets, every path
    absolute."""

    path: Path
    root: yaml.MappingNode
    budgets: Budgets
    measure: str
    refine: Refine | None
    epsilons: tuple[float, ...]
    resolution: float

    def text(self, budgets):
        """The engine's configuration with these budgets."""
        return tree_text(with_value(self.root, "budget", node_of({"tokens": [int(b) for b in budgets]})))

    def section(self):
        """The section `sweep` with its defaults, as a map."""
        asked = {"budgets": asdict(self.budgets), "measure": self.measure, "resolution": self.resolution}
        asked |= {"refine": asdict(self.refine)} if self.refine else {}
        return asked | ({"epsilon": list(self.epsilons)} if self.epsilons else {})

    def question(self):
        """The whole configuration, with its section `sweep`."""
        return tree_text(with_value(self.root, "sweep", node_of(self.section())))


def read_sweep_config(path, overrides=(), traces=()):
    """The SweepConfig of a file; `overrides`: KEY=VALUE; `traces`: used instead of the configuration's.

    Raises SweepError with a line for each mistake in the section; the engine checks the rest.
    """
    try:
        root = read_tree(path)
        for assignment in overrides:
            override(root, assignment)
        root = with_absolute_paths(root, path.parent)
        if traces:
            root = with_value(root, "traces", node_of([str(trace.resolve()) for trace in traces]))
        return _checked(path, root)
    except RecursionError as problem:
        raise SweepError(f"{path}: nested too deeply; does an anchor contain itself?") from problem


def _checked(path, root):
    problems = _Problems(path)
    section = child(root, "sweep")
    if section is None:
        raise SweepError(
            f"{path}: has no section sweep: add sweep: {{budgets: {EXAMPLE}}}; `kvreplay run` takes a plain"
            " configuration"
        )
    for name, _ in root.value:
        if name.value == "budget":
            problems.add(name, "budget", "sweep.budgets sets the budgets: remove budget")
    read = _Reader(problems).section(section)
    if problems.lines:
        raise SweepError("\n".join(problems.lines))
    return SweepConfig(path, without(root, "sweep"), **read)


class _Problems:
    """Every mistake with its place in the file; values from the command line have no place."""

    def __init__(self, path):
        self._path, self.lines = path, []

    def add(self, node, key, says):
        mark = node.start_mark
        of_file = mark is not None and mark.name == str(self._path)
        place = f":{mark.line + 1}:{mark.column + 1}" if of_file else ""
        self.lines.append(f"{self._path}{place}: {key}: {says}")


class _Reader:
    """Reads the section; a mistake is added to `problems` and gives None."""

    def __init__(self, problems):
        self._problems = problems

    def section(self, node):
        values = self._keys(node, "sweep", KEYS, f"{{budgets: {EXAMPLE}}}")
        if values is None:
            return {}
        refine = self._refine(values.get("refine"))
        return {
            "budgets": self._budgets(node, values.get("budgets"), refine),
            "measure": self._measure(values.get("measure")),
            "refine": refine,
            "epsilons": self._epsilons(values.get("epsilon")),
            "resolution": self._resolution(values.get("resolution")),
        }

    def _keys(self, node, name, known, example):
        """{key: node} of a map, None if the node is not a map."""
        if not isinstance(node, yaml.MappingNode) or not node.value:
            return self._problems.add(node, name, f"write a map: {name.rpartition('.')[2]}: {example}")
        found = {}
        for key, value in node.value:
            if key.value not in known:
                self._problems.add(
                    key, f"{name}.{key.value}", f"unknown key: remove it, or use one of {', '.join(known)}"
                )
            elif key.value in found:
                self._problems.add(key, f"{name}.{key.value}", "occurs twice: keep one of them")
            found[key.value] = value
        return found

    def _budgets(self, section, node, refine):
        if node is None:
            return self._problems.add(section, "sweep.budgets", f"is missing: write budgets: {EXAMPLE}")
        parts = self._parts(node, "sweep.budgets", ("first", "last", "count"), EXAMPLE)
        if parts is None:
            return None
        first = self._whole(parts["first"], "sweep.budgets.first", 1, MOST_TOKENS, "tokens")
        last = self._whole(parts["last"], "sweep.budgets.last", 1, MOST_TOKENS, "tokens")
        least = 3 if refine else 2
        count = self._whole(parts["count"], "sweep.budgets.count", least, MOST_BUDGETS, "budgets")
        if first and last and first >= last:
            self._problems.add(parts["last"], "sweep.budgets.last", f"write more tokens than first, {first}")
            return None
        return Budgets(first, last, count) if first and last and count else None

    def _measure(self, node):
        if node is None:
            return MAIN
        name = node.value if isinstance(node, yaml.ScalarNode) else ""
        known = metric_facts()
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            guess = f" (did you mean {close[0]}?)" if close else ""
            says = f"no measure {name!r}{guess}: use one from `kvreplay list metrics`"
            return self._problems.add(node, "sweep.measure", says)
        # A search for small values makes no sense unless less is better.
        better = known[name].get("better")
        if better == MORE:
            says = f"{name} is better the larger it is, but a sweep searches small values: use another"
            return self._problems.add(node, "sweep.measure", says)
        if better != LESS:
            says = f"no method is better the smaller {name} is: use a measure of the error"
            return self._problems.add(node, "sweep.measure", says)
        return name

    def _refine(self, node):
        if node is None:
            return None
        parts = self._parts(node, "sweep.refine", ("tolerance", "rounds"), "{tolerance: 0.05, rounds: 3}")
        if parts is None:
            return None
        tolerance = self._real(parts["tolerance"], "sweep.refine.tolerance", "above 0", lambda x: x > 0)
        rounds = self._whole(parts["rounds"], "sweep.refine.rounds", 1, MOST_BUDGETS, "rounds")
        return Refine(tolerance, rounds) if tolerance and rounds else None

    def _epsilons(self, node):
        if node is None:
            return ()
        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not items:
            self._problems.add(node, "sweep.epsilon", "is an empty list: write [0.05, 0.1], or remove it")
        found = []
        for item in items:
            value = self._real(item, "sweep.epsilon", "above 0", lambda x: x > 0)
            if value in found:
                self._problems.add(item, "sweep.epsilon", f"{value:g} is listed twice: keep one of them")
            elif value is not None:
                found.append(value)
        return tuple(sorted(found))

    def _resolution(self, node):
        if node is None:
            return DEFAULT_RESOLUTION
        return self._real(node, "sweep.resolution", "from 1 on, a ratio of budgets", lambda x: x >= 1)

    def _parts(self, node, name, keys, example):
        """{key: node} of a map that needs all these keys; None if one is missing."""
        found = self._keys(node, name, keys, example)
        missing = [key for key in keys if key not in found] if found is not None else []
        for key in missing:
            self._problems.add(node, f"{name}.{key}", f"is missing: {name.rpartition('.')[2]}: {example}")
        return None if missing else found

    def _whole(self, node, name, least, most, what):
        text = node.value if isinstance(node, yaml.ScalarNode) else ""
        number = int(text) if re.fullmatch(r"-?\d{1,4000}", text) else None
        if number is not None and least <= number <= most:
            return number
        wrong = "not a whole number" if number is None else "too few" if number < least else "too many"
        wanted = f"write a whole number of {what} from {least} to {most}"
        return self._problems.add(node, name, f"{_shown(node)} is {wrong}: {wanted}")

    def _real(self, node, name, wanted, holds):
        try:
            value = float(node.value) if isinstance(node, yaml.ScalarNode) else math.nan
        except ValueError:
            value = math.nan
        if math.isfinite(value) and holds(value):
            return value
        wrong = "too small: write a number" if math.isfinite(value) else "not a number: write one"
        return self._problems.add(node, name, f"{_shown(node)} is {wrong} {wanted}")


def _shown(node):
    return repr(node.value) if isinstance(node, yaml.ScalarNode) else "a list or map"
