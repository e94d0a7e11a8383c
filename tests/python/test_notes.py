"""Notes that a run prints when its numbers show nothing, on real runs; and runs that must not print any."""

import json
import re

import kvreplay
import numpy as np
import pytest
from kvanalysis import load
from kvanalysis.data.notes import notes_of
from kvanalysis.page.notes import notes_section
from kvanalysis.stats.summary import summarise
from kvreplay_cli import ROOT, synth
from kvreplay_cli import kvreplay as program
from test_kvanalysis_fake import fake_row, write_results
from test_measures_independent import add_gradient

SAMPLE = ROOT / "traces" / "samples" / "smollm2-135m.h5"
NO_RESULTS = {"select_s", "attend_s"}
VOTES = [{"name": "snapkv", "variant": ["default", "kvpress"]}, "pyramidkv", "window"]


def kinds(run):
    return [note.kind for note in run.notes]


def of_kind(notes, kind):
    return [note for note in notes if note.kind == kind]


@pytest.fixture(scope="module")
def votes():
    return kvreplay.replay(SAMPLE, layers=[0, 15], methods=VOTES, budgets=[64, 128])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """(folder, finished process) of the program's run with the settings of `votes`."""
    out = tmp_path_factory.mktemp("votes") / "out"
    words = ["run", SAMPLE, "--layers", "0,15", "--budget", "64,128", "-o", out, "--progress", "none"]
    return out, program(*words, "-s", f"methods={json.dumps(VOTES)}")


def test_a_window_as_large_as_the_budget_is_noted_only_at_that_budget(votes):
    (note,) = of_kind(votes.notes, "protection_fills_budget")
    assert [one.label for one in note.instances] == ["snapkv variant=kvpress"]
    assert (note.budgets, note.cells, note.heads) == ((64,), 6, 6)
    assert "smaller window or a larger budget" in note.text


def test_pyramidkv_at_its_defaults_is_noted_as_snapkv(votes):
    (note,) = of_kind(votes.notes, "instances_equal")
    assert note.text.startswith("pyramidkv equals snapkv in all 6 heads at budgets 64, 128")
    brief = votes.summary().set_index(["method", "budget_tokens"])["notes"]
    assert brief["pyramidkv", 64] == "equals snapkv"
    assert brief["snapkv", 128].startswith("equals pyramidkv")
    assert brief["window", 64] == ""


def test_instances_are_noted_as_equal_only_if_all_columns_are(votes):
    table = votes.table.set_index(["layer", "kv_head"]).sort_index()
    measured = table.select_dtypes("float").drop(columns=list(NO_RESULTS)).filter(regex="^(?!bound_)")
    groups = table.groupby(["label", "method", "budget_tokens"]).indices
    numbers = {key: measured.iloc[places].to_numpy() for key, places in groups.items()}
    keys = list(numbers)
    equal = {
        frozenset((a[1], b[1]))
        for i, a in enumerate(keys)
        for b in keys[:i]
        if a[2] == b[2] and np.array_equal(numbers[a], numbers[b], equal_nan=True)
    }
    assert equal == {frozenset(("snapkv", "pyramidkv"))}


def test_the_program_and_python_have_equal_notes_and_stderr_shows_them(votes, folder):
    out, said = folder
    assert said.returncode == 0
    notes = notes_of(json.loads((out / "results.meta.json").read_text()))
    assert notes == votes.notes
    assert [line for line in said.stderr.splitlines() if "warning" in line] == [
        f"kvreplay: warning: {note.text}" for note in notes
    ]
    assert re.search(r"^snapkv variant=kvpress +64 .* protected tokens fill the budget$", said.stdout, re.M)


def test_a_resumed_run_repeats_its_notes(folder):
    out, said = folder
    before = json.loads((out / "results.meta.json").read_text())["notes"]
    words = ["run", SAMPLE, "--layers", "0,15", "--budget", "64,128", "-o", out, "--progress", "none"]
    again = program(*words, "-s", f"methods={json.dumps(VOTES)}")
    assert "48 cells, 48 done before" in again.stderr
    assert json.loads((out / "results.meta.json").read_text())["notes"] == before
    assert [x for x in again.stderr.splitlines() if "warning" in x] == [
        x for x in said.stderr.splitlines() if "warning" in x
    ]


