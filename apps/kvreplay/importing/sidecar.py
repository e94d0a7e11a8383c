"""The JSON file beside the arrays, with facts that the arrays do not hold."""

import difflib
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

from kvbase.errors import ConfigError
from kvbase.files import no_such_file, reason

# Facts of a layer: one value for all layers, a list in the order of the layers, or {number: value}.
OF_LAYERS = ("scaling", "sliding_window", "attention_chunk", "softcap", "q_prescaled", "rope")


@dataclass(frozen=True)
class Sidecar:
    """The facts of a sidecar; None: not given."""

    # facts of a layer, see OF_LAYERS
    scaling: Any = None
    sliding_window: Any = None
    attention_chunk: Any = None
    softcap: Any = None
    q_prescaled: Any = None
    rope: Any = None
    # facts of the prompt
    prompt: str = "p0"
    n_prompt: int | None = None
    n_generated: int | None = None
    token_ids: list[int] | None = None
    token_text: list[str] | None = None
    position_ids: list[int] | None = None
    source: str = ""
    # facts of the model
    model: str = ""
    revision: str = ""
    n_layers: int | None = None
    # layout of the arrays, for formats that do not record it
    dtype: str | None = None
    head_dim: int | None = None
    n_kv_heads: int | None = None
    layers: list[int] | None = None
    q_from: int | None = None
    kv_layout: str | None = None

    path: Path | None = None

    def facts_of(self, number: int, numbers: list[int]) -> dict[str, Any]:
        """{name: fact} of layer `number`, one of `numbers`, without those that are not given."""
        facts = {name: self._fact(name, number, numbers) for name in OF_LAYERS}
        return {name: value for name, value in facts.items() if value is not None}

    def _fact(self, name: str, number: int, numbers: list[int]) -> Any:
        """The fact `name` of layer `number`, one of `numbers`; None if not given."""
        said = getattr(self, name)
        if isinstance(said, list):
            if len(said) != len(numbers):
                self.fail(name, f"has {len(said)} entries for {len(numbers)} layers")
            return said[numbers.index(number)]
        if isinstance(said, dict) and said and all(key.isdigit() for key in said):
            strange = sorted(set(map(int, said)) - set(numbers))
            if strange:
                self.fail(name, f"names layer {strange[0]}, which the source does not hold")
            return said.get(str(number))
        return said

    def prompt_id(self, at: int) -> str:
        """Id of prompt `at` of a source of several: p0, p1 and so on; ID-0, ID-1 if an id is given."""
        return f"p{at}" if self.prompt == "p0" else f"{self.prompt}-{at}"

    def fail(self, name: str, what: str) -> NoReturn:
        """Raises ConfigError about the entry `name`."""
        raise ConfigError(f'{self.path or "sidecar"}: "{name}" {what}')


def read_sidecar(given: str | Path | dict[str, Any] | None, source: Path) -> Sidecar:
    """The given sidecar (a dict or a JSON file), or the file with the source's name and the suffix .json.

    Without either, no fact is given. ConfigError if it is not a JSON object or has an unknown entry.
    """
    if isinstance(given, dict):
        return _checked(given, None)
    here = source if source.name else source.resolve()  # "." has no name
    path = Path(given) if given is not None else here.parent / f"{here.stem}.json"
    if given is None and not path.is_file():
        return Sidecar()
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        why = f"cannot be read ({reason(error)})" if path.exists() else no_such_file(path)
        raise ConfigError(f"{path}: {why}: --sidecar takes a JSON file of facts") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is not JSON ({reason(error)})") from error
    if not isinstance(said, dict):
        raise ConfigError(f'{path}: is not a JSON object. Write for example {{"scaling": 0.125}}')
    return _checked(said, path)


def _checked(said: dict[str, Any], path: Path | None) -> Sidecar:
    known = [field.name for field in fields(Sidecar) if field.name != "path"]
    for name in said:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f'did you mean "{close[0]}"?' if close else f"known are {', '.join(known)}"
            hint = ARRAYS.get(name, hint)
            Sidecar(path=path).fail(name, f"is unknown; {hint}")
    found = Sidecar(**said, path=path)
    for name, kind in KINDS.items():
        value = getattr(found, name)
        if value is not None and not _is(value, kind):
            found.fail(name, f"is {json.dumps(value)[:40]}, it must be {WORDS[kind]}")
    for name in OF_LAYERS:
        for value in _values(getattr(found, name)):
            if value is not None and not _fits(name, value):
                found.fail(name, f"is {json.dumps(value)[:40]}, {EXPECTED[name]}")
    return found


# What an array of the source says, and no sidecar.
ARRAYS = {
    "q_pos": "give the tokens of query rows as arrays layers.N.q_pos, int32 [Tq], of the source",
    "sinks": "give sinks as arrays layers.N.sinks, float32 [Hq], of the source",
}
KINDS = {
    "prompt": str, "source": str, "model": str, "revision": str, "dtype": str,
    "kv_layout": str,
    "n_prompt": int, "n_generated": int, "n_layers": int, "head_dim": int, "n_kv_heads": int, "q_from": int,
    "token_ids": list, "token_text": list, "position_ids": list, "layers": list,
}  # fmt: skip
WORDS = {str: "a string", int: "a whole number, 0 or more", list: "a list"}
EXPECTED = {
    "scaling": "it must be a number, or one for each layer",
    "softcap": "it must be a number, or one for each layer",
    "sliding_window": "it must be a whole number, or one for each layer (0: none)",
    "attention_chunk": "it must be a whole number, or one for each layer (0: none)",
    "q_prescaled": "it must be true or false, or one for each layer",
    "rope": 'it must be an object such as {"theta": 10000}, "none", or one for each layer',
}


def _is(value: Any, kind: type) -> bool:
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return isinstance(value, kind)


def _values(said: Any) -> list[Any]:
    if isinstance(said, list):
        return said
    if isinstance(said, dict) and said and all(key.isdigit() for key in said):
        return list(said.values())
    return [said]


def _fits(name: str, value: Any) -> bool:
    if name == "rope":
        return isinstance(value, dict) or value == "none"
    if name == "q_prescaled":
        return isinstance(value, bool)
    if name in ("sliding_window", "attention_chunk"):
        return _is(value, int)
    return isinstance(value, int | float) and not isinstance(value, bool)
