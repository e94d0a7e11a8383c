"""Plans, shards, status and merge: a sweep produces the table of a single run."""

import json

import pytest
from kvreplay_cli import kvreplay, table
from sweep_fixture import (
    CELLS,
    comparable,
    lines,
    make_trace,
    merge,
    plan,
    rewritten,
    status,
    table_of_one_run,
    work,
    write_config,
)


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """A short trace, since there are many tests."""
    return make_trace(tmp_path_factory.mktemp("trace") / "t.h5", tokens=256)


@pytest.fixture(scope="module")
def whole(trace, tmp_path_factory):
    return table_of_one_run(trace, tmp_path_factory.mktemp("whole"))


def plan_file(out):
    (file,) = out.glob("plan-*.jsonl")
    return file


def test_a_plan_states_its_size_and_names_every_cell(trace, tmp_path):
    said = plan(write_config(tmp_path, trace), tmp_path / "out")
    assert f"cells   {CELLS} (0 done) in 20 units" in said
    for word in ["of one core", "MiB a worker", "MiB to read", "results about"]:
        assert word in said
    cells = [json.loads(line) for line in plan_file(tmp_path / "out").read_text().splitlines()[1:]]
    assert len({cell["key"] for cell in cells}) == CELLS
    assert cells[0].items() >= {"layer": 0, "kv_head": 0, "method": "h2o", "budget_tokens": 64}.items()


def test_a_dry_plan_writes_nothing(trace, tmp_path):
    assert "dry run" in plan(write_config(tmp_path, trace), tmp_path / "out", "-n")
    assert not (tmp_path / "out").exists()


def test_shards_in_any_order_give_the_table_of_one_run(out, whole):
    for i in [2, 0, 1]:
        assert work(out, f"{i}/3").returncode == 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole
    assert [row["key"] for row in lines(out)] != []


def test_other_cuts_of_the_same_plan_skip_what_is_done(out, whole):
    assert work(out, "1/4").returncode == 0
    done = status(out)["ok"]
    assert 0 < done < CELLS
    for i in range(3):
        assert work(out, f"{i}/3").returncode == 0
    assert len(lines(out)) == CELLS
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_status_counts_and_names_the_shards_that_are_left(out):
    assert status(out).items() >= {"cells": CELLS, "ok": 0, "missing": CELLS, "complete": False}.items()
    assert work(out, "1/5").returncode == 0
    assert status(out).items() >= {"ok": 40, "missing": 160}.items()
    left = kvreplay("sweep", "status", out, "--missing-array", "--shards", 5)
    assert left.stdout == "0,2-4\n"
    assert "missing   160" in kvreplay("sweep", "status", out).stdout
    without = kvreplay("sweep", "status", out, "--missing-array")
    assert without.returncode == 2
    assert "--shards N" in without.stderr


def test_merge_refuses_an_incomplete_plan_by_default(out):
    assert work(out, "0/2").returncode == 0
    result = merge(out)
    assert result.returncode == 75
    assert "100 of 200 cells are missing" in result.stderr and "--partial" in result.stderr
    assert not (out / "results.csv").exists()
    partial = merge(out, "--partial")
    assert partial.returncode == 0
    assert "missing" in partial.stdout
    assert len(table(out)) == 100
    meta = json.loads((out / "results.meta.json").read_text())
    assert meta["cells"] == {"planned": 200, "ok": 100, "failed": 0, "missing": 100}


def test_a_merged_table_records_its_plan_and_its_workers(out):
    assert work(out, "0/1").returncode == 0
    assert merge(out).returncode == 0
    meta = json.loads((out / "results.meta.json").read_text())
    assert plan_file(out).name == f"plan-{meta['plan']}.jsonl"
    assert sum(meta["computed_by"].values()) == CELLS
    assert meta["config"]["name"] == "two-hundred"
    assert len(meta["traces"][0]["trace_id"]) == 64


def test_the_same_plan_may_be_made_again_and_another_may_not(out, trace, tmp_path):
    assert work(out, "0/4").returncode == 0
    config = write_config(tmp_path, trace)
    assert f"cells   {CELLS} (50 done)" in plan(config, out)
    other = kvreplay("sweep", "plan", config, "-o", out, "-s", "budget.tokens=[32]")
    assert other.returncode == 2
    assert "another plan" in other.stderr and "--force" in other.stderr
    assert "(0 done)" in plan(config, out, "-s", "budget.tokens=[32]", "--force")
    assert not list(out.glob("shards/*"))


def test_results_of_a_run_count_in_a_sweep_of_the_same_cells(trace, whole, tmp_path):
    config = write_config(tmp_path, trace)
    out = tmp_path / "out"
    assert kvreplay("run", config, "-o", out, "--layers", "0,1").returncode == 0
    assert "(80 done)" in plan(config, out)
    assert work(out, "0/1").returncode == 0
    assert merge(out).returncode == 0
    assert comparable(out) == whole


