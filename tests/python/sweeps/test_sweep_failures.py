"""Failing cells are logged, tried again and parked, and do not block other cells."""

import shutil

import pytest
from kvreplay_cli import kvreplay, table
from sweep_fixture import (
    CELLS,
    comparable,
    damage,
    lines,
    merge,
    plan,
    rewritten,
    status,
    work,
    write_config,
)


@pytest.fixture
def damaged(trace, tmp_path):
    """A sweep over a copy of the trace in which kv head 2 of layer 1 cannot be read."""
    copy = shutil.copy(trace, tmp_path / "damaged.h5")
    damage(copy, 1, 2)
    plan(write_config(tmp_path, copy), tmp_path / "out")
    return tmp_path / "out", copy


def work_until_parked(out):
    """Runs three workers: each tries a cell once, and a cell has three attempts."""
    for _ in range(3):
        assert work(out, "0/1").returncode == 1


def test_an_unreadable_head_fails_its_cells_three_times_and_blocks_no_other(damaged):
    out, _ = damaged
    assert work(out, "0/1").returncode == 1
    assert status(out).items() >= {"ok": 190, "failed": 10, "parked": 0, "complete": False}.items()
    assert merge(out).returncode == 75
    for _ in range(2):
        assert work(out, "0/1").returncode == 1
    assert status(out).items() >= {"ok": 190, "failed": 0, "parked": 10, "complete": True}.items()
    failures = [line for line in lines(out, "attempts") if "key" in line]
    assert len(failures) == 30
    assert all("/k" in line["row"]["error"] and line["host"] for line in failures)
    begun = len(lines(out, "attempts")) - len(failures)
    assert work(out, "0/1").returncode == 1
    assert len(lines(out, "attempts")) == len(failures) + begun  # no cell was started again


def test_a_table_with_parked_cells_has_their_errors(damaged):
    out, _ = damaged
    work_until_parked(out)
    result = merge(out)
    assert result.returncode == 1
    assert "cells failed: h2o: " in result.stderr
    failed = [row for row in table(out) if row["status"] == "failed"]
    assert {(row["layer"], row["kv_head"]) for row in failed} == {("1", "2")}
    assert all(row["error"] and not row["rel_err_out_mean"] for row in failed)
    assert len(table(out)) == CELLS


def test_parked_cells_get_one_more_attempt_on_request(damaged, whole, trace):
    out, copy = damaged
    work_until_parked(out)
    assert work(out, "0/1", "--retry-parked").returncode == 1
    assert status(out)["parked"] == 10
    shutil.copy(trace, copy)
    assert work(out, "0/1", "--retry-parked").returncode == 0
    assert status(out).items() >= {"ok": CELLS, "parked": 0}.items()
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_a_pool_tries_failed_cells_in_each_of_its_rounds(damaged):
    out, _ = damaged
    result = kvreplay("sweep", "submit", out, "--engine", "local", "--workers", 2, "--shards", 5)
    assert result.returncode == 1
    assert status(out).items() >= {"ok": 190, "parked": 10}.items()
    assert [line.count("of 5 shards left") for line in result.stderr.splitlines()].count(1) == 3


def test_an_unreadable_head_fails_only_cells_that_share_its_budget(damaged, tmp_path):
    _, copy = damaged
    config = write_config(tmp_path, copy)
    config.write_text(config.read_text().replace("[h2o, snapkv, streaming_llm, uniform]", "[adakv, h2o]"))
    plan(config, tmp_path / "shared")
    assert work(tmp_path / "shared", "0/1").returncode == 1
    assert merge(tmp_path / "shared", "--partial").returncode == 1
    failed = {
        (row["method"], row["layer"], row["kv_head"])
        for row in table(tmp_path / "shared")
        if row["status"] == "failed"
    }
    assert failed == {("adakv", "1", str(h)) for h in range(4)} | {("h2o", "1", "2")}


def test_a_stale_cell_that_fails_is_tried_once_and_keeps_its_old_result(trace, tmp_path):
    copy = shutil.copy(trace, tmp_path / "t.h5")
    plan(write_config(tmp_path, copy), tmp_path / "out")
    out = tmp_path / "out"
    assert work(out, "0/1").returncode == 0
    (shard,) = out.glob("shards/*.jsonl")
    shard.write_text("".join(rewritten(line, build="0.0 old") + "\n" for line in lines(out)))
    damage(copy, 1, 2)
    assert work(out, "0/1", "--stale").returncode == 1
    assert status(out).items() >= {"ok": CELLS, "stale": 10}.items()


def test_a_head_that_killed_its_worker_is_tried_last(out):
    line = '"begun":0,"host":"other.1"'
    sealed = rewritten({"begun": 0, "host": "other.1"})
    assert line in sealed
    (out / "attempts").mkdir()
    (out / "attempts" / "shard-0.other.1.jsonl").write_text(sealed + "\n")
    assert work(out, "0/1").returncode == 0
    cells = lines(out)
    assert [(c["row"]["layer"], c["row"]["kv_head"]) for c in (cells[0], cells[-1])] == [(0, 1), (0, 0)]
