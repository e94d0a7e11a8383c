"""`kvreplay compare` answers for a trace, a configuration or a folder of results with one command."""

import csv

import pytest
from kvreplay_cli import ROOT, kvreplay

SAMPLE = ROOT / "traces/samples/smollm2-135m.h5"
CONFIG = f"""schema: 1
traces: [{SAMPLE}]
methods: [h2o, tova]
budget: {{tokens: [300]}}
select: {{kv_heads: [0]}}
"""


def compare(*words, cwd=None):
    return kvreplay("compare", *words, cwd=cwd)


def rows_of(folder):
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """The sample trace with two methods and two shares: (folder, finished process)."""
    out = tmp_path_factory.mktemp("compare")
    done = compare(SAMPLE, "--at", "10%,20%", "--method", "h2o,tova", "-o", out)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_a_trace_is_replayed_at_the_shares_and_answered(asked):
    out, said = asked
    assert {row["budget_share"] for row in rows_of(out)} == {"0.1", "0.2"}
    assert all(int(row["prompt_bytes"]) <= 0.2 * int(row["prompt_full_bytes"]) for row in rows_of(out))
    assert [line.split(" of the")[0] for line in said.splitlines() if line.startswith("At ")] == [
        "At 10 %",
        "At 20 %",
    ]
    assert "between budget" not in said  # requested shares are replayed, not interpolated


def test_stdout_holds_only_the_answer(asked):
    assert asked[1].splitlines()[0].startswith("At 10 % of the prompt’s full cache (bytes after the cut), ")
    assert "kept_mass_mean" not in asked[1]


def test_a_folder_of_results_is_answered_without_replaying(asked):
    out, said = asked
    before = (out / "results.csv").stat().st_mtime_ns
    done = compare(out, "--at", "0.1,0.2")
    assert done.stdout == said
    assert (out / "results.csv").stat().st_mtime_ns == before
    late = compare(out, "--at", "20%", "--layers", "15-29", "--measure", "cosine", "--phase", "stream")
    assert "cosine distance" in late.stdout
    assert "Layers 15, 18, 21, 23, 26, 29." in late.stdout


def test_a_configuration_is_replayed_at_the_shares_instead_of_its_budgets(tmp_path):
    (tmp_path / "c.yaml").write_text(CONFIG)
    done = compare("c.yaml", "--at", "20%", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {row["budget_share"] for row in rows_of(tmp_path / "out/compare-c")} == {"0.2"}
    assert "over 10 kv heads of 10 layers" in done.stdout


def test_a_trace_is_compared_with_default_methods(tmp_path):
    done = compare(SAMPLE, "--at", "20%", "--seeds", "1", "-o", tmp_path / "o")
    assert "snapkv" in done.stdout
    assert "needs 21.6 % of the prompt’s full cache" in done.stdout
    assert {"h2o", "tova", "streaming_llm"} <= {row["method"] for row in rows_of(tmp_path / "o")}


def test_by_prompt_bytes_one_shot_methods_compete_at_a_tenth(tmp_path):
    words = (SAMPLE, "--at", "10%", "--method", "h2o,snapkv")
    done = compare(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "not reachable" not in done.stderr
    assert done.stdout.startswith("At 10 % of the prompt’s full cache (bytes after the cut), ")
    rows = rows_of(tmp_path / "out/compare-smollm2-135m")
    assert {row["method"] for row in rows} == {"h2o", "snapkv"}
    assert all(0.098 < int(row["prompt_bytes"]) / int(row["prompt_full_bytes"]) <= 0.1 for row in rows)
    assert len([line for line in done.stdout.splitlines() if line.startswith(("h2o ", "snapkv "))]) == 2
    assert "at the peak" not in done.stdout
    mean = compare(tmp_path / "out/compare-smollm2-135m", "--at", "10%", "--of", "mean")
    assert mean.stdout.startswith("At 10 % of the full cache’s bytes on average over the steps, ")


def test_the_prompt_may_be_a_share_of_the_tokens(tmp_path):
    words = (SAMPLE, "--at", "50%", "--of", "prompt", "--method", "window", "-o", tmp_path / "o")
    done = compare(*words, "--prefill", "25%")
    assert done.returncode == 0, done.stderr
    assert {row["n_prefill"] for row in rows_of(tmp_path / "o")} == {"176"}  # a quarter of 704 tokens
    wrong = compare(SAMPLE, "--at", "50%", "--method", "window", "--prefill", "x%", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "--prefill x%: is no share of the tokens. Write for example --prefill 75%" in wrong.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((".", "--at", "20%"), 3, "holds no results.csv"),
        (("missing.h5", "--at", "20%"), 3, "missing.h5"),
        ((SAMPLE, "--at", "20"), 2, "Write --at 20%"),
        ((SAMPLE, "--at", "x%"), 2, "write a share"),
        ((SAMPLE, "--at", "120%"), 2, "write a share"),
        ((SAMPLE,), 2, "--at"),
        ((SAMPLE, "--at", "20%", "--of", "end"), 2, "--of"),
    ],
)
def test_an_impossible_comparison_is_refused_with_the_remedy(tmp_path, words, code, says):
    done = compare(*words, cwd=tmp_path)
    assert done.returncode == code
    assert says in done.stderr
    assert not (tmp_path / "out").exists()


def test_what_is_asked_is_what_is_replayed(tmp_path):
    """Layers and bytes reach the replay; a wrong layer is refused before it starts."""
    done = compare(
        SAMPLE, "--at", "20%", "--method", "h2o,tova", "--layers", "every:15", "--of", "peak", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "out/compare-smollm2-135m-peak")
    assert {row["layer"] for row in rows} == {"0", "15"}
    assert all(int(row["total_bytes"]) <= 0.2 * int(row["full_bytes"]) for row in rows)
    refused = compare(SAMPLE, "--at", "20%", "--layers", "99", cwd=tmp_path)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "has no layer 99" in refused.stderr


def test_an_unknown_method_is_one_line(tmp_path):
    """The hint at installed packages is the bare program's: this command has looked for them."""
    refused = compare(SAMPLE, "--at", "20%", "--method", "votes", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr == 'kvreplay: error: unknown method "votes": see kvreplay list methods\n'


def test_a_method_that_was_not_replayed_is_refused_with_the_nearest(asked):
    out, _ = asked
    for name, meant in (("tovaa", " (did you mean tova?)"), ("H2O", " (did you mean h2o?)"), ("snapkv", "")):
        refused = compare(out, "--at", "20%", "--methods", f"h2o,{name}")
        assert refused.returncode == 2
        assert refused.stderr == (
            f"kvreplay: error: --methods {name}: was not replayed{meant}; the results have h2o, tova\n"
        )
