"""The command line: help, exit codes, output on stdout and stderr."""

import json
import re
import subprocess
from pathlib import Path

import kvreplay as kv
import numpy as np
import pytest
from kvreplay_cli import BINARY, ROOT, kvreplay, synth, table

COMMANDS = [
    "run",
    "inspect",
    "validate",
    "synth",
    "calibrate",
    "clusterability",
    "bounds",
    "budgets",
    "bench",
    "list",
    "describe",
    "report",
    "figures",
]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return synth(tmp_path_factory.mktemp("trace") / "small.h5", "--tokens", 160, "--prompt", 128)


def config(folder, text):
    path = folder / "c.yaml"
    path.write_text("schema: 1\n" + text)
    return path


def test_a_bare_call_prints_help_with_three_examples():
    result = kvreplay()
    assert result.returncode == 0
    assert result.stderr == ""
    examples = result.stdout.split("examples:")[1]
    assert len(re.findall(r"^  kvreplay ", examples, re.M)) == 3
    for command in COMMANDS[:-2]:  # the others are verbs of Python
        assert re.search(rf"^  {command} ", result.stdout, re.M)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_on_stdout(command):
    result = kvreplay(command, "--help")
    assert result.returncode == 0
    assert re.search("[Uu]sage: ", result.stdout)
    assert result.stderr == ""


def test_the_version_names_the_libraries():
    result = kvreplay("--version")
    assert result.returncode == 0
    assert re.match(r"kvreplay \d+\.\d+\.\d+ \(commit \S+, HDF5 1\.\d+\.\d+, compiler .+\)\n$", result.stdout)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rnu"], "did you mean run?"),
        (["run", "--progres", "none"], "did you mean --progress?"),
        (["run"], "run needs a configuration or a trace"),
        (["list", "method"], "methods"),
        (["describe", "h2oo"], 'unknown method "h2oo" (did you mean h2o?)'),
        (["run", "x.yaml", "--fail-fast", "--keep-going"], "excludes"),
        (["synth"], "--out is required"),
        (["validate"], "validate needs a file"),
    ],
)
def test_bad_usage_is_exit_2_with_a_message_on_stderr(words, message):
    result = kvreplay(*words)
    assert result.returncode == 2
    assert result.stdout == ""
    assert message in result.stderr


def test_missing_and_foreign_traces_are_exit_3(tmp_path):
    foreign = tmp_path / "foreign.h5"
    foreign.write_bytes(b"\x89HDF\r\n\x1a\n" + b"not HDF5 after all" * 40)
    for words in (
        ["inspect", foreign],
        ["inspect", tmp_path / "foreing.h5"],
        ["validate", foreign],
        ["run", foreign, "--method", "exact"],
        ["run", tmp_path / "no.h5", "--method", "exact"],
    ):
        result = kvreplay(*words, cwd=tmp_path)
        assert result.returncode == 3, words
        assert result.stdout == ""
        assert "h5" in result.stderr
    assert "did you mean foreign.h5?" in kvreplay("inspect", tmp_path / "foreing.h5").stderr


def test_an_unfinished_dump_is_reported(tmp_path, trace):
    (tmp_path / "d.h5.part").write_bytes(trace.read_bytes())
    result = kvreplay("run", tmp_path / "d.h5", "--method", "exact", cwd=tmp_path)
    assert result.returncode == 3
    assert "unfinished" in result.stderr
    assert "`kvreplay record`" in result.stderr


def test_a_missing_device_is_exit_4(tmp_path, trace):
    result = kvreplay("run", trace, "--method", "exact", "--device", "cuda:7", cwd=tmp_path)
    assert result.returncode == 4
    assert "there is no device cuda:7 here. Devices: cpu" in result.stderr
    path = config(tmp_path, f"traces: [{trace}]\nmethods: [exact]\nrun: {{device: cuda}}\n")
    result = kvreplay("run", path, cwd=tmp_path)
    assert result.returncode == 4
    assert result.stderr.startswith(f"{path}:4:15: error:")


def test_problems_of_a_configuration_and_its_traces_are_reported_together(tmp_path, trace):
    path = config(
        tmp_path, f"traces: [{trace}]\nselect: {{layers: [0, 9]}}\nmethods: [h2oo, exact]\nsede: 3\n"
    )
    result = kvreplay("run", path, cwd=tmp_path)
    assert result.returncode == 2
    lines = result.stderr.splitlines()
    assert [line.split(": error: ")[0] for line in lines] == [f"{path}:3:22", f"{path}:4:11", f"{path}:5:1"]
    assert lines[0].endswith("has no layer 9: take 0")
    assert 'unknown method "h2oo" (did you mean h2o?)' in lines[1]


