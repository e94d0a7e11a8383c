"""Traces of many files: workers read only what they need, from staged copies if requested."""

import h5py
import numpy as np
import pytest
from kvreplay_cli import kvreplay, table
from sweep_fixture import (
    WAIT_S,
    comparable,
    merge,
    plan,
    started_worker,
    status,
    wait_for_cells,
    work,
    write_config,
)


@pytest.fixture
def divided(trace, tmp_path):
    """The trace as one file per layer and an index of links."""
    folder = tmp_path / "divided"
    (folder / "synthetic").mkdir(parents=True)
    with h5py.File(trace) as source, h5py.File(folder / "index.h5", "w") as index:
        index.attrs.update(source.attrs)
        prompt = index.create_group("prompts/synthetic")
        prompt.attrs.update(source["prompts/synthetic"].attrs)
        for name in source["prompts/synthetic"]:
            if name != "layers":
                source.copy(f"prompts/synthetic/{name}", prompt)
        for name, layer in source["prompts/synthetic/layers"].items():
            with h5py.File(folder / "synthetic" / f"{name}.h5", "w") as file:
                file.attrs.update(source.attrs)
                source.copy(layer, file.create_group("prompts/synthetic/layers"), name)
            link = h5py.ExternalLink(f"synthetic/{name}.h5", f"prompts/synthetic/layers/{name}")
            index[f"prompts/synthetic/layers/{name}"] = link
    return folder / "index.h5"


def test_a_trace_of_many_files_gives_the_table_of_one_file(divided, whole, tmp_path):
    out = tmp_path / "out"
    plan(write_config(tmp_path, divided), out)
    for i in range(3):
        assert work(out, f"{i}/3").returncode == 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_a_worker_opens_the_files_of_its_layers_and_no_other(divided, whole, tmp_path):
    out = tmp_path / "out"
    plan(write_config(tmp_path, divided), out)
    away = tmp_path / "away"
    away.mkdir()
    for layer in [0, 1, 3, 4]:
        (divided.parent / f"synthetic/{layer:03}.h5").rename(away / f"{layer:03}.h5")
    assert work(out, "2/5").returncode == 0
    other = work(out, "3/5")
    assert other.returncode == 3
    assert "003.h5 is missing" in other.stderr
    for file in away.iterdir():
        file.rename(divided.parent / "synthetic" / file.name)
    assert work(out, "0/1").returncode == 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_staged_workers_read_copies_and_leave_nothing_behind(divided, whole, tmp_path):
    out, node = tmp_path / "out", tmp_path / "node"
    plan(write_config(tmp_path, divided), out)
    result = work(out, "2/5", "--stage", node)
    assert result.returncode == 0
    assert "2 files" in result.stderr and str(node) in result.stderr
    assert list(node.iterdir()) == []
    assert work(out, "0/1", "--stage", node).returncode == 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_staged_workers_have_all_layers_where_a_budget_is_shared_over_them(divided, tmp_path):
    config, out = write_config(tmp_path, divided), tmp_path / "out"
    config.write_text(config.read_text().replace("[h2o, snapkv, streaming_llm, uniform]", "[h2o, cake]"))
    plan(config, out)
    for i in range(2):
        assert work(out, f"{i}/2", "--stage", tmp_path / "node").returncode == 0
    assert merge(out).returncode == 0
    assert kvreplay("run", config, "-o", tmp_path / "run").returncode == 0
    assert comparable(out) == comparable(tmp_path / "run")


def test_a_missing_layer_fails_only_cells_that_share_its_budget(divided, tmp_path):
    config, out = write_config(tmp_path, divided, "select: {layers: [0]}\n"), tmp_path / "out"
    config.write_text(config.read_text().replace("[h2o, snapkv, streaming_llm, uniform]", "[h2o, cake]"))
    plan(config, out)
    (divided.parent / "synthetic/003.h5").unlink()
    assert work(out, "0/1").returncode == 1
    assert merge(out, "--partial").returncode == 1
    failed = {row["method"] for row in table(out) if row["status"] == "failed"}
    assert failed == {"cake"}
    assert status(out).items() >= {"ok": 8, "failed": 8}.items()


def test_a_trace_removed_during_work_costs_no_attempt(divided, whole, tmp_path):
    out, layers = tmp_path / "out", divided.parent / "synthetic"
    plan(write_config(tmp_path, divided), out)
    process = started_worker(out)
    wait_for_cells(out, 1, process)
    away = layers.rename(tmp_path / "away")
    _, messages = process.communicate(timeout=WAIT_S)
    assert process.returncode == 3
    assert "is missing" in messages
    assert status(out).items() >= {"failed": 0, "parked": 0}.items()
    away.rename(layers)
    assert work(out, "0/1").returncode == 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_arrays_belong_to_the_computation_that_counts(trace, tmp_path):
    config = write_config(tmp_path, trace, "output: {save: [curves]}\n")
    out = tmp_path / "out"
    plan(config, out, "--layers", 0)
    assert work(out, "0/1").returncode == 0
    (first,) = out.glob("shards/*.jsonl")
    kept = first.rename(tmp_path / "kept.jsonl")
    assert work(out, "0/1", KVREPLAY_ISA="portable").returncode == 0
    (second,) = out.glob("shards/*.jsonl")
    second.rename(out / "shards/shard-1.later.1.jsonl")
    kept.rename(first)
    assert merge(out).returncode == 0
    assert kvreplay("run", config, "--layers", 0, "-o", tmp_path / "run").returncode == 0
    with h5py.File(out / "curves.h5") as merged, h5py.File(tmp_path / "run/curves.h5") as run:
        assert set(merged) == set(run)
        assert all(np.array_equal(merged[key]["rel_err"], run[key]["rel_err"]) for key in run)


def test_a_killed_worker_leaves_copies_that_the_next_one_removes(divided, tmp_path):
    out, node = tmp_path / "out", tmp_path / "node"
    plan(write_config(tmp_path, divided), out)
    process = started_worker(out, "--stage", node)
    wait_for_cells(out, 1, process)
    process.kill()
    process.communicate()
    assert len(list(node.iterdir())) == 1
    assert work(out, "0/1", "--stage", node).returncode == 0
    assert list(node.iterdir()) == []
