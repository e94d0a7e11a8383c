"""The figure configurations of this package, for pages that say where a claim is tested."""

from dataclasses import dataclass
from pathlib import Path

import yaml
from kvbase.program import CHECKOUT, ROOT

# The folder in a checkout, or in the package kvreplay beside this one, where a wheel puts it.
PLACES = [place / "configs/figures" for place in (Path(CHECKOUT), Path(ROOT) / "kvreplay/data")]
FOLDER = next((place for place in PLACES if place.is_dir()), PLACES[0])
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is ten times faster


@dataclass(frozen=True)
class Listed:
    paper: str
    number: str
    expect: str
    command: str


def listed_figures(folder=FOLDER):
    """The summary in each configuration, by name; [] if there are none.

    Nothing is checked here: `figures.config` checks a configuration when it is run.
    """
    found = []
    for path in sorted(folder.glob("*.yaml")):
        content = yaml.load(path.read_text(encoding="utf-8"), _LOADER)
        figure = content.get("figure") if isinstance(content, dict) else None
        if isinstance(figure, dict):
            said = (str(figure.get(key, "")) for key in ("paper", "number", "expect"))
            found.append(Listed(*said, command_of(path.name)))
    return found


def command_of(file):
    """The command that draws a configuration of configs/figures."""
    return f"kvreplay figures configs/figures/{file}"