def test_the_table_is_on_stdout_and_progress_on_stderr(tmp_path, trace):
    result = kvreplay(
        "run",
        trace,
        "--method",
        "exact,h2o",
        "--budget",
        "32,64",
        "-o",
        tmp_path / "o",
        "--progress",
        "plain",
    )
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[0].replace("% of ", "%_of_").split() == [
        "method",
        "budget",
        "cosine_distance_sq",
        "rel_err_out_mean",
        "kept_mass_mean",
        "peak_kept_tokens",
        "total_bytes",
        "%_of_prompt",
        "%_of_full",
        "ok",
        "failed",
    ]
    assert [line.split()[:2] for line in lines[1:]] == [["exact", "-"], ["h2o", "32"], ["h2o", "64"]]
    assert all(line.split()[-2:] == ["3", "0"] for line in lines[1:])
    assert re.search(r"^cells 9/9 · failed 0 · [\d.]+ cells/s · \d+s$", result.stderr, re.M)
    assert "\x1b" not in result.stdout + result.stderr


def test_progress_can_be_silent_or_json(tmp_path, trace):
    words = ["run", trace, "--method", "window", "--budget", "32", "-o", tmp_path / "o", "--force"]
    assert kvreplay(*words, "-q").stderr == ""
    assert "cells/s" not in kvreplay(*words, "--progress", "none").stderr
    events = [
        json.loads(x) for x in kvreplay(*words, "--progress", "json").stderr.splitlines() if x.startswith("{")
    ]
    assert events[-1]["event"] == "end"
    assert events[-1]["cells_done"] == events[-1]["cells_total"] == 3


def test_a_log_file_holds_all_messages(tmp_path, trace):
    log = tmp_path / "log.txt"
    kvreplay("run", trace, "--method", "exact", "-o", tmp_path / "o", "-q", "--log", log)
    assert "cells 3/3" in log.read_text()
    assert kvreplay("list", "methods", "--log", tmp_path / "no" / "x").returncode == 2


def test_colours_only_on_request():
    assert "\x1b[31merror: " in kvreplay("run", "--color", "always").stderr
    assert "\x1b" not in kvreplay("run", "--color", "auto").stderr


def test_a_format_that_quantised_nothing_is_reported(tmp_path, trace):
    text = (
        f"traces: [{trace}]\nmethods: [{{name: window, row_format: [kivi, int4]}}]\n"
        f"budget: {{tokens: [32]}}\n"
    )
    result = kvreplay("run", config(tmp_path, text), "-o", tmp_path / "o", "--progress", "none")
    assert result.returncode == 0
    assert re.search(
        r"^kvreplay: warning: window row_format=\{.*kivi.*\} at budget 32, in 3 cells: quantised nothing",
        result.stderr,
        re.M,
    )
    rows = table(tmp_path / "o")
    assert sorted(int(row["n_quantised"]) > 0 for row in rows) == [False] * 3 + [True] * 3


def test_a_dry_run_writes_nothing(tmp_path, trace):
    result = kvreplay(
        "run",
        trace,
        "--method",
        "exact,uniform",
        "--budget",
        "32",
        "--seeds",
        "2",
        "-o",
        tmp_path / "o",
        "-n",
    )
    assert result.returncode == 0
    assert re.search(r"^cells   9 \(0 done, 9 to replay\)$", result.stdout, re.M)
    assert re.search(r"^memory  about \d+ MiB$", result.stdout, re.M)
    assert re.search(r"^time    about ", result.stdout, re.M)
    assert not (tmp_path / "o").exists()


def test_the_command_line_equals_a_configuration(tmp_path, trace):
    path = config(
        tmp_path,
        f"traces: [{trace}]\nname: same\nmethods: [window, snapkv]\nbudget: {{tokens: [40]}}\n"
        "replay: {prefill: 100, tokens: 150}\nselect: {kv_heads: [1]}\n",
    )
    assert kvreplay("run", path, "-o", tmp_path / "a").returncode == 0
    result = kvreplay(
        "run",
        trace,
        "--method",
        "window,snapkv",
        "--budget",
        40,
        "--prefill",
        100,
        "--tokens",
        150,
        "--kv-heads",
        1,
        "-o",
        tmp_path / "b",
    )
    assert result.returncode == 0
    assert table(tmp_path / "a") == table(tmp_path / "b")


def test_without_an_output_directory_results_go_to_out_and_the_name(tmp_path, trace):
    path = config(tmp_path, f"traces: [{trace}]\nname: mine\nmethods: [exact]\n")
    assert kvreplay("run", path, cwd=tmp_path).returncode == 0
    assert (tmp_path / "out" / "mine" / "results.csv").exists()


def test_a_budget_on_the_command_line_is_tokens_or_a_share_of_the_cache(tmp_path, trace):
    kvreplay("run", trace, "--method", "window", "--budget", "25%,50%", "-o", tmp_path / "o")
    assert {row["budget_share"] for row in table(tmp_path / "o")} == {"0.25", "0.5"}
    fraction = kvreplay("run", trace, "--method", "window", "--budget", "0.5")
    assert fraction.returncode == 2
    assert "Write --budget 20%" in fraction.stderr
    assert "-s 'budget={fraction_kept: [0.5]}'" in fraction.stderr
    kvreplay("run", trace, "--method", "window", "--budget", "25%,64", "-o", tmp_path / "both")
    assert {row["budget_share"] for row in table(tmp_path / "both")} == {"0.25", ""}
    for word in ("half%", "5%%", "%"):
        wrong = kvreplay("run", trace, "--method", "window", "--budget", word)
        assert wrong.returncode == 2
        assert f"--budget {word}: is no share of the cache. Write for example --budget 20%" in wrong.stderr


