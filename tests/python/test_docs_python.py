"""Every Python block of the page on Python and of the README runs unchanged and prints the shown output."""

import contextlib
import io
import re

import kvreplay
import matplotlib as mpl
import pytest
from doc_commands import agrees
from kvreplay_cli import ROOT

pytestmark = pytest.mark.long

PAGE = (ROOT / "docs/python.md").read_text()
README = (ROOT / "README.md").read_text()
NEEDS_TORCH = "# needs torch"
FENCES = r"^```(python|text)\n(.*?)^```$"


def blocks_of(page):
    """[(line, code, shown output or None)], in order."""
    found = []
    for match in re.finditer(FENCES, page, re.M | re.S):
        if match[1] == "python":
            found.append([page[: match.start()].count("\n") + 1, match[2], None])
        else:
            found[-1][2] = match[2].splitlines()
    return found


def follow(page, wanted, names):
    """Runs the wanted blocks in order; returns printed output that the page does not show."""
    wrong = []
    for line, code, shown in blocks_of(page):
        if not wanted(code):
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + code, "page", "exec"), names)
        if shown is not None and not agrees(
            shown, "\n".join(map(str.rstrip, printed.getvalue().splitlines()))
        ):
            wrong.append(f"line {line} prints\n{printed.getvalue()}")
    return wrong


def without_torch(code):
    return not code.startswith(NEEDS_TORCH)


@pytest.fixture
def names(tmp_path, monkeypatch):
    """The environment of a page's blocks: a folder with the sample trace, and a fresh namespace."""
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    monkeypatch.chdir(tmp_path)
    before = mpl.get_backend()
    mpl.use("agg")
    yield {"__name__": "page"}
    mpl.pyplot.close("all")
    mpl.use(before)


def test_the_page_on_python_runs_unchanged(names, tmp_path):
    assert len(blocks_of(PAGE)) >= 12
    assert not (wrong := follow(PAGE, without_torch, names)), "\n".join(wrong)
    assert (tmp_path / "out/python/results.csv").is_file()
    assert all(axes.has_data() for axes in names["axes"])


def test_the_python_of_the_readme_runs_unchanged(names):
    assert blocks_of(README)
    assert not (wrong := follow(README, without_torch, names)), "\n".join(wrong)
    assert not len(names["run"].failed)


def test_the_python_of_the_start_page_runs_as_it_stands(names):
    page = (ROOT / "docs/index.md").read_text()
    assert not (wrong := follow(page, without_torch, names)), "\n".join(wrong)
    assert not len(names["run"].failed) and len(names["run"].compare("40%").compared) == 3


@pytest.mark.torch
def test_the_recording_of_the_page_runs_unchanged(names, tmp_path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tiny_model_folder import saved

    folder = saved(tmp_path / "model")
    names["kv"] = kvreplay
    names["model"] = transformers.AutoModelForCausalLM.from_pretrained(folder)
    names["tokenizer"] = transformers.AutoTokenizer.from_pretrained(folder)
    assert not follow(PAGE, lambda code: not without_torch(code), names)
    assert names["recorded"].prompts == ["0", "1"]
    assert len(names["run"]) and not len(names["run"].failed)
    names["text"] = " ".join(f"w{(5 * i * i + i) % 60 + 3}" for i in range(90))
    with contextlib.redirect_stdout(io.StringIO()):
        assert not follow(README, lambda code: not without_torch(code), names)
    assert not len(names["live"].run.failed)


def test_a_page_with_wrong_output_is_detected(names):
    page = "```python\nprint(1)\n```\n\n```text\nONE\n```\n\n```python\n1 / 0\n```\n"
    assert follow(page.replace("ONE", "1").replace("/ 0", "/ 1"), without_torch, names) == []
    assert follow(page.replace("/ 0", "/ 1"), without_torch, names) == ["line 1 prints\n1\n"]
    with pytest.raises(ZeroDivisionError):
        follow(page, without_torch, names)
