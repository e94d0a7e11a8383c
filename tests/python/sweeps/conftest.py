"""One trace and one table, shared by all tests of sweeps that need no others."""

import pytest
from sweep_fixture import make_trace, planned, table_of_one_run


@pytest.fixture(scope="session")
def trace(tmp_path_factory):
    return make_trace(tmp_path_factory.mktemp("trace") / "t.h5")


@pytest.fixture(scope="session")
def whole(trace, tmp_path_factory):
    """The table of a run in one process."""
    return table_of_one_run(trace, tmp_path_factory.mktemp("whole"))


@pytest.fixture
def out(trace, tmp_path):
    """The directory of a planned sweep without any results."""
    return planned(trace, tmp_path)
