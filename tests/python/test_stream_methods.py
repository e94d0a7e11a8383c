"""Streaming methods on the command line: budgets as outputs or defaults, text classes, log n."""

import h5py
import pandas as pd
import pytest
from kvreplay_cli import BINARY, kvreplay
from reference.heads import SHAPES, write_trace

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")


@pytest.fixture
def trace(tmp_path):
    write_trace(tmp_path / "t.h5", SHAPES["single"])
    return tmp_path / "t.h5"


def run(trace, *arguments):
    out = trace.parent / "out"
    done = kvreplay("run", trace, "-o", out, "--force", "--progress", "none", *arguments)
    assert done.returncode == 0, done.stderr
    return pd.read_csv(out / "results.csv")


def test_keyformer_has_a_default_budget(trace):
    rows = run(trace, "--method", "keyformer", "--prefill", "157", "--seeds", "1")
    assert list(rows.budget_tokens) == [int(0.6 * 157)]


def test_fastgen_takes_no_budget_and_reports_its_policy(trace):
    rows = run(trace, "--method", "fastgen", "--prefill", "157", "--set", "methods.0.recovery=0.5")
    assert rows.budget_tokens.isna().all()
    assert '"candidate"' in rows.extras[0] and '"recovered_mass"' in rows.extras[0]


def test_fastgen_names_the_recording_option_for_missing_text(trace):
    with h5py.File(trace, "r+") as f:
        del f["prompts/a/token_class"]
    done = kvreplay("run", trace, "--method", "fastgen", "--prefill", "157", "-o", trace.parent / "out")
    assert done.returncode == 2
    assert "fastgen needs the text of tokens, which" in done.stderr
    assert "`kvreplay record --with-text`" in done.stderr


def test_a_class_that_does_not_exist_is_refused(trace):
    with h5py.File(trace, "r+") as f:
        f["prompts/a/token_class"][7] = 3
    done = kvreplay("run", trace, "--method", "fastgen", "--prefill", "157", "-o", trace.parent / "out")
    assert done.returncode == 3
    assert "token_class: holds 3 at 7, it must be from 0 to 2" in done.stderr


def test_buzz_refuses_short_strides_with_the_reason(trace):
    done = kvreplay(
        *("run", trace, "--method", "buzz", "--budget", "40", "--prefill", "157", "-o", trace.parent / "out"),
        *("--set", "methods.0.stride=2"),
    )
    assert done.returncode == 2
    assert "stride" in done.stderr
