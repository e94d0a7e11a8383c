"""The notebook runs from the first cell to the last, and is stored with its output."""

import json
import os
import re

import pytest
from kvreplay_cli import ROOMS, ROOT
from smollm2_once import model_file_in, shared_folder

PATH = ROOT / "docs/notebook.ipynb"
NOTEBOOK = json.loads(PATH.read_text())
MOST_CELLS = 20
MOST_BYTES = 100_000
SHORTER = {"max_tokens=1024": "max_tokens=352", "prefill=768": "prefill=288"}
# Traces of a machine, a time or a widget in the file.
NOISE = r'/tmp/|/home/|/root/|/usr/|site-packages|\d{4}-\d\d-\d\dT|iopub\.|widget|"stderr"|Traceback'


def test_the_notebook_is_short_and_nothing_of_a_machine_is_in_it():
    cells = NOTEBOOK["cells"]
    assert len(cells) <= MOST_CELLS
    assert PATH.stat().st_size < MOST_BYTES
    assert not re.findall(NOISE, PATH.read_text())
    assert set(NOTEBOOK["metadata"]) <= {"kernelspec", "language_info"}


def test_the_notebook_shows_what_its_cells_gave():
    shown = [output for cell in NOTEBOOK["cells"] for output in cell.get("outputs", ())]
    kinds = [kind for output in shown for kind in output.get("data", {})]
    assert kinds.count("image/png") == 3
    assert kinds.count("text/html") >= 2
    ran = [cell["execution_count"] for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert ran == list(range(1, len(ran) + 1))


def shorten_texts(notebook):
    """Shortens the recorded and replayed texts, which take most of the time; only numbers in the output
    change."""
    for cell in notebook.cells:
        for whole, shorter in SHORTER.items():
            cell.source = cell.source.replace(whole, shorter)
    return notebook


def test_the_texts_that_a_shorter_run_replaces_are_in_the_notebook():
    text = PATH.read_text()
    assert all(whole in text for whole in SHORTER)


@pytest.mark.torch
@pytest.mark.long
@pytest.mark.parametrize("length", ["shorter", pytest.param("as it stands", marks=pytest.mark.slow)])
def test_the_notebook_runs_from_its_first_cell_to_its_last(
    tmp_path, tmp_path_factory, monkeypatch, smollm2, length
):
    for name in ("ipykernel", "pandas", "matplotlib"):
        pytest.importorskip(name)
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*ROOMS, os.environ.get("PYTHONPATH", "")]))
    # The kernel is a separate process: it loads the model from the file that the tests share.
    startup = tmp_path_factory.mktemp("ipython")
    (startup / "profile_default/startup").mkdir(parents=True)
    kept = model_file_in(shared_folder(tmp_path_factory))
    (startup / "profile_default/startup/model.py").write_text(
        f"import pathlib, smollm2_once, torch\nsmollm2_once.hand_out(pathlib.Path({str(kept)!r}))\n"
        "torch.set_num_threads(1)\n"
    )
    monkeypatch.setenv("IPYTHONDIR", str(startup))
    notebook = nbformat.read(PATH, as_version=4)
    before = [kinds_of(cell) for cell in notebook.cells]
    if length == "shorter":
        notebook = shorten_texts(notebook)
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=place).execute()
    # Last digits of numbers differ between machines; the kinds of output do not.
    assert [kinds_of(cell) for cell in notebook.cells] == before
    assert last_result(notebook) == "True"
    assert not list(tmp_path.iterdir())


def kinds_of(cell):
    """The types of a cell's outputs; progress bars and warnings are left out."""
    found = [sorted(output["data"]) for output in cell.get("outputs", ()) if "data" in output]
    return [kinds for kinds in found if not any("widget" in kind for kind in kinds)]


def last_result(notebook):
    """The text of the last result."""
    texts = [
        output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output["output_type"] == "execute_result"
    ]
    return texts[-1]