def test_a_merged_sweep_has_the_notes_of_a_run(folder, tmp_path):
    words = ["sweep", "plan", SAMPLE, "--layers", "0,15", "--budget", "64,128", "-o", tmp_path / "s"]
    assert program(*words, "-s", f"methods={json.dumps(VOTES)}").returncode == 0
    assert program("sweep", "work", tmp_path / "s", "--progress", "none").returncode == 0
    merged = program("sweep", "merge", tmp_path / "s")
    assert "pyramidkv equals snapkv in all 6 heads" in merged.stderr
    metas = [json.loads((out / "results.meta.json").read_text()) for out in (folder[0], tmp_path / "s")]
    assert metas[0]["notes"] == metas[1]["notes"] != []


def test_streaming_llm_without_sinks_is_the_window():
    methods = ["window", {"name": "streaming_llm", "sinks": [0, 4], "positions": "original"}]
    run = kvreplay.replay(SAMPLE, layers=[7], methods=methods, budgets=[64])
    (note,) = run.notes
    assert [one.label for one in note.instances] == ["window", "streaming_llm positions=original sinks=0"]


def test_budgets_that_hold_everything_are_one_note_for_all_methods():
    run = kvreplay.replay(SAMPLE, layers=[0], methods=["window", "h2o", "snapkv"], budgets=[64, 640, 704])
    assert kinds(run) == ["budget_holds_all", "budget_holds_prompt"]
    assert [one.method for one in run.notes[0].instances] == ["window", "h2o", "snapkv"]
    assert run.notes[0].budgets == (704,)
    assert [one.method for one in run.notes[1].instances] == ["snapkv"]
    assert run.notes[1].budgets == (640,)


def made(heads=3, tokens=96, width=8):
    random = np.random.default_rng(3)
    return tuple(random.normal(size=(heads, tokens, width)).astype(np.float32) for _ in range(3))


def test_a_repeated_head_is_found_in_any_run():
    q, k, v = made()
    for x in (q, k, v):
        x[2] = x[0]
    methods = ["h2o", "uniform", {"name": "snapkv", "window": 8, "allocator": "ada"}]
    run = kvreplay.replay(q, k, v, prefill=64, methods=methods, budgets=[16])
    (note,) = run.notes
    assert (note.kind, note.heads) == ("heads_repeat", 2)
    assert "kv head 0 = prompt" in note.text
    for x in (q, k, v):
        x[1] = x[0]
    (note,) = kvreplay.replay(q, k, v, prefill=64, methods=["h2o"], budgets=[16]).notes
    assert note.text.startswith("all 3 kv heads of the table give the same numbers")


def test_values_that_are_zero_or_all_the_same_are_found():
    q, k, v = made()
    v[0] = 0
    v[1] = v[1, :1]
    run = kvreplay.replay(q, k, v, prefill=64, methods=["h2o", "window"], budgets=[16])
    assert kinds(run) == ["outputs_zero", "outputs_constant"]
    assert ["kv head 0" in run.notes[0].text, "kv head 1" in run.notes[1].text] == [True, True]


def test_a_single_head_is_noted_and_ordinary_heads_are_not():
    assert kinds(kvreplay.replay(*made(1), prefill=64, methods=["h2o", "tova"], budgets=[16])) == [
        "single_head"
    ]
    assert kinds(kvreplay.replay(*made(3), prefill=64, methods=["h2o", "tova"], budgets=[16])) == []


def test_the_first_configuration_only_notes_what_its_methods_cannot_do(tmp_path):
    words = ["run", ROOT / "configs" / "quickstart.yaml", "--layers", "0,29", "-s", "seeds.count=2"]
    said = program(*words, "-o", tmp_path / "o", "--progress", "none")
    warnings = re.findall(r"warning: (.*)", said.stderr)
    assert [text for text in warnings if "not reachable" not in text or not text.endswith(": buzz")] == [
        text for text in warnings if text.startswith("pyramidkv equals snapkv")
    ]
    notes = json.loads((tmp_path / "o" / "results.meta.json").read_text())["notes"]
    assert {note["kind"] for note in notes} <= {"instances_equal"}


