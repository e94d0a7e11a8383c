"""Saved arrays of a run: kept.h5, curves.h5 and outputs.h5 hold every cell, including those of earlier
runs."""

import json

import h5py
import pytest
from kvreplay_cli import kvreplay, replayed, synth, table
from whole_files import arrays

WORK = ["--method", "h2o,window,subgen", "--budget", "16,32", "--seeds", "2", "--progress", "none"]


def saving(*kinds):
    return ["-s", f"output.save=[{', '.join(kinds)}]"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return synth(tmp_path_factory.mktemp("trace") / "t.h5", "--tokens", 96, "--prompt", 64, "--layers", 2)


@pytest.fixture(scope="module")
def whole(trace, tmp_path_factory):
    """Table and arrays of a run that saves everything."""
    out = tmp_path_factory.mktemp("whole")
    rows = replayed(trace, out, *WORK, *saving("kept", "curves", "outputs"))
    numbers = arrays(out)
    assert {file for file, _ in numbers} == {"kept.h5", "curves.h5", "outputs.h5"}
    assert {name.split("/")[0] for _, name in numbers} == {row["key"] for row in rows}
    return rows, numbers


def test_cells_with_missing_arrays_are_replayed(trace, whole, tmp_path):
    rows, numbers = whole
    words = [*WORK, *saving("kept", "curves", "outputs")]
    replayed(trace, tmp_path, *words)
    saved = sorted(tmp_path.glob("cells/*.arrays"))
    assert saved
    for path in [*saved, *tmp_path.glob("*.h5")]:
        path.unlink()
    again = kvreplay("run", trace, *words, "-o", tmp_path)
    assert again.returncode == 0, again.stderr
    assert "36 cells, 0 done before" in again.stderr
    assert replayed(trace, tmp_path, *words) == rows
    assert arrays(tmp_path) == numbers


@pytest.mark.parametrize("first", [(), ("curves",)], ids=["nothing", "curves"])
def test_a_run_that_saves_more_than_the_one_before_has_the_arrays_of_every_cell(
    trace, whole, tmp_path, first
):
    rows, numbers = whole
    replayed(trace, tmp_path, *WORK, *saving(*first))
    assert replayed(trace, tmp_path, *WORK, *saving("kept", "curves", "outputs")) == rows
    assert arrays(tmp_path) == numbers


def test_lists_name_their_cells(trace, tmp_path):
    words = ["--method", "h2o,snapkv,adakv,exact", "--budget", "16,32", "--layers", "0", *saving("kept")]
    rows = replayed(trace, tmp_path, *words, "-s", "methods.1.window=8")
    with h5py.File(tmp_path / "kept.h5") as file:
        said = {key: dict(group.attrs) for key, group in file.items()}
    assert len(rows) == len(said) == 21
    for row in rows:
        label = said[row["key"]]
        assert label["method"].decode() == row["method"]
        assert label["given"].decode() == row["given"]
        assert str(label.get("budget_tokens", "")) == row["budget_tokens"]
        shared = json.loads(row["extras"] or "{}").get("allocated_tokens")
        assert label.get("allocated_tokens") == shared
    assert {row["given"] for row in rows if row["method"] == "snapkv"} == {'{"window":8}'}


def test_a_run_that_saves_less_replays_nothing(trace, tmp_path):
    replayed(trace, tmp_path, *WORK, *saving("kept", "curves"))
    before = arrays(tmp_path)
    result = kvreplay("run", trace, *WORK, *saving("kept"), "-o", tmp_path)
    assert result.returncode == 0
    assert "36 cells, 36 done before" in result.stderr
    assert arrays(tmp_path).items() >= {k: v for k, v in before.items() if k[0] == "kept.h5"}.items()


def test_a_sweep_that_lost_its_arrays_is_worked_and_merged_again(trace, whole, tmp_path):
    rows, numbers = whole
    out = tmp_path / "out"
    config = tmp_path / "c.yaml"
    config.write_text(
        f"schema: 1\ntraces: [{trace}]\nmethods: [h2o, window, subgen]\nbudget: {{tokens: [16, 32]}}\n"
        "seeds: {count: 2}\noutput: {save: [kept, curves, outputs]}\n"
    )
    assert kvreplay("sweep", "plan", config, "-o", out).returncode == 0
    for shard in ("0/2", "1/2"):
        assert kvreplay("sweep", "work", out, "--shard", shard).returncode == 0
    for path in out.glob("cells/*.arrays"):
        path.unlink()
    refused = kvreplay("sweep", "merge", out)
    assert refused.returncode == 75
    assert kvreplay("sweep", "work", out, "--shard", "0/1").returncode == 0
    merged = kvreplay("sweep", "merge", out)
    assert merged.returncode == 0, merged.stderr
    assert table(out) == rows
    assert arrays(out) == numbers
