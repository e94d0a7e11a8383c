"""The figure configurations of this checkout, for pages that say where a claim is tested."""

from dataclasses import dataclass

import yaml

from .program import CHECKOUT

FOLDER = CHECKOUT / "configs/figures"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C it is ten times faster


@dataclass(frozen=True)
class Listed:
    paper: str
    number: str
    expect: str
    command: str


def listed_figures(folder=FOLDER):
    """What each configuration says of itself, by name; [] outside of a checkout.

    Nothing is checked: that is `figures.config`'s when one is run.
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