def test_explicit_defaults_give_the_same_cells(trace, tmp_path):
    config, out = write_config(tmp_path, trace), tmp_path / "out"
    short = ["-s", "budget.tokens=[64]", "-s", "methods=[h2o]"]
    long = ["-s", "budget.tokens=[64]", "-s", "methods=[{name: h2o, recent: 32}]"]
    assert kvreplay("run", config, "-o", out, *short).returncode == 0
    assert "(20 done)" in plan(config, out, *long)
    assert merge(out).returncode == 0
    assert kvreplay("run", config, "-o", out, *long).returncode == 0


def test_a_file_of_budgets_is_identified_by_its_content(trace, tmp_path):
    for name in ["a", "b"]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "budgets.csv").write_text("40,50,60,70\n" * 5)
        text = write_config(tmp_path / name, trace).read_text()
        methods = "[{name: h2o, allocator: 'file:budgets.csv'}]"
        (tmp_path / name / "sweep.yaml").write_text(
            text.replace("[h2o, snapkv, streaming_llm, uniform]", methods)
        )
    out = tmp_path / "out"
    plan("sweep.yaml", out, cwd=tmp_path / "a")
    assert "(0 done)" in plan(tmp_path / "b/sweep.yaml", out)
    assert work(out, "0/1").returncode == 0
    assert merge(out).returncode == 0
    assert kvreplay("run", "sweep.yaml", "-o", tmp_path / "run", cwd=tmp_path / "b").returncode == 0
    assert comparable(out) == comparable(tmp_path / "run")


def test_many_budgets_of_one_method_are_as_many_rows(trace, tmp_path):
    budgets = ",".join(map(str, range(20, 90)))
    words = ["--method", "window", "--budget", budgets, "--layers", 0, "--kv-heads", 0]
    assert kvreplay("run", trace, *words, "-o", tmp_path).returncode == 0
    assert len(table(tmp_path)) == 70


def test_only_plans_the_cells_that_a_table_names(trace, whole, tmp_path):
    (tmp_path / "only.csv").write_text("layer,method,budget_tokens\n0,h2o,64\n3,,128\n")
    config, out = write_config(tmp_path, trace), tmp_path / "out"
    assert f"cells   {4 + 4 * 5} " in plan(config, out, "--only", tmp_path / "only.csv")
    assert work(out, "0/1").returncode == 0
    assert merge(out).returncode == 0
    run = kvreplay("run", config, "-o", tmp_path / "run", "--only", tmp_path / "only.csv")
    assert run.returncode == 0
    assert comparable(tmp_path / "run") == comparable(out)


def test_saved_arrays_are_gathered_by_merge(trace, tmp_path):
    config = write_config(tmp_path, trace, "output: {save: [kept, curves]}\n")
    out = tmp_path / "out"
    plan(config, out, "--layers", 0)
    for i in range(2):
        assert work(out, f"{i}/2").returncode == 0
    assert merge(out).returncode == 0
    assert (out / "kept.h5").exists() and (out / "curves.h5").exists()
    next(out.glob("cells/*.arrays")).unlink()
    assert 0 < status(out)["missing"] < status(out)["cells"]


def test_local_workers_give_the_table_of_one_run(out, whole):
    result = kvreplay("sweep", "submit", out, "--engine", "local", "--workers", 2)
    assert result.returncode == 0, result.stderr
    assert comparable(out) == whole
    assert "h2o" in result.stdout and "shard 0/8 done" in result.stderr
    again = kvreplay("sweep", "submit", out, "--engine", "local")
    assert again.returncode == 0
    assert len(lines(out)) == CELLS


def test_a_dry_submission_of_a_finished_sweep_writes_nothing(out):
    assert work(out, "0/1").returncode == 0
    for engine in ["local", "slurm"]:
        assert kvreplay("sweep", "submit", out, "--engine", engine, "-n").returncode == 0
    assert not (out / "results.csv").exists()


def test_submitting_dry_shows_what_would_be_started(out):
    local = kvreplay("sweep", "submit", out, "--engine", "local", "--workers", 2, "-n")
    assert local.stdout.count("sweep work") == 8
    slurm = kvreplay(
        *["sweep", "submit", out, "--engine", "slurm", "-n", "--shards", 4, "--at-once", 2, "-j", 3],
        *["--time", "30m", "--sbatch=--partition=long", "--stage", "$TMPDIR", "--array-limit", 2000],
    )
    assert slurm.returncode == 0
    for line in [
        *["#SBATCH --array=0-3%2", "#SBATCH --time=00:30:00", "#SBATCH --partition=long", "-j 3"],
        *["sweep merge", "sbatch --dependency=afterany:JOB", "--array-limit 2000"],
    ]:
        assert line in slurm.stdout
    assert not list(out.glob("shards/*"))


def test_a_missing_slurm_is_reported_with_the_alternative(out):
    result = kvreplay("sweep", "submit", out, "--engine", "slurm", PATH="/nowhere")
    assert result.returncode == 2
    assert "--engine local" in result.stderr


