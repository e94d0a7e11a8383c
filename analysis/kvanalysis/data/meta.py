"""results.meta.json: a run's description of itself."""

import json
from pathlib import Path

from kvbase.files import reason

from ..errors import ResultsError


class Meta(dict):
    """results.meta.json. It must not be changed: pandas copies `attrs` deeply with every selection, this
    class does not."""

    def __deepcopy__(self, _):
        return self


def load_meta(out_dir):
    """The JSON object of results.meta.json; {} if there is no such file. Raises ResultsError."""
    path = _path(out_dir)
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise ResultsError(f"{path}: cannot be read as JSON: {reason(problem)}") from problem
    if not isinstance(meta, dict):
        raise ResultsError(f"{path}: expected a JSON object, found {type(meta).__name__}")
    return meta


def meta_text(out_dir):
    """The text of results.meta.json."""
    return _path(out_dir).read_text(encoding="utf-8")


def _path(out_dir):
    return Path(out_dir) / "results.meta.json"