def test_a_missing_budget_is_reported_in_terms_of_the_command_line(trace):
    done = kvreplay("run", trace, "--method", "window")
    assert done.returncode == 2
    told = "--budget is missing, and window takes one: add --budget 64,128"
    assert done.stderr == f"kvreplay: error: {told}\n"


def test_an_unwritable_output_directory_is_exit_2(tmp_path, trace):
    (tmp_path / "file").write_text("")
    result = kvreplay("run", trace, "--method", "exact", "-o", tmp_path / "file" / "x")
    assert result.returncode == 2
    assert "is not a directory" in result.stderr


def test_validate_checks_without_running(tmp_path, trace):
    path = config(tmp_path, f"traces: [{trace}]\nmethods: [exact]\noutput: {{dir: o}}\n")
    result = kvreplay("validate", path)
    assert (result.returncode, result.stdout) == (0, f"{path}: a sound configuration of 3 cells\n")
    assert not (tmp_path / "o").exists()
    assert kvreplay("validate", trace, "--deep").returncode == 0
    assert kvreplay("validate", path, "-s", "methods=[exat]").returncode == 2


def test_inspect_gives_json(trace):
    result = kvreplay("inspect", trace, "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout)
    assert "128" in kvreplay("inspect", trace).stdout


def test_list_names_methods_metrics_and_devices():
    methods = kvreplay("list", "methods").stdout
    for name in ["exact", "window", "streaming_llm", "h2o", "snapkv", "uniform", "subgen", "topk_oracle"]:
        assert re.search(rf"^{name} ", methods, re.M)
    assert re.search(r"^rel_err_out_mean ", kvreplay("list", "metrics").stdout, re.M)
    assert re.search(r"^cpu ", kvreplay("list", "devices").stdout, re.M)
    assert {m["name"] for m in json.loads(kvreplay("list", "methods", "--json").stdout)} >= {"exact", "h2o"}


def test_describe_shows_parameters_with_defaults_and_ranges():
    text = kvreplay("describe", "snapkv").stdout
    assert re.search(r"^window +32; kvpress 64, kvfactory 8 +at least 1 ", text, re.M)
    assert re.search(r"^pool +max; kvpress avg +max \| avg ", text, re.M)
    assert "SnapKV" in text
    assert re.search(r"^scorer +snapkv +tova \| snapkv \| ", kvreplay("describe", "adakv").stdout, re.M)


def test_report_names_missing_files(tmp_path):
    assert kvreplay("report", tmp_path).returncode == 3


def test_a_full_disk_behind_stdout_is_reported():
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [str(BINARY), "list", "methods"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert result.returncode == 2
    assert "stdout cannot be written" in result.stderr


def test_a_number_of_many_digits_has_an_exponent_in_the_table_and_a_size_its_digits(tmp_path):
    """All attention falls on a first token with tiny values, and the method evicts it."""
    q, k, v = np.zeros((1, 64, 8), "f4"), np.zeros((1, 64, 8), "f4"), np.ones((1, 64, 8), "f4")
    q[:, :, 0], k[:, 0, 0], v[:, 0] = 10, 10, 1e-8
    trace = kv.Trace.write(tmp_path / "t.h5", {3: (q, k, v)}, n_prompt=48).path
    done = kvreplay("run", trace, "--method", "window", "--budget", "16", "-o", tmp_path / "o")
    header, row = (line.split() for line in done.stdout.splitlines()[:2])
    shown = dict(zip(header, row, strict=False))
    assert re.fullmatch(r"\d(\.\d{1,3})?e\+\d\d", shown["rel_err_out_mean"]), row
    assert shown["total_bytes"].isdecimal()


@pytest.mark.parametrize(
    ("text", "layers"),
    [("every:10", {"0"}), ("15-23", {"15", "18", "21", "23"}), ("0,25-29", {"0", "26", "29"}), ("7", {"7"})],
)
def test_layers_of_a_trace_are_written_as_lists_ranges_and_steps(tmp_path, text, layers):
    sample = ROOT / "traces/samples/smollm2-135m.h5"
    done = kvreplay("run", sample, "--method", "window", "--budget", "64", "--layers", text, "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    assert {row["layer"] for row in table(tmp_path)} == layers


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0,20-99", "no layer 99"),
        ("4-6", "--layers 4-6: the trace has no such layer"),
        ("6-4", "--layers 6-4: write all, 7, 15-29, a list such as 0,7,15-29, or every:4"),
        ("every:0", "--layers every:0: write all"),
    ],
)
def test_layers_that_a_trace_lacks_are_refused(tmp_path, text, says):
    sample = ROOT / "traces/samples/smollm2-135m.h5"
    done = kvreplay("run", sample, "--method", "window", "--budget", "64", "--layers", text, "-o", tmp_path)
    assert (done.returncode, done.stderr.count("error: ")) == (2, 1)
    assert says in done.stderr
