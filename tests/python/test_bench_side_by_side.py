"""tests/bench/run with a fake peer: files, ratios, agreement, and missing parts."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kvreplay_cli import BINARY, ROOT, synth

sys.path.insert(0, str(ROOT / "tests/bench"))

from sidebyside import agreement, child, contest, engine, peer, profile, scaling
from sidebyside.errors import Lack

QUICK = ("--rounds", 1, "--sgemm", 0, "--skip-kernels", "--skip-alone")
SHAPE = ("--prefill", 256, "--last", 64, "--budgets", "64,128")
# Times that no engine run takes, so that swapped columns would be noticed.
PEER_SECONDS = {"exact": 1000.0, "h2o": 7000.0, "kcenter": 300.0, "total": 12000.0}
PEER = """
import json, pathlib, sys
given = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text())
given["words"] = sys.argv[1:]
print(json.dumps(given))
"""


def bench(*words, **environment):
    return subprocess.run(
        [str(ROOT / "tests/bench/run"), *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "KVREPLAY": str(BINARY), "KVREPLAY_PYTHON": sys.executable, **environment},
    )


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return synth(
        tmp_path_factory.mktemp("trace") / "t.h5", "--tokens", 512, "--prompt", 256, "--dtype", "bf16"
    )


@pytest.fixture(scope="module")
def truth(trace, tmp_path_factory):
    """The engine's errors in the peer's format: the output of a correct peer."""
    one = engine.Engine(BINARY, tmp_path_factory.mktemp("truth"))
    subject = engine.Subject(trace, *one.inspect(trace)[:1], (0,), 512, 256, 64, (64, 128))
    runs = contest.sweep(one, subject)
    ours = agreement.engine_errors(runs, contest.last_query_rows(one, subject))
    names, errors = {ours: theirs for theirs, ours in peer.NAMES.items()}, {}
    for (method, budget, protocol), error in ours.items():
        errors.setdefault(names[method], {}).setdefault(str(budget), {})[protocol] = error
    return errors


def fake_peer(folder, errors, seconds=PEER_SECONDS):
    (folder / "fake.py").write_text(PEER)
    said = {"cpu_seconds": seconds, "errors": errors, "torch": "0.0-fake"}
    (folder / "fake.json").write_text(json.dumps(said))
    return folder / "fake.py"


@pytest.fixture(scope="module")
def finished(trace, truth, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    words = ("--trace", trace, "--layer", 0, *SHAPE, "--rounds", 2, "--sgemm", 64, "--skip-kernels")
    return bench(*words, "--peer", fake_peer(out, truth), "--out", out), out


def test_a_bench_succeeds_and_lists_its_participants(finished):
    done, out = finished
    assert done.returncode == 0, done.stderr
    facts = json.loads((out / "facts.json").read_text())
    assert facts["torch"] == "0.0-fake" and facts["sgemm"]["size"] == 64 and facts["rounds"] == 2
    assert facts["load_min"] <= facts["load_max"]
    for word in ("start, reading and writing", "0.0-fake", "load average", "sgemm 64^3", "agree within"):
        assert word in done.stdout
    assert (out / "bench.md").read_text() == done.stdout


def test_every_round_measures_all_participants_in_turn(finished):
    rows = rows_of(finished[1] / "rounds.csv")
    assert list(rows[0]) == ["round", "isa", "contestant", "part", "cpu_s", "load"]
    order = [(r["round"], r["contestant"]) for r in rows if r["part"] in ("total", "64")]
    assert order == [(n, who) for n in "12" for who in ("engine", "peer", "sgemm")]
    parts = {r["part"] for r in rows if r["contestant"] == "engine"}
    methods = set(peer.NAMES.values())
    assert parts == {"total", "config decode", "config last"} | {
        f"{kind} {method}" for kind in ("alone", "caches") for method in methods
    }


def test_ratios_are_the_peers_seconds_over_the_engines(finished):
    rounds = rows_of(finished[1] / "rounds.csv")
    ratios = {row["what"]: row for row in rows_of(finished[1] / "ratios.csv")}

    def ours(part):
        return min(float(r["cpu_s"]) for r in rounds if (r["contestant"], r["part"]) == ("engine", part))

    expected = {
        "total": 12000,
        "alone h2o": 8000,
        "alone subgen": 1300,
        "caches h2o": 7000,
        "caches subgen": 300,
    }
    for part, seconds in expected.items():
        assert float(ratios[part]["ratio"]) == pytest.approx(seconds / ours(part), rel=1e-9), part
        assert float(ratios[part]["peer_min_s"]) == seconds
    assert ratios["alone uniform"]["ratio"] == ""  # the peer does not report it


def test_agreement_covers_both_methods_budgets_protocols_and_measures(finished):
    rows = rows_of(finished[1] / "agreement.csv")
    compared = [row for row in rows if row["compared"] == "True"]
    assert {row["method"] for row in compared} == {"h2o", "streaming_llm"}
    assert len(compared) == 2 * 2 * 2 * 2
    assert max(float(row["relative_difference"]) for row in rows) == 0
    assert {row["method"] for row in rows} == set(peer.NAMES.values())


def test_a_fast_wrong_answer_has_no_ratio(trace, truth, tmp_path):
    wrong = json.loads(json.dumps(truth))
    wrong["h2o"]["64"]["last"]["eps"] *= 1 + 3e-4
    words = ("--trace", trace, "--layer", 0, *SHAPE, *QUICK)
    done = bench(*words, "--peer", fake_peer(tmp_path, wrong), "--out", tmp_path)
    assert done.returncode == 1, done.stderr
    assert "do NOT agree" in done.stdout and "(h2o, budget 64, last, eps)" in done.stdout
    assert {row["ratio"] for row in rows_of(tmp_path / "ratios.csv")} == {""}


def test_an_error_that_is_missing_or_no_number_does_not_agree():
    ours = {
        (method, budget, protocol): {"rel": 0.5, "eps": 0.25}
        for method in agreement.SAME_RULES
        for budget in (64, 128)
        for protocol in ("decode", "last")
    }
    peers = {}
    for (method, budget, protocol), errors in ours.items():
        peers.setdefault(method, {}).setdefault(str(budget), {})[protocol] = dict(errors)
    assert agreement.verdict(agreement.compare(ours, peers), (64, 128))[0]
    peers["h2o"]["128"]["last"]["rel"] = float("nan")
    assert not agreement.verdict(agreement.compare(ours, peers), (64, 128))[0]
    del peers["h2o"]["128"]
    agrees, told = agreement.verdict(agreement.compare(ours, peers), (64, 128))
    assert not agrees and "only 12 of 16" in told


def test_without_a_peer_the_engine_is_measured_alone(tmp_path):
    done = bench(*SHAPE, "--tokens", 512, *QUICK, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "no --peer was given" in done.stderr and "there are no ratios" in done.stdout
    assert not (tmp_path / "agreement.csv").exists()
    total = next(row for row in rows_of(tmp_path / "ratios.csv") if row["what"] == "total")
    assert float(total["engine_min_s"]) > 0 and total["ratio"] == ""


@pytest.mark.parametrize(
    "words, told",
    [
        (("--peer", "nowhere.py"), "--peer nowhere.py: no such file"),
        (("--trace", "nowhere.h5"), "nowhere.h5: no such trace"),
        (("--trace", "TRACE", "--layer", 5), "--layer 5"),
        (("--trace", "TRACE", "--layer", 0, "--prefill", 512), "prefill = 512"),
        (("--trace", "TRACE", "--layer", 0, *SHAPE, "--isa", "nonsense", "--skip-alone"), "nonsense"),
        (("--rounds", 0), "--rounds 0"),
    ],
)
def test_missing_inputs_give_a_one_line_message(words, told, trace, tmp_path):
    done = bench(*(trace if word == "TRACE" else word for word in words), "--out", tmp_path)
    assert done.returncode == 2
    assert told in done.stderr and "Traceback" not in done.stderr


def test_a_missing_build_is_reported_with_the_command_that_makes_it(tmp_path):
    done = bench("--out", tmp_path, KVREPLAY=str(tmp_path / "kvreplay"))
    assert done.returncode == 2 and "cmake --preset test" in done.stderr


def test_a_missing_bench_program_is_reported_before_anything_is_measured(tmp_path):
    lonely = shutil.copy(BINARY, tmp_path / "kvreplay")
    done = bench("--quick", "--out", tmp_path / "out", KVREPLAY=str(lonely))
    assert done.returncode == 2 and "--target kvreplay_bench" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_quick_mode_has_all_tables_of_a_small_synthetic_trace(tmp_path):
    done = bench("--quick", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert (facts["tokens"], facts["rounds"], facts["budgets"]) == (1024, 1, [64, 128, 256])
    rates = {row["name"] for row in rows_of(tmp_path / "kernels.csv")}
    assert {"FMA units", "exact pass", "everything / exact pass"} <= rates


@pytest.mark.parametrize(
    "program, told",
    [
        ("import nothing_like_this", "nothing_like_this"),
        ("print('hello')", "no JSON object"),
        ('print(\'{"cpu_seconds": {"exact": 1}, "errors": {}}\')', "lacks total"),
        ("print('{\"errors\": {}}')", "no JSON object"),
    ],
)
def test_a_failing_peer_gives_a_message_with_the_reason(program, told, tmp_path):
    (tmp_path / "bad.py").write_text(program)
    subject = engine.Subject(tmp_path, "0", (0,), 512, 256, 64, (64,))
    with pytest.raises(Lack, match=told):
        peer.call(sys.executable, tmp_path / "bad.py", subject)


def test_a_program_is_charged_only_for_its_time_and_memory():
    ballast = b"x" * (200 << 20)  # memory of this process, not of the program
    small = child.run([sys.executable, "-S", "-c", "pass"])
    large = child.run([sys.executable, "-S", "-c", "x = bytearray(100 << 20)\nfor i in range(3000000): pass"])
    assert len(ballast) > 0
    assert small.peak_rss_mib < 60
    assert large.peak_rss_mib > small.peak_rss_mib + 90
    assert large.cpu_s > small.cpu_s


def test_a_program_that_cannot_start_or_is_killed_is_reported():
    with pytest.raises(Lack, match="127: nowhere: No such file"):
        child.run(["nowhere"])
    with pytest.raises(Lack, match="ended with -9"):
        child.run([sys.executable, "-S", "-c", "import os; os.kill(os.getpid(), 9)"])


def test_lengths_give_a_table_a_figure_and_a_ratio(tmp_path):
    words = ("--scaling", "--lengths", "256,1024", "--queries", 64, "--rounds", 1)
    done = bench(*words, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "scaling.csv")
    assert list(rows[0]) == ["tokens", "what", "queries", "cpu_min_s", "rss_two_threads_mib"]
    names = {row["what"] for row in rows}
    assert {"reference", "streaming_llm", "h2o", "total", "everything"} <= names
    assert len(rows) == 2 * len(names)
    assert all(float(row["cpu_min_s"]) > 0 for row in rows)
    memory = {row["what"]: row["rss_two_threads_mib"] for row in rows}
    assert {what for what, mib in memory.items() if mib and float(mib) > 0} == set(scaling.WITH_MEMORY)
    assert (tmp_path / "scaling.png").stat().st_size > 5000
    assert not list(tmp_path.glob("synthetic-*.h5"))  # they are large, and were removed
    seconds = {(row["what"], row["tokens"]): float(row["cpu_min_s"]) for row in rows}
    growth = scaling.growth(rows, 256, 1024)
    assert growth["h2o"] == pytest.approx(seconds["h2o", "1024"] / seconds["h2o", "256"])
    assert "time(1,024) / time(256)" in done.stdout


def test_the_configurations_of_the_bench_are_valid_on_a_trace_of_4096_tokens(tmp_path):
    long = synth(tmp_path / "long.h5", "--tokens", 4096, "--q-heads", 1, "--kv-heads", 1, "--head-dim", 4)
    for config in sorted((ROOT / "configs/bench").glob("*.yaml")):
        words = ["validate", config, "-s", f"traces=[{long}]", "-s", "select.layers=all"]
        done = subprocess.run([BINARY, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


# Enough of torch to run a peer: it prints the device that it receives.
TORCH = """
moved = []
def set_default_device(device): moved.append(device)
def from_numpy(array): return array
class Generator: pass
"""
MOVED = """
import json, pathlib, sys, torch
given = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text())
given["torch"] = "moved to " + torch.moved[0]
(pathlib.Path(__file__).parent / "words").write_text(" ".join(sys.argv[1:]))
print(json.dumps(given))
"""


def test_a_device_is_compared_with_one_core_and_with_the_peer(trace, truth, tmp_path):
    peer_file = fake_peer(tmp_path, truth)
    peer_file.write_text(MOVED)
    given = json.loads((tmp_path / "fake.json").read_text())
    given["seconds"] = {name: 2 * s for name, s in given.pop("cpu_seconds").items()}
    (tmp_path / "fake.json").write_text(json.dumps(given))
    (tmp_path / "torch.py").write_text(TORCH)
    words = ["--device", "emulated", "--quick", "--jobs", 2, "--out", tmp_path]
    words += ["--trace", trace, "--tokens", 160, "--prefill", 130, "--last", 20, "--budgets", "66,80"]
    emulated = str(BINARY.with_name("kvreplay_bench"))
    done = bench(*words, "--peer", peer_file, PYTHONPATH=str(tmp_path), KVREPLAY=emulated)
    assert done.returncode == 0, done.stderr
    assert "torch's attention is left out" in done.stderr  # this torch has no attention function
    assert "--layers 0 " in (tmp_path / "words").read_text()  # a trace is measured in all its layers
    rows = rows_of(tmp_path / "device.csv")
    assert (tmp_path / "device.md").read_text() == done.stdout
    page = tmp_path / "cuda.md"
    page.write_text((ROOT / "docs/cuda.md").read_text())
    tool = ROOT / "apps/tools/generate_device_page.py"
    subprocess.run([sys.executable, tool, tmp_path / "device.json", page], check=True)
    told = page.read_text()
    assert done.stdout.rstrip() in told and told.endswith((ROOT / "docs/cuda.md").read_text()[-300:])
    of = {(row["what"], row["beside"]): row for row in rows}
    for method in ("streaming_llm", "h2o", "uniform", "snapkv", "balancekv", "subgen"):
        row = of[f"caches {method}", "core"]
        assert float(row["ratio"]) == pytest.approx(float(row["anchor"]) / float(row["device"]))
    row = of["caches h2o", "peer"]
    assert float(row["anchor"]) == 14000 and row["goal"].startswith("G6")
    assert float(row["ratio"]) == pytest.approx(14000 / float(row["device"]))
    assert float(of["program", "core"]["device"]) > float(of["caches h2o", "core"]["device"])
    exact = "exact, 512 x 64, "
    bf16, f32 = (float(of[exact + dtype, ""]["device"]) for dtype in ("bf16", "f32"))
    assert float(of[exact + "f32 over bf16", ""]["ratio"]) == pytest.approx(f32 / bf16)
    for what, goal in (("h2o, many caches", "G4"), ("a large layer", "G7")):
        row = of[what, "2 cores"]
        assert float(row["ratio"]) == pytest.approx(float(row["anchor"]) / float(row["device"]))
        assert row["goal"].startswith(goal)


@pytest.mark.long
def test_the_script_for_a_machine_with_a_gpu_runs_on_the_emulator(tmp_path):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "KVREPLAY": str(BINARY.with_name("kvreplay_bench"))}
    words = ["bash", ROOT / "tests/bench/device.sh", "dry", tmp_path]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "all steps passed" in done.stdout, done.stdout + done.stderr
    assert {row["goal"][:2] for row in rows_of(tmp_path / "device.csv")} >= {"G2", "G3", "G4", "G7"}


@pytest.mark.torch
def test_torchs_attention_is_measured_on_any_device():
    folder = ROOT / "tests/bench/sidebyside"
    said = json.loads(child.run([sys.executable, folder / "sdpa.py", "cpu", 3, 256, 64]).stdout)
    assert set(said["gflops"]) == {"bf16", "f32"} and min(said["gflops"].values()) > 0


def test_a_missing_device_gives_a_one_line_message(trace, tmp_path):
    done = bench("--device", "cuda:99", "--trace", trace, *SHAPE, "--out", tmp_path)
    assert done.returncode == 2
    assert "there is no device cuda:99 here" in done.stderr and "Traceback" not in done.stderr


PERF = """
# Overhead  Shared Object  Symbol
    40.00%  kvreplay       [.] kvreplay::kernels::(anonymous namespace)::product_rows<6, 4, true, float>
    20.00%  kvreplay       [.] kvreplay::kernels::(anonymous namespace)::multiply<float>
    15.00%  kvreplay       [.] kvreplay::kernels::(anonymous namespace)::gather<float>
    12.50%  kvreplay       [.] main
     7.50%  libc.so.6      [.] __memset_avx512_unaligned_erms
     5.00%  [kernel.kallsyms]  [k] exc_page_fault
"""


def test_samples_are_added_up_by_what_the_function_does():
    assert profile.shares(PERF, "kvreplay") == pytest.approx(
        {
            "products of weights and values": 0.6,
            "gathers from the strip": 0.15,
            profile.REST: 0.125,
            profile.LIBRARIES: 0.075,
            profile.KERNEL: 0.05,
        }
    )


def test_a_binary_of_any_name_is_the_engine():
    assert profile.shares(" 10.0%  other  [.] main", "other") == {profile.REST: 0.1}
    assert profile.shares(" 10.0%  other  [.] main", "kvreplay") == {profile.LIBRARIES: 0.1}


def test_parts_of_a_profile_keep_the_order_of_the_first_column():
    rows = [
        {"isa": "a", "config": "x", "part": "small", "share": 0.1},
        {"isa": "a", "config": "x", "part": "large", "share": 0.9},
        {"isa": "a", "config": "y", "part": "elsewhere", "share": 1.0},
    ]
    columns, parts = profile.by_part(rows)
    assert columns == [("a", "x"), ("a", "y")]
    assert list(parts) == ["large", "small", "elsewhere"]
    assert parts["elsewhere"] == {("a", "y"): 1.0}
