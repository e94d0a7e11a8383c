"""One trace and one table for all tests of sweeps that do not need their own."""

import pytest
from sweep_fixture import make_trace, planned, table_of_one_run


@pytest.fixture(scope="session")
def trace(tmp_path_factory):
    return make_trace(tmp_path_factory.mktemp("trace") / "t.h5")


@pytest.fixture(scope="session")
def whole(trace, tmp_path_factory):
    """The table that one process makes."""
    return table_of_one_run(trace, tmp_path_factory.mktemp("whole"))


@pytest.fixture
def out(trace, tmp_path):
    """The directory of a sweep that nobody has worked on."""
    return planned(trace, tmp_path)
