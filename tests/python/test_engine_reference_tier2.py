"""The engine against the numpy definitions of the tier-2 methods: kept lists, weights and outputs."""

import pytest
from engine_cases_tier2 import CASES, FILE, layers_of, write_trace
from engine_runs import Runs, parameters
from kvreplay_cli import BINARY

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")


def write_files(folder, trace):
    write_trace(folder / "t.h5", trace)
    (folder / "budgets.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in FILE))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("engine"), CASES, write_files)


@pytest.mark.parametrize("case,trace", parameters(CASES))
def test_the_engine_agrees_with_the_definition(runs, case, trace):
    runs.check(case, trace, layers_of(trace))