def test_a_cell_computed_twice_with_equal_numbers_is_reported_and_counts_once(out, whole):
    assert work(out, "0/1").returncode == 0
    line = lines(out)[0]
    (out / "shards" / "shard-9.other.1.jsonl").write_text(rewritten(line) + "\n")
    assert status(out)["repeated"] == 1
    result = merge(out)
    assert result.returncode == 0
    assert "1 cells were computed more than once" in result.stderr
    assert comparable(out) == whole


def contradiction(line, **changed):
    return rewritten(line, row=line["row"] | {"rel_err_out_mean": 0.123}, **changed) + "\n"


def test_one_path_with_two_results_is_an_error(out):
    assert work(out, "0/1").returncode == 0
    (out / "shards" / "shard-9.other.1.jsonl").write_text(contradiction(lines(out)[0]))
    result = merge(out)
    assert result.returncode == 5
    assert "rel_err_out_mean" in result.stderr and "shard-9.other.1.jsonl" in result.stderr
    assert not (out / "results.csv").exists()


def test_different_results_of_another_path_give_a_warning_and_the_first_is_kept(out, whole):
    assert work(out, "0/1").returncode == 0
    (out / "shards" / "shard-9.other.1.jsonl").write_text(contradiction(lines(out)[0], isa="riscv"))
    result = merge(out)
    assert result.returncode == 0
    assert "1 cells have other numbers on another path" in result.stderr
    assert comparable(out) == whole


def test_other_numbers_of_real_instruction_sets_give_a_warning(out, whole):
    assert work(out, "0/2", KVREPLAY_ISA="portable").returncode == 0
    (portable,) = out.glob("shards/*.jsonl")
    portable.rename(out / "later.jsonl")
    assert work(out, "0/1").returncode == 0
    (out / "later.jsonl").rename(out / "shards" / "shard-1.portable.1.jsonl")
    result = merge(out)
    assert result.returncode == 0
    assert "cells have other numbers on another path" in result.stderr
    assert comparable(out) == whole


def test_stale_cells_are_replayed_by_this_build_and_take_the_place_of_the_old(out, whole):
    assert work(out, "0/1").returncode == 0
    (shard,) = out.glob("shards/*.jsonl")
    old = lines(out)
    text = [
        contradiction(line, build="0.0 old") if i < 3 else rewritten(line) + "\n"
        for i, line in enumerate(old)
    ]
    shard.write_text("".join(text))
    assert status(out).items() >= {"ok": CELLS, "stale": 3}.items()
    assert work(out, "0/1").returncode == 0
    assert status(out)["stale"] == 3
    assert work(out, "0/1", "--stale").returncode == 0
    assert status(out)["stale"] == 0
    result = merge(out)
    assert result.returncode == 0
    assert "3 results of other builds are replaced" in result.stderr
    assert comparable(out) == whole


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["work", "OUT", "--shard", "3/3"], "must be i/N"),
        (["work", "OUT", "--time-budget", "soon"], "50m"),
        (["status", "nowhere"], "holds no plan"),
        (["submit", "OUT", "--engine", "slurm", "--sbatch=partition=long"], "--sbatch=--partition=long"),
        (["submit", "OUT", "--engine", "slurm", "--shards", "9", "--array-limit", "8"], "--array-limit"),
        (["submit", "OUT", "--engine", "local", "--workers", "0"], "--workers"),
        (["work", "OUT", "--time-budget", "1:00"], "01:30:00"),
        (["merge"], "--out is required. See kvreplay sweep merge --help"),
        (["submit", "OUT"], "--engine is required"),
        (["submit", "OUT", "--engine", "cloud"], "cloud"),
        (["plan"], "needs a configuration or a trace"),
        (["wrok", "OUT"], "did you mean work?"),
    ],
)
def test_a_wrong_command_line_is_reported_with_the_correct_one(out, words, told):
    result = kvreplay("sweep", *[out if word == "OUT" else word for word in words])
    assert result.returncode == 2
    assert told in result.stderr


def test_sweep_without_arguments_prints_its_commands():
    result = kvreplay("sweep")
    assert result.returncode == 0
    for word in ["plan", "work", "status", "merge", "submit"]:
        assert word in result.stdout


def test_a_method_that_a_run_adds_to_a_sweep_stays_in_the_merged_table(out, trace, tmp_path):
    assert work(out, "0/1").returncode == 0
    assert merge(out).returncode == 0
    before = table(out)
    config = write_config(tmp_path, trace)
    assert kvreplay("run", config, "-o", out, "-s", "methods=[exact]").returncode == 0
    assert len(table(out)) > len(before)
    merged = merge(out)
    assert merged.returncode == 0, merged.stderr
    assert "exact" not in merged.stdout
    assert [row for row in table(out) if row["method"] != "exact"] == before
    meta = json.loads((out / "results.meta.json").read_text())
    assert [run["config"]["methods"][0]["name"] for run in meta["earlier_runs"]] == ["exact"]
