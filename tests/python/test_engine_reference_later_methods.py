"""The engine against the numpy definitions of the methods added later: kept lists and outputs."""

from functools import cache

import pytest
import yaml
from engine_cases_later_methods import CASES, layers_of, write_files
from engine_runs import Runs, known_methods, parameters
from kvreplay_cli import BINARY, kvreplay

ADDED = {"score": "obc_value", "wrapper": {"name": "caote"}}  # parameters that were added to earlier methods

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")


@pytest.fixture(scope="module")
def knows(tmp_path_factory):
    """Returns a function: whether the engine has a case's method and its later parameters."""
    folder = tmp_path_factory.mktemp("probe")

    @cache
    def takes(method, parameter):
        entry = {"name": method, parameter: ADDED[parameter]}
        config = {"schema": 1, "traces": ["none.h5"], "methods": [entry], "output": {"dir": "out"}}
        (folder / "probe.yaml").write_text(yaml.safe_dump(config))
        said = kvreplay("validate", folder / "probe.yaml").stderr
        return f'unknown parameter "{parameter}"' not in said

    def known(case):
        name = case.entry["name"]
        added = [parameter for parameter in ADDED if parameter in case.entry]
        return name in known_methods() and all(takes(name, parameter) for parameter in added)

    return known


@pytest.fixture(scope="module")
def runs(tmp_path_factory, knows):
    return Runs(tmp_path_factory.mktemp("engine"), CASES, write_files, knows)


@pytest.mark.parametrize("case,trace", parameters(CASES))
def test_the_engine_agrees_with_the_definition(runs, case, trace):
    runs.check(case, trace, layers_of(trace))
