"""`kvreplay bench`: its output, but not its speeds."""

import csv
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from kvreplay_cli import BINARY, ROOT, kvreplay

SAMPLE = ROOT / "traces/samples/smollm2-135m.h5"
TWO = ("--tokens", 512, "--method", "h2o,uniform")
SMALL = (*TWO, "--rounds", 1)
COLUMNS = ["kind", "name", "value", "unit", "min_s", "median_s", "clock", "of", "to", "minus"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """(printed output, rows of the CSV) of one small bench."""
    file = tmp_path_factory.mktemp("bench") / "bench.csv"
    done = kvreplay("bench", *SMALL, "--csv", file, "--json")
    assert done.returncode == 0, done.stderr
    with file.open(newline="") as opened:
        reader = csv.DictReader(opened)
        assert reader.fieldnames == COLUMNS
        return done, list(reader)


def rates(rows):
    return {row["name"]: row for row in rows if row["kind"] == "rate"}


def test_the_table_has_limits_kernels_passes_and_methods(measured):
    names = rates(measured[1])
    for name in (
        "FMA units",
        "scalar expf",
        "kernel scores",
        "kernel values",
        "kernel exponentials",
        "exact pass",
        "prompt statistics",
        "h2o, 2 budgets",
        "h2o, 128 alone",
        "uniform, 2 budgets",
        "everything",
        "h2o, 2048 tokens, sampled queries",
    ):
        assert name in names
    assert not any(name.startswith("uniform") and "sampled" in name for name in names)  # it cuts once
    assert all(float(row["value"]) > 0 and float(row["min_s"]) > 0 for row in names.values())
    assert all(float(row["min_s"]) <= float(row["median_s"]) for row in names.values())


def test_a_ratio_is_the_quotient_of_the_rows_that_it_names(measured):
    of_rates = {"GF/s", "Gexp/s", "Glogit/s"}
    table, found = rates(measured[1]), 0
    for ratio in (row for row in measured[1] if row["kind"] == "ratio"):
        of, to = table[ratio["of"]], table[ratio["to"]]
        if {of["unit"], to["unit"]} <= of_rates:
            expected = float(of["value"]) / float(to["value"])
        else:
            shared = float(table[ratio["minus"]]["min_s"]) if ratio["minus"] else 0.0
            expected = (float(of["min_s"]) - shared) / (float(to["min_s"]) - shared)
        assert float(ratio["value"]) == pytest.approx(expected, rel=1e-9), ratio["name"]
        found += 1
    assert found >= 9


def test_json_agrees_with_the_csv_and_names_the_machine(measured):
    said, rows = json.loads(measured[0].stdout), measured[1]
    assert {r["name"]: r["value"] for r in said["rates"]} == {
        name: float(row["value"]) for name, row in rates(rows).items()
    }
    shape = {"tokens": 512, "prefill": 256, "query_heads": 3, "head_dim": 64, "v_head_dim": 64, "layer": 0}
    assert {key: said[key] for key in shape} == shape
    assert said["isa"] and said["rounds"] == 1 and said["threads"] == 1 and said["trace"] == "synthetic"
    assert said["load_before"] >= 0 and said["load_after"] >= 0


def test_progress_is_on_stderr_and_the_table_on_stdout():
    done = kvreplay("bench", *TWO, "--rounds", 2)
    assert done.returncode == 0, done.stderr
    assert "round 2 of 2" in done.stderr
    for word in ("instruction set", "load average", "clock", "everything / exact pass", "2 rounds"):
        assert word in done.stdout


def test_a_trace_is_measured_at_the_layer_that_is_named():
    words = ("--method", "window", "--rounds", 1, "--json", "--tokens", 640, "-j", 2)
    done = kvreplay("bench", "--trace", SAMPLE, "--layer", 7, *words)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["layer"], said["tokens"], said["threads"]) == (7, 640, 2)


