"""kvreplay.predict on a trace with a gradient returns the table of `kvreplay predict`."""

import h5py
import kvreplay as kv
import numpy as np
import pytest
from kvreplay_cli import kvreplay, synth
from test_measures_independent import add_gradient


def test_predict_gives_nats_for_each_method_of_a_folder(tmp_path):
    trace, out = add_gradient(synth(tmp_path / "t.h5", "--tokens", 96, "--prompt", 64), 0), tmp_path / "out"
    with h5py.File(trace, "r+") as file:
        layer = next(iter(file["prompts"].values()))["layers/000"]
        layer["g_recorded"] = 2 * layer["g"][0]
    run = ["run", trace, "--method", "window,streaming_llm", "--budget", "16,32", "-o", out]
    assert kvreplay(*run, "--save", "projections").returncode == 0
    table = kv.predict(out)
    assert len(table) == 4
    assert (table["kl_row"] > 0).all() and np.isfinite(table["kl"]).all()
    assert (table["kl"] == table["kl_block"]).all()  # the trace holds no masked runs
    with h5py.File(out / "projections.h5") as file:
        for cell in file.values():
            assert np.allclose(cell["a_recorded"], 2 * cell["a"][..., 0], atol=1e-6)
    assert table["loss_first_order"].notna().all() and (table["loss_first_order"] != 0).all()


def test_predict_reports_missing_files_of_a_folder(tmp_path):
    with pytest.raises(kv.KvreplayError, match="no such file"):
        kv.predict(tmp_path)
