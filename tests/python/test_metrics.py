"""`metrics:` selects columns; measures requested by another key are computed as well."""

import json

from kvreplay_cli import replayed, synth

NEEDLES = ["-s", "replay.needles={at: [0, 0.5], tokens: 8}"]
SPANS = {"needle_mass_1", "needle_mass_2"}


def cell(row):
    """Identifies a cell without its key, which includes the metrics."""
    return row["method"], row["kv_head"]


def test_needles_are_measured_for_any_selection_of_columns(tmp_path):
    trace = synth(tmp_path / "t.h5", "--tokens", 96, "--prompt", 64, "--layers", 1)
    words = ["--method", "h2o,window,snapkv", "--budget", "16", *NEEDLES]
    everything = replayed(trace, tmp_path / "everything", *words)
    one = replayed(trace, tmp_path / "one", *words, "-s", "metrics=[rel_err_out_mean]")
    assert len(one) == len(everything) == 9
    found = {cell(row): row for row in one}
    for full in everything:
        row = found[cell(full)]
        assert row["rel_err_out_mean"] == full["rel_err_out_mean"]
        assert 0 <= float(row["needle_mass"]) <= 1
        assert row["needle_mass"] == full["needle_mass"]
        extras, every = json.loads(row["extras"]), json.loads(full["extras"])
        assert {name: extras[name] for name in SPANS} == {name: every[name] for name in SPANS}
    assert "index_recall" not in one[0] or one[0]["index_recall"] == ""