def test_a_device_is_compared_with_one_core():
    words = ("--tokens", 512, "--method", "uniform", "--rounds", 1, "--device", "emulated", "--json")
    done = kvreplay("bench", *words)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    rates = {rate["name"]: rate for rate in said["rates"]}
    for name in ("exact pass", "uniform, 2 budgets", "everything"):
        core, device = rates[name], rates[f"{name}, emulated"]
        assert (core["clock"], device["clock"], core["unit"]) == ("cpu", "wall", device["unit"])
    ratios = {ratio["name"]: ratio["value"] for ratio in said["ratios"]}
    core, device = rates["everything"], rates["everything, emulated"]
    assert ratios["everything: one core / emulated"] == pytest.approx(core["min_s"] / device["min_s"])
    exact = rates["exact pass, emulated"]["value"] / rates["exact pass"]["value"]
    assert ratios["exact pass: one core / emulated"] == pytest.approx(exact)
    assert "FMA units" not in rates  # the machine's limits are not measured here
    assert said["device"] == "emulated"


@pytest.mark.parametrize(
    "words, code, told",
    [
        (("--tokens", 100), 2, "at least 512"),
        (("--rounds", 0), 2, "--rounds"),
        (("--trace", "nowhere.h5"), 3, "nowhere.h5: no such file"),
        (("--trace", SAMPLE, "--layer", 9), 2, "7"),
        (("--trace", SAMPLE, "--tokens", 2000), 2, "704"),
        (("--method", "h20"), 2, "did you mean h2o?"),
        (("--blas", "nowhere.so"), 2, "--blas nowhere.so"),
        (("--csv", "no/such/folder.csv", "--tokens", 512), 2, "--csv no/such/folder.csv"),
        (("--token", 100), 2, "did you mean"),
        (("--device", "cuda:99", *SMALL), 4, "no device cuda:99 here"),
    ],
)
def test_a_mistake_is_reported_before_anything_is_measured(words, code, told):
    done = kvreplay("bench", *words)
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert "round 1" not in done.stderr
    assert done.stdout == ""


def test_numpys_openblas_product_is_compared_with_the_exact_pass():
    numpy = pytest.importorskip("numpy")
    found = sorted(Path(numpy.__file__).parents[1].glob("numpy.libs/*openblas*"))
    if not found:
        pytest.skip("numpy has no OpenBLAS here")
    done = kvreplay("bench", *SMALL, "--json", "--blas", found[0])
    assert done.returncode == 0, done.stderr
    names = {ratio["name"] for ratio in json.loads(done.stdout)["ratios"]}
    assert {"exact pass / sgemm", "sgemm / FMA units"} <= names


OPTIONS = "trace layer kv-head tokens method rounds jobs device quick blas csv json help"


def test_help_lists_the_allowed_values():
    done = kvreplay("bench", "--help")
    assert done.returncode == 0 and "Usage: kvreplay bench" in done.stdout
    assert set(re.findall(r"^  (?:-\w,)?--([a-z-]+)", done.stdout, re.M)) == set(OPTIONS.split())


@pytest.mark.parametrize("words", [("-q", "bench"), ("bench", "-q")])
def test_general_options_work_before_and_after_the_verb(words, tmp_path):
    log = tmp_path / "log"
    done = kvreplay(*words, *SMALL, "--log", log, "--json")
    assert done.returncode == 0, done.stderr
    assert "round" not in done.stderr and json.loads(done.stdout)["rounds"] == 1
    assert "round 1 of 1" in log.read_text()


def test_without_the_bench_program_the_message_gives_the_build_command(tmp_path):
    lonely = shutil.copy(BINARY, tmp_path / "kvreplay")

    def call(*words):
        return subprocess.run([lonely, *words], capture_output=True, text=True, check=False)

    build = "cmake --preset test && cmake --build build/release --target kvreplay_bench"
    for words in (
        ("bench",),
        ("bench", "--quick", "--json"),
        ("-q", "bench", "--version"),
        ("bench", "list"),
    ):
        done = call(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{tmp_path}/kvreplay_bench" in done.stderr and build in done.stderr
    done = call("bench", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: kvreplay bench" in done.stdout and build in done.stdout


def test_a_mistake_does_not_change_an_older_table(tmp_path):
    old = tmp_path / "old.csv"
    old.write_text("kept\n")
    assert kvreplay("bench", "--trace", SAMPLE, "--layer", 9, "--csv", old).returncode == 2
    assert old.read_text() == "kept\n"