def test_a_saved_run_keeps_its_notes_and_older_folders_have_no_notes(votes, tmp_path):
    votes.save(tmp_path)
    frame = load(tmp_path)
    assert notes_of(frame.attrs["meta"]) == votes.notes
    saved, own = summarise(frame), votes.summary()
    assert list(saved["notes"]) == list(own["notes"])
    (tmp_path / "results.meta.json").write_text(json.dumps({"version": "0.1"}))
    assert not any("equals" in note for note in summarise(load(tmp_path))["notes"])


def test_the_pages_box_folds_notes_beyond_five_and_is_absent_without_notes(tmp_path):
    note = {"kind": "single_head", "instances": [], "budgets": [], "traces": [], "cells": 1, "heads": 1}
    texts = [f"note {i} < {i + 1}" for i in range(7)]
    meta = {"notes": [note | {"text": text} for text in texts]}
    box = notes_section(load(write_results(tmp_path / "a", [fake_row()], meta)))
    above, _, folded = box.partition("<details>")
    assert [f"note {i} &lt; {i + 1}" in above for i in range(7)] == [True] * 5 + [False] * 2
    assert [f"note {i} &lt; {i + 1}" in folded for i in range(7)] == [False] * 5 + [True] * 2
    assert "2 more notes" in folded
    assert notes_section(load(write_results(tmp_path / "b", [fake_row()], {"notes": []}))) == ""


def test_many_notes_are_counted_beyond_five(tmp_path):
    """The run has one note for each of six budgets, and one about the single head."""
    methods = [{"name": "snapkv", "window": 16, "sinks": sinks} for sinks in range(16, 22)]
    budgets = [16 + sinks for sinks in range(16, 22)]
    words = ["run", SAMPLE, "--layers", "0", "--kv-heads", "0", "-o", tmp_path / "o", "--progress", "none"]
    said = program(*words, "-s", f"methods={json.dumps(methods)}", "-s", f"budget.tokens={budgets}")
    told = [line for line in said.stderr.splitlines() if "warning" in line]
    notes = notes_of(json.loads((tmp_path / "o" / "results.meta.json").read_text()))
    assert len(notes) > 5
    assert told[:5] == [f"kvreplay: warning: {note.text}" for note in notes[:5]]
    assert told[5:] == [
        f"kvreplay: warning: and {len(notes) - 5} more notes, see `notes` in results.meta.json"
    ]


@pytest.mark.parametrize(("prefill", "warned"), [(64, False), (48, True)])
def test_a_run_notes_that_its_prompt_ends_before_the_recorded_gradient(tmp_path, prefill, warned):
    trace = add_gradient(synth(tmp_path / "t.h5", "--tokens", 96, "--prompt", 64), 0)
    options = ["--method", "window", "--budget", 16, "--prefill", prefill]
    said = program("run", trace, *options, "-o", tmp_path / "out").stderr
    assert ("kl_head_mean stays empty: its gradient has no row of token 48" in said) == warned
    assert load(tmp_path / "out")["kl_head_mean"].isna().all() == warned


def test_a_note_names_row_formats_as_labels_do():
    int4, parts = {"group": 64, "name": "int4"}, {"key": {"group": 64, "name": "int4"}, "value": "source"}
    texts = [f"exact row_format={json.dumps(each, separators=(',', ':'))}" for each in (int4, parts)]
    instances = [
        {"method": "exact", "given": {"row_format": own}, "label": text, "brief": f"equals {other}"}
        for own, text, other in zip((int4, parts), texts, reversed(texts), strict=True)
    ]
    said = {"kind": "instances_equal", "budgets": [], "traces": [], "cells": 2, "heads": 1}
    (note,) = notes_of({"notes": [said | {"instances": instances, "text": " equals ".join(texts)}]})
    assert note.text == "exact int4 equals exact K int4 + V source"
    assert [one.label for one in note.instances] == ["exact int4", "exact K int4 + V source"]
    assert note.instances[0].brief == "equals exact K int4 + V source"
