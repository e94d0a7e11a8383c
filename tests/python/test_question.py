"""Windows other than the last prompt rows: a question marked in the trace, and future rows."""

import h5py
import pandas as pd
import pytest
import yaml
from engine_cases_tier2 import TRACES, write_trace
from kvreplay.trace import open as open_trace
from kvreplay_cli import BINARY, kvreplay

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")
P = TRACES["smooth"].P
QUESTION = 11  # tokens of the question


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "t.h5"
    write_trace(path, "smooth")
    return path


def ask(trace, token):
    with h5py.File(trace, "r+") as f:
        f["prompts/p0"].attrs["question_from"] = token


def run(trace, *methods, **replay):
    config = {
        "schema": 1,
        "traces": [trace.name],
        "replay": replay,
        "methods": list(methods),
        "budget": {"tokens": [41]},
        "output": {"dir": "out"},
    }
    (trace.parent / "run.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return kvreplay("run", trace.parent / "run.yaml", "--force", "--progress", "none")


def test_the_window_of_finch_is_the_question(trace):
    ask(trace, P - QUESTION)
    done = run(trace, {"name": "finch", "window": "question", "chunks": 2}, {"name": "finch", "chunks": 2})
    assert done.returncode == 0, done.stderr
    assert len(pd.read_csv(trace.parent / "out/results.csv").query("layer == 0 and kv_head == 0")) == 1


def test_an_unmarked_question_is_refused(trace):
    done = run(trace, {"name": "finch", "window": "question"})
    assert done.returncode != 0
    assert "question_from" in done.stderr
    assert "window as a number" in done.stderr


def test_a_question_after_the_replayed_prompt_does_not_count(trace):
    ask(trace, P - QUESTION)
    done = run(trace, {"name": "finch", "window": "question"}, prefill=P - QUESTION)
    assert "question_from" in done.stderr
    assert run(trace, {"name": "finch", "window": "question"}, prefill=P - QUESTION + 4).returncode == 0
    params = pd.read_csv(trace.parent / "out/results.csv").params
    assert {yaml.safe_load(p)["window"] for p in params} == {4}


def test_laq_needs_a_row_to_measure(trace):
    assert "at least 9" in run(trace, "laq", tokens=P + 8).stderr
    assert run(trace, "laq", tokens=P + 9).returncode == 0
    rows = pd.read_csv(trace.parent / "out/results.csv")
    assert set(rows.n_queries) == {1}


def test_python_reads_where_the_question_begins(trace):
    ask(trace, P - QUESTION)
    with open_trace(trace) as found:
        assert found.prompt("p0").question_from == P - QUESTION
