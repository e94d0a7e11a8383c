"""kvreplay.record turns texts into a Trace with a loaded model; a temporary one is deleted with its last
reference."""

import gc
import tempfile
from pathlib import Path

import h5py
import kvreplay
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from tiny_model_folder import TEXT, saved
from tiny_models import ARCHITECTURES
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.torch

IDS = [[(5 * i * i + i) % 60 + 3 for i in range(32)], [(7 * i * i + 3) % 60 + 3 for i in range(24)]]


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(scope="module")
def model():
    return ARCHITECTURES["llama"].build().eval()


def test_a_recorded_trace_is_replayed_at_once(model, temporary):
    trace = kvreplay.record(model, IDS, layers=[1], dtype="f32", name="mine")
    assert (trace.prompts, trace.layers(), trace.model) == (["0", "1"], [1], "mine")
    assert trace.prompt("0").token_ids.tolist() == IDS[0]
    assert trace.layer(1).q.dtype == np.float32
    run = kvreplay.replay(trace, prefill=16, methods=["h2o"], budgets=[8])
    assert len(run) == 2 * trace.layer(1).n_kv_heads
    assert not len(run.failed)


def test_texts_are_read_by_the_tokenizer(temporary, tmp_path):
    folder = saved(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(folder)
    told = kvreplay.record(model, TEXT, tokenizer=AutoTokenizer.from_pretrained(folder), with_text=True)
    found = kvreplay.record(model, TEXT, with_text=True)
    assert told.prompt().token_text == found.prompt().token_text
    assert "".join(told.prompt().token_text).replace(" ", "") == TEXT.replace(" ", "")


def test_a_gradient_is_recorded_on_request(model, temporary):
    trace = kvreplay.record(model, IDS, layers=[1], gradient=2)
    with h5py.File(trace.path) as file:
        assert file["prompts/0/layers/001/g"].shape == (2, 8, 15, 4)
    assert len(kvreplay.replay(trace, prefill=16, methods=["h2o"], budgets=[8])) == 2


def test_generated_tokens_follow_the_prompt(model, temporary):
    trace = kvreplay.record(model, [IDS[0]], generate=5, max_tokens=20)
    assert trace.prompt().n_prompt == 20
    assert trace.prompt().n_tokens == 24


def test_a_temporary_trace_exists_while_it_is_referenced(model, temporary):
    trace = kvreplay.record(model, IDS)
    path, layer = trace.path, trace.layer(0)
    assert path.is_relative_to(temporary)
    run = kvreplay.replay(trace, prefill=16, methods=["h2o"], budgets=[8])
    del trace
    gc.collect()
    assert layer.q.shape[1] == 32
    del layer
    gc.collect()
    assert len(run.kept("h2o", 8)) == 17  # replayed from the file
    del run
    gc.collect()
    assert not list(temporary.iterdir())


def test_a_named_trace_stays(model, temporary, tmp_path):
    trace = kvreplay.record(model, IDS, str(tmp_path / "mine.h5"))
    assert trace.path == tmp_path / "mine.h5"
    del trace
    gc.collect()
    assert (tmp_path / "mine.h5").is_file()
    assert not list(temporary.iterdir())
    with pytest.raises(kvreplay.ConfigError, match=r"mine\.h5 exists: pass overwrite=True"):
        kvreplay.record(model, IDS, tmp_path / "mine.h5")
    assert kvreplay.record(model, [IDS[0]], tmp_path / "mine.h5", overwrite=True).prompts == ["0"]


def test_a_failed_recording_leaves_no_file(model, temporary):
    for wrong in ({"layers": "every:0"}, {"layers": [99]}, {"dtype": "f8"}, {"generate": -1}):
        with pytest.raises(kvreplay.ConfigError) as refused:
            kvreplay.record(model, IDS, **wrong)
        assert "\n" not in str(refused.value)
    with pytest.raises(kvreplay.ConfigError, match="tokenizer"):
        kvreplay.record(model, "a text")
    with pytest.raises(kvreplay.ConfigError, match="model is a Linear"):
        kvreplay.record(torch.nn.Linear(2, 2), IDS)
    assert not list(temporary.iterdir())


SCRIPT = """
import os, sys, tempfile
import kvreplay
from tiny_models import ARCHITECTURES
tempfile.tempdir = sys.argv[1]
trace = kvreplay.record(ARCHITECTURES["llama"].build().eval(), [[5, 9, 12, 33]])
child = os.fork()
if child == 0:
    sys.exit(0 if trace.layer(0).k.shape[1] == 4 else 1)
assert os.waitpid(child, 0)[1] == 0
assert trace.path.is_file()
print(trace.path)
"""


def test_a_temporary_trace_ends_with_its_process_and_not_with_one_that_was_forked(dumpers, tmp_path):
    with dumpers.run(tmp_path, SCRIPT, tmp_path) as process:
        said = process.printed.read()
    assert process.returncode == 0, said
    assert Path(said.strip()).is_relative_to(tmp_path)
    assert not list(tmp_path.glob("kvreplay-*"))
