"""Changed traces, plans and results are reported, refused, or replayed."""

import json
import shutil
from pathlib import Path

import h5py
import pytest
from kvreplay_cli import kvreplay
from sweep_fixture import (
    CELLS,
    comparable,
    lines,
    make_trace,
    merge,
    plan,
    rewritten,
    status,
    work,
    write_config,
)


def test_a_changed_trace_at_an_old_path_is_refused_and_finished_cells_stay(trace, whole, tmp_path):
    copy, out = shutil.copy(trace, tmp_path / "t.h5"), tmp_path / "out"
    plan(write_config(tmp_path, copy), out)
    assert work(out, "0/2").returncode == 0
    Path(copy).unlink()
    make_trace(copy, seed=1)
    result = work(out, "1/2")
    assert result.returncode == 3
    assert "is another trace than the one that was planned" in result.stderr
    assert status(out).items() >= {"ok": 100, "missing": 100, "failed": 0}.items()
    shutil.copy(trace, copy)
    assert work(out, "1/2").returncode == 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_a_pool_ends_at_a_permanent_error_and_names_it(trace, tmp_path):
    copy, out = Path(shutil.copy(trace, tmp_path / "t.h5")), tmp_path / "out"
    plan(write_config(tmp_path, copy), out)
    copy.unlink()
    result = kvreplay("sweep", "submit", out, "--engine", "local", "--workers", 2, "--shards", 2)
    assert result.returncode == 3
    assert result.stderr.count("shards left") == 1
    assert result.stderr.count(f"no trace {copy}") == 2


def test_another_prompt_at_an_old_path_is_reported_as_another_trace(trace, tmp_path):
    copy, out = Path(shutil.copy(trace, tmp_path / "t.h5")), tmp_path / "out"
    plan(write_config(tmp_path, copy), out)
    with h5py.File(copy, "r+") as file:
        file.move("prompts/synthetic", "prompts/renamed")
        file.attrs["trace_id"] = "f" * 64
    result = work(out, "0/1")
    assert result.returncode == 3
    assert "is another trace than the one that was planned" in result.stderr


def test_a_trace_that_has_moved_is_planned_again_and_nothing_is_repeated(trace, whole, tmp_path):
    copy, out = Path(shutil.copy(trace, tmp_path / "t.h5")), tmp_path / "out"
    plan(write_config(tmp_path, copy), out)
    assert work(out, "0/2").returncode == 0
    moved = copy.rename(tmp_path / "moved.h5")
    gone = work(out, "1/2")
    assert gone.returncode == 3
    assert "t.h5" in gone.stderr
    assert "(100 done)" in plan(write_config(tmp_path, moved), out)
    assert work(out, "1/2").returncode == 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_a_trace_that_is_missing_blocks_no_other(trace, tmp_path):
    copy, out = Path(shutil.copy(trace, tmp_path / "t.h5")), tmp_path / "out"
    other = make_trace(tmp_path / "other.h5", tokens=128, seed=2)
    config = write_config(tmp_path, f"{copy}, {other}")
    plan(config, out)
    copy.unlink()
    result = work(out, "0/1")
    assert result.returncode == 3
    assert status(out).items() >= {"ok": CELLS, "missing": CELLS, "failed": 0}.items()


def test_a_changed_result_line_is_replayed(out, whole):
    assert work(out, "0/1").returncode == 0
    (shard,) = out.glob("shards/*.jsonl")
    text = shard.read_text()
    at = text.index('"rel_err_out_mean":0.') + len('"rel_err_out_mean":0.')
    shard.write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :])
    assert status(out).items() >= {"damaged": 1, "missing": 1}.items()
    refused = merge(out)
    assert refused.returncode == 75
    assert "1 damaged lines" in refused.stderr
    assert work(out, "0/1").returncode == 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_a_torn_last_line_does_not_exist(out, whole):
    assert work(out, "0/1").returncode == 0
    (shard,) = out.glob("shards/*.jsonl")
    shard.write_bytes(shard.read_bytes()[:-100])
    assert status(out).items() >= {"damaged": 0, "missing": 1}.items()
    assert work(out, "0/1").returncode == 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_a_changed_plan_is_refused_by_every_command(out):
    (file,) = out.glob("plan-*.jsonl")
    text = file.read_text()
    file.chmod(0o644)
    file.write_text(text.replace('"budget_tokens":64', '"budget_tokens":65', 1))
    for words in [["work", out], ["status", out], ["merge", out], ["submit", out, "--engine", "local"]]:
        result = kvreplay("sweep", *words)
        assert result.returncode == 2
        assert "changed or damaged" in result.stderr and "sweep plan" in result.stderr


SEALED_BUT_ABSURD = {
    "units beyond the cells": lambda h: h["units"][-1].__setitem__(5, 10**6),
    "a count below zero": lambda h: h["units"][0].__setitem__(5, -1),
    "a gap between units": lambda h: h["units"][1].__setitem__(4, 0),
    "a trace that is not there": lambda h: h["units"][0].__setitem__(0, 7),
    "a cost that is no number": lambda h: h["units"][0].__setitem__(6, "much"),
    "no units": lambda h: h.pop("units"),
    "no configuration": lambda h: h.pop("config"),
    "a device that is no text": lambda h: h["config"]["run"].__setitem__("device", 3),
    "another version": lambda h: h.__setitem__("kvreplay_plan", 99),
}


@pytest.mark.parametrize("what", SEALED_BUT_ABSURD)
def test_an_absurd_plan_with_a_valid_checksum_is_refused(out, what):
    (file,) = out.glob("plan-*.jsonl")
    header, *cells = file.read_text().splitlines()
    content = json.loads(header)
    SEALED_BUT_ABSURD[what](content)
    file.chmod(0o644)
    file.write_text("\n".join([rewritten(content), *cells]) + "\n")
    for words in [["work", out], ["status", out], ["merge", out, "--partial"]]:
        result = kvreplay("sweep", *words, timeout=20)
        assert result.returncode == 2, result.stderr
        assert file.name in result.stderr and "sweep plan" in result.stderr


@pytest.mark.parametrize("changed", [{"row": 3}, {"row": {}}, {"row": {"key": "k" + "0" * 16}}])
def test_an_absurd_result_line_with_a_valid_checksum_is_reported_with_its_file(out, changed):
    assert work(out, "0/1").returncode == 0
    (shard,) = out.glob("shards/*.jsonl")
    first, *others = lines(out)
    shard.write_text("\n".join([rewritten(first, **changed), *map(rewritten, others)]) + "\n")
    result = merge(out)
    assert result.returncode == 2
    assert shard.name in result.stderr
