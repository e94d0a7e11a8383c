"""`kvreplay.replay` takes from a trace file what `kvreplay run` takes, with equal numbers in every column."""

import shutil

import h5py
import kvreplay
import pandas as pd
import pytest
from kvanalysis import load
from kvreplay_cli import TIMES
from kvreplay_cli import kvreplay as program
from program_beside_python import SAVED, check_same_arrays, check_same_rows, replayed, run_program
from whole_traces import (
    BUDGET,
    LAYERS,
    REPLAYED,
    entries_of,
    everything_else,
    write_beside,
    write_whole_trace,
)

KINDS = (*SAVED, "projections")
NEEDLES = {"at": [0.2, 0.7], "tokens": 4}
SETS = {
    "recall_k": [8, 16],
    "tier": {"hot": 16, "policy": "lru", "request": "attended"},
    "machine": {"hbm_bytes": 1e9, "hbm_bw": 1e9, "link_bw": 1e6, "weights_bytes": 1e6},
}
# No cell fails, no budget is a share, and no text has turns.
NEVER_FILLED = {"error", "budget_share"}
NEVER_FILLED |= {
    "n_segments",
    "worst_segment",
    "worst_rel_err_out_mean",
    "first_rel_err_out_mean",
}  # no turns
NOT_MEASURES = {
    *("key", "trace_id", "model", "prompt", "layer", "kv_head", "method", "params", "given", "budget_tokens"),
    *(
        "budget_share",
        "seed",
        "n_prefill",
        "n_tokens",
        "n_queries",
        "status",
        "error",
        "extras",
        "precision",
        "row_format",
    ),
    *("device", "schema", *TIMES),
}
MEASURES = [name for name in kvreplay.columns() if name not in NOT_MEASURES]
WHAT = ["methods", *everything_else("")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the trace `whole.h5`, and the files that entries name."""
    folder = tmp_path_factory.mktemp("whole")
    write_beside(folder, write_whole_trace(folder))
    return folder


@pytest.fixture(scope="module", params=WHAT)
def both(request, folder, tmp_path_factory):
    """(the run in Python, the results folder of the program) of the same entries."""
    trace, entries = folder / "whole.h5", entries_of(request.param, folder)
    out = run_program(
        trace, tmp_path_factory.mktemp("program"), save=KINDS, methods=entries, metrics=MEASURES,
        budget={"tokens": [BUDGET]}, seeds={"count": 2}, select={"prompts": [REPLAYED]},
        replay={"needles": NEEDLES, **SETS},
    )  # fmt: skip
    run = replayed(
        trace, save=KINDS, methods=entries, metrics=MEASURES, budgets=[BUDGET], seeds=2, prompts=[REPLAYED],
        needles=NEEDLES, **SETS,
    )  # fmt: skip
    return request.param, run, out


def test_every_method_option_and_file_has_the_numbers_of_the_program(both):
    what, run, out = both
    check_same_rows(run, out)
    check_same_arrays(run, out, KINDS)
    if what == "methods":
        assert set(run.table["method"]) == set(kvreplay.methods())
        filled = {name for cell in run.cells for name, value in cell.row.items() if value not in (None, "")}
        assert set(kvreplay.columns()) - filled == NEVER_FILLED


def test_a_run_predicts_the_losses_that_the_programs_results_predict(both):
    _, run, out = both
    ours, theirs = run.predicted(), kvreplay.predict(out)
    assert len(ours) > 0 and (ours["kl"] > 0).any() and ours["loss_first_order"].notna().all()
    by = ["label", "seed"]
    ours, theirs = (table.sort_values(by, ignore_index=True) for table in (ours, theirs))
    pd.testing.assert_frame_equal(ours, theirs, check_exact=True)


@pytest.mark.parametrize("budget", [{"share_of_cache": [0.5], "of": "peak"}, {"bytes": [20000]}], ids=str)
def test_budgets_of_bytes_have_the_numbers_of_the_program(budget, folder, tmp_path):
    methods = ["kvzip", {"name": "laq", "generated": True}, {"name": "snapkv", "wrapper": "critical"}]
    trace, chosen = folder / "whole.h5", [REPLAYED]
    out = run_program(trace, tmp_path, methods=methods, budget=budget, select={"prompts": chosen})
    run = replayed(trace, methods=methods, budgets=budget, prompts=chosen, save=SAVED)
    check_same_rows(run, out)
    check_same_arrays(run, out)


def test_arrays_that_were_not_saved_are_replayed_with_the_passes_of_the_file(folder):
    words = {"methods": ["kvzip", {"name": "snapkv", "wrapper": "critical"}], "prompts": [REPLAYED]}
    saved, later = (
        replayed(folder / "whole.h5", budgets=[BUDGET], save=save, **words) for save in (SAVED, ())
    )
    for place in ({"method": "kvzip", "layer": LAYERS[1]}, {"method": "snapkv", "head": 1}):
        assert (saved.outputs(**place)[1] == later.outputs(**place)[1]).all()


def test_a_run_without_projections_says_how_to_save_them(folder):
    run = replayed(folder / "whole.h5", methods=["window"], budgets=[BUDGET], prompts=[REPLAYED])
    with pytest.raises(kvreplay.KvreplayError, match='save="projections"'):
        run.predicted()


def test_projections_without_a_gradient_are_refused(folder):
    q, k, v = (getattr(kvreplay.open(folder / "whole.h5").layer(LAYERS[0], REPLAYED), x) for x in "qkv")
    with pytest.raises(kvreplay.ConfigError, match="the arrays lack"):
        kvreplay.replay(q, k, v, prefill=112, methods=["window"], budgets=[BUDGET], save="projections")


def test_a_gradient_that_a_replay_cannot_use_is_a_warning(folder):
    with pytest.warns(kvreplay.KvreplayWarning, match="prompt p0: kl_head_mean stays empty"):
        kvreplay.replay(
            folder / "whole.h5", prefill=100, methods=["window"], budgets=[32], prompts=[REPLAYED]
        )


def test_results_are_compared_by_nats_as_those_of_the_program(folder, tmp_path):
    methods, chosen = ["window", "h2o", "snapkv"], [REPLAYED]
    trace = folder / "whole.h5"
    out = run_program(
        trace, tmp_path, methods=methods, save=["projections"], budget={"tokens": [BUDGET]},
        select={"prompts": chosen},
    )  # fmt: skip
    run = replayed(trace, methods=methods, budgets=[BUDGET], prompts=chosen, save="projections")
    at = {"at": 0.6, "of": "prompt", "measure": "nats"}
    ours, theirs = run.compare(**at), kvreplay.compare(load(out), **at)
    assert ours.sentence == theirs.sentence
    pd.testing.assert_frame_equal(ours.ranking, theirs.ranking, check_exact=True)


# ---- other parts of a trace


def test_only_the_selected_layers_of_a_trace_in_several_files_are_opened(folder, tmp_path):
    with h5py.File(folder / "whole.h5") as whole, h5py.File(tmp_path / "index.h5", "w") as index:
        index.attrs.update({**whole.attrs, "trace_id": "of these files"})
        for name, prompt in whole["prompts"].items():
            copy = index.create_group(f"prompts/{name}")
            copy.attrs.update(prompt.attrs)
            for group in ("repeat", "lookahead"):
                whole.copy(prompt[group], copy)
            for layer in prompt["layers"]:
                copy[f"layers/{layer}"] = h5py.ExternalLink(f"{name}-{layer}.h5", "layer")
        with h5py.File(tmp_path / f"{REPLAYED}-{LAYERS[0]:03}.h5", "w") as part:
            whole.copy(f"prompts/{REPLAYED}/layers/{LAYERS[0]:03}", part, "layer")
    words = {"methods": ["h2o"], "budgets": [BUDGET], "prompts": [REPLAYED]}
    some = replayed(tmp_path, layers=[LAYERS[0]], **words)
    assert set(some.table["layer"]) == {LAYERS[0]}
    with pytest.raises(kvreplay.TraceError, match="is missing"):
        replayed(tmp_path, **words)


def test_a_trace_that_is_listed_twice_is_refused(folder):
    trace = folder / "whole.h5"
    with pytest.raises(kvreplay.ConfigError, match=r"whole\.h5 is listed twice"):
        replayed([trace, kvreplay.open(trace)], methods=["h2o"], budgets=[BUDGET])


# ---- files that cannot be read


def truncated(path):
    path.write_bytes(path.read_bytes()[:5000])


def foreign(path):
    with h5py.File(path, "w") as file:
        file["x"] = [1]


def unfinished(path):
    with h5py.File(path, "r+") as file:
        file.attrs["complete"] = 0


def changed(path):
    with h5py.File(path, "r+") as file:
        file[f"prompts/{REPLAYED}/layers/003/k"][0, 5, 2] = float("nan")


UNREADABLE = {
    "truncated": (truncated, "truncated or damaged"),
    "foreign": (foreign, "no trace"),
    "unfinished": (unfinished, "unfinished"),
    "not a number": (changed, "NaN at head 0, token 5"),
    "text": (lambda path: path.write_text("no trace"), "is not an HDF5 file"),
}


def refusals(path):
    """What the program and Python say of a file."""
    done = program("run", path, "--method", "window", "--budget", BUDGET, "-o", path.parent / "out")
    with pytest.raises(kvreplay.TraceError) as refused:
        kvreplay.replay(path, methods=["window"], budgets=[BUDGET])
    assert done.returncode == refused.value.exit_code
    return done.stderr.splitlines()[-1], str(refused.value)


@pytest.mark.parametrize("make,why", UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_cannot_be_read_is_refused_as_by_the_program(make, why, folder, tmp_path):
    path = shutil.copy(folder / "whole.h5", tmp_path / "t.h5")
    make(path)
    theirs, ours = refusals(path)
    assert why in ours
    assert theirs == f"kvreplay: error: {ours}"


def test_a_file_that_h5py_writes_in_this_process_is_refused_as_by_the_program(folder, tmp_path):
    path = tmp_path / "t.h5"
    with h5py.File(folder / "whole.h5") as whole, h5py.File(path, "w", libver=("v110", "v110")) as file:
        whole.copy("prompts", file)
        file.attrs.update(whole.attrs)
    before = replayed(path, methods=["window"], budgets=[BUDGET])
    with h5py.File(path, "r"):
        assert len(replayed(path, methods=["window"], budgets=[BUDGET])) == len(before)
    with h5py.File(path, "r+", libver=("v110", "v110")) as file:
        file.swmr_mode = True  # marks the file as one that is written
        theirs, ours = refusals(path)
    assert "a program writes it" in ours
    assert theirs == f"kvreplay: error: {ours}"
    assert len(replayed(path, methods=["window"], budgets=[BUDGET])) == len(before)


def test_a_file_that_changes_between_two_replays_is_read_anew(folder, tmp_path):
    path = shutil.copy(folder / "whole.h5", tmp_path / "t.h5")
    words = {"methods": ["h2o"], "budgets": [BUDGET], "prompts": [REPLAYED]}
    trace = kvreplay.open(path)
    before = replayed(trace, **words)
    with h5py.File(path, "r+") as file:
        for layer in LAYERS:
            file[f"prompts/{REPLAYED}/layers/{layer:03}/v"][...] *= -3
            file[f"prompts/{REPLAYED}/layers/{layer:03}/k"][...] *= 2
    after = replayed(trace, **words)
    assert set(after.table["trace_id"]) != set(before.table["trace_id"])
    assert (after.table["rel_err_out_mean"] != before.table["rel_err_out_mean"]).all()
