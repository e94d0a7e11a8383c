"""What methods and row formats there are, and what each is."""

import json
from importlib.metadata import entry_points
from typing import Any

from . import _engine
from .configuration import ENTRY_POINTS, installed_method
from .errors import ConfigError
from .own_methods import hosted


class Description(dict[str, Any]):
    """What `kvreplay describe NAME` says: as a dict, and as text where it is printed."""

    def __init__(self, facts: dict[str, Any], text: str):
        super().__init__(facts)
        self.text = text

    def __repr__(self) -> str:
        return self.text


def methods() -> list[str]:
    """Names that `replay(methods=...)` takes: the engine's own, and those that installed packages offer."""
    return _engine.method_names() + sorted({point.name for point in entry_points(group=ENTRY_POINTS)})


def formats() -> list[str]:
    """Names that `row_format` takes: how the rows of any method's cache are stored."""
    return _engine.format_names()


def describe(name: Any) -> Description:
    """A method or a row format: title, source, phases, parameters with defaults and ranges, what it is
    charged for, where it differs from its source; also of a scorer or Policy of your own. Raises
    ConfigError where there is none of that name, with what is near."""
    if isinstance(name, str) and name in _engine.format_names():
        return Description(json.loads(_engine.format_json(name)), _engine.format_text(name))
    if name not in _engine.method_names():
        offered = installed_method(name) if isinstance(name, str) else hosted(name)
        if offered is None and not isinstance(name, str):
            raise ConfigError(f"{name!r} is no method: give a name, a scorer or a Policy")
        if offered is not None:
            facts = {key: offered.facts[key] for key in ("name", "title", "source", "streams", "random")}
            facts["parameters"] = [
                {"name": n, "default": v, "help": h} for n, _, v, h in offered.facts["parameters"]
            ]
            return Description(facts, "\n".join(f"{key}: {value}" for key, value in facts.items()))
    try:
        return Description(json.loads(_engine.method_json(name)), _engine.method_text(name))
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("error: ")) from None


def columns() -> dict[str, str]:
    """Columns of a run's table, with their units and meaning."""
    return {
        c["name"]: f"{c['help']} [{c['unit']}]" if c["unit"] else c["help"]
        for c in json.loads(_engine.columns())
    }
