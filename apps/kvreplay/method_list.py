"""Lists and descriptions of methods, row formats and columns."""

import json
from importlib.metadata import entry_points
from typing import Any

from kvbase.engine import _engine
from kvbase.errors import ConfigError

from .configuration import ENTRY_POINTS, installed_method
from .own_methods import hosted


class Description(dict[str, Any]):
    """A dict of facts that prints as the text of `kvreplay describe NAME`."""

    def __init__(self, facts: dict[str, Any], text: str):
        super().__init__(facts)
        self.text = text

    def __repr__(self) -> str:
        return self.text


def methods() -> list[str]:
    """Names for `replay(methods=...)`.

        "h2o" in kv.methods()                   # True

    Returns the names of the built-in methods and of those that installed packages offer.
    """
    return _engine.method_names() + sorted({point.name for point in entry_points(group=ENTRY_POINTS)})


def formats() -> list[str]:
    """Names for a method's option `row_format`: how its cache stores keys and values.

        "int8" in kv.formats()                  # True
        quantised = {"name": "h2o", "row_format": ["int8", "nvfp4"]}
        kv.replay(q, k, v, prefill=768, methods=[quantised], budgets=[64])

    Returns the names of all row formats.
    """
    return _engine.format_names()


def describe(name: Any) -> Description:
    """Describe a method or a row format.

        print(kv.describe("snapkv"))
        kv.describe("snapkv")["parameters"]

    name: a name from `methods()` or `formats()`, or your own scorer or Policy.
    Returns a dict that prints as text: title, source, phases, parameters with defaults and ranges, which
    bytes are charged, and where the implementation differs from its source. Raises ConfigError, with the
    nearest name, if there is no such method or format.
    """
    if isinstance(name, str) and name in _engine.format_names():
        return Description(json.loads(_engine.format_json(name)), _engine.format_text(name))
    if name not in _engine.method_names():
        offered = installed_method(name) if isinstance(name, str) else hosted(name)
        if offered is None and not isinstance(name, str):
            raise ConfigError(f"{name!r} is not a method: give a name, a scorer or a Policy")
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
    """Columns of `Run.table`.

        kv.columns()["rel_err_out_mean"]        # "|z - o| / |o|, mean over heads and scored rows [1]"

    Returns {name: "meaning [unit]"}.
    """
    return {
        c["name"]: f"{c['help']} [{c['unit']}]" if c["unit"] else c["help"]
        for c in json.loads(_engine.columns())
    }
