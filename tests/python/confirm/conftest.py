"""One tiny model, its trace and the engine's results, shared by all tests that need no others."""

import pytest


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """(results folder, model folder, trace) of a tiny Llama."""
    pytest.importorskip("torch")
    import confirm_fixture as fixture

    folder = tmp_path_factory.mktemp("confirm")
    model = fixture.tiny_llama()
    trace = fixture.record(model, folder / "trace.h5", prompts=("a", "b"), with_output=True)
    select = {"select": {"prompts": ["b"]}}
    out = fixture.replay(trace, folder / "out", fixture.METHODS + fixture.WEIGHTED, **select)
    return out, fixture.saved(model, folder / "model"), trace


@pytest.fixture
def own_copy(tiny, tmp_path):
    """A copy of these results that a test may change."""
    import confirm_fixture as fixture

    return fixture.copy_of(tiny[0], tmp_path / "out")
