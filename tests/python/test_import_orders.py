"""The extension module inside other processes: other libraries, forks, signals, threads, memory."""

import itertools
import subprocess
import threading
import time
from pathlib import Path

import kvreplay
import numpy as np
import pytest
from kvreplay_cli import ROOT
from own_methods_of_tests import Oldest
from program_beside_python import check_equal_runs, made_layer, replayed, run_python

MODULE = Path(__import__("kvbase._engine", fromlist=["_engine"]).__file__)
WORDS = {"prefill": 112, "methods": ["h2o", "snapkv"], "budgets": [40], "progress": False}

ORDERS = """
import os, sys, threading
{imports}
import numpy as np
from program_beside_python import made_layer
arrays = made_layer(1)
words = {{"methods": ["h2o", "snapkv"], "budgets": [40], "jobs": 2, "progress": False}}

def replayed():
    of_arrays = kvreplay.replay(*arrays, prefill=112, **words)
    of_file = kvreplay.replay("{trace}", **words)
    assert len(of_arrays) == 4 and len(of_file) == 4 and not len(of_arrays.failed) + len(of_file.failed)
    return [run.table["rel_err_fro"].tolist() for run in (of_arrays, of_file)]

def others_work(threads):
    if "torch" in sys.modules:
        import torch
        # After a fork torch alone waits for threads that are gone; its own loader of data takes one, too.
        torch.set_num_threads(threads)
        a = torch.ones(600, 600)
        assert (a @ a)[0, 0] == 600
    with h5py.File("{trace}", "r") as file:
        assert file["prompts/p0/layers/000/k"][()].shape == arrays[1].shape

def both_read_at_once():
    over = threading.Event()
    def read():
        while not over.is_set():
            others_work(2)
    thread = threading.Thread(target=read)
    thread.start()
    try:
        with h5py.File("{trace}", "r"):  # the same file, open in both
            return [replayed() for _ in range(5)]
    finally:
        over.set()
        thread.join()

import h5py
others_work(2)
before = replayed()
assert before[0] == before[1]
child = os.fork()
if child == 0:
    code = 1
    try:
        others_work(1)
        assert replayed() == before
        os._exit(0 if replayed() == before else 1)
    finally:
        os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert both_read_at_once() == [before] * 5
try:
    kvreplay.replay("{damaged}", **words)
except kvreplay.TraceError:
    pass
try:
    h5py.File("{damaged}", "r")
except OSError:
    pass
others_work(2)
assert replayed() == before
print("all work")
"""


@pytest.fixture
def files(tmp_path):
    """{"trace": a trace of `made_layer(1)`, "damaged": its first half}."""
    trace = kvreplay.Trace.write(tmp_path / "t.h5", {0: made_layer(1)}, n_prompt=112).path
    damaged = tmp_path / "damaged.h5"
    damaged.write_bytes(trace.read_bytes()[: trace.stat().st_size // 2])
    return {"trace": trace, "damaged": damaged}


def check_order(names, files):
    imports = "\n".join(f"import {name}" for name in names).replace("kvreplay", "kvreplay, kvbase._engine")
    done = run_python(ORDERS.format(imports=imports, **files), check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "all work\n", "")


# Two orders cover both sequences of each pair of libraries; the others only repeat them.
BOTH_WAYS = [("torch", "h5py", "kvreplay"), ("kvreplay", "h5py", "torch")]
ORDERS_OF_THREE = [
    names if names in BOTH_WAYS else pytest.param(names, marks=pytest.mark.slow)
    for names in itertools.permutations(BOTH_WAYS[0])
]


@pytest.mark.torch
@pytest.mark.parametrize("names", ORDERS_OF_THREE, ids="-".join)
def test_torch_h5py_and_kvreplay_work_in_any_order_and_after_a_fork(names, files):
    pytest.importorskip("torch")
    check_order(names, files)


@pytest.mark.parametrize("names", list(itertools.permutations(("h5py", "kvreplay"))), ids="-".join)
def test_h5py_and_kvreplay_work_in_any_order_and_after_a_fork(names, files):
    check_order(names, files)


FORKS = """
import os, signal, sys, threading
import kvreplay
words = {{"methods": ["window"], "budgets": [40], "jobs": 1, "progress": False}}
over = threading.Event()
kvreplay.replay("{trace}", **words)  # a fork while modules are imported is Python's own trouble

def read():
    while not over.is_set():
        kvreplay.replay("{trace}", **words)

threads = [threading.Thread(target=read) for _ in range(2)]
for thread in threads:
    thread.start()
ended = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # a child that waits for ever is killed
        os._exit(0 if len(kvreplay.replay("{trace}", **words)) == 2 else 1)
    ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if ended[-1]:
        break
over.set()
for thread in threads:
    thread.join()
print(*ended)
"""


def test_a_fork_reads_traces_whatever_other_threads_were_reading(files):
    done = run_python(FORKS.format(**files), check=False)
    assert done.stdout.split() == ["0"] * 20, done.stderr[-2000:]


# ---- symbols of the module


def symbols(*words):
    done = subprocess.run(["nm", *words, str(MODULE)], capture_output=True, text=True, check=True, timeout=60)
    return [line.split() for line in done.stdout.splitlines() if line.split()]


def test_the_module_defines_its_init_function_for_others_and_nothing_else():
    assert [line[-1] for line in symbols("-D", "--defined-only")] == ["PyInit__engine"]


def test_the_module_carries_hdf5_and_yaml_inside_and_nothing_of_openmp():
    names = {line[-1] for line in symbols("-D")}
    assert not [name for name in names if name.startswith(("H5", "_H5", "GOMP", "omp_", "__kmpc"))]
    assert b"HDF5 library version" in MODULE.read_bytes()
    assert b"libgomp" not in MODULE.read_bytes()
    needed = subprocess.run(
        ["ldd", str(MODULE)], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert not [word for word in ("hdf5", "gomp", "yaml", "libsz", "libaec") if word in needed]


def test_the_module_relocates_no_code():
    """Debian's archive of HDF5 is compiled for programs. Hardened systems refuse code that the loader
    has to change."""
    done = subprocess.run(["readelf", "-d", str(MODULE)], capture_output=True, text=True, check=True)
    assert "TEXTREL" not in done.stdout


# ---- Ctrl-C and exceptions of callers

INTERRUPTED = """
import os, signal, sys, threading, time
import kvreplay
from program_beside_python import made_layer

arrays = made_layer(1, tokens=6000, dim=64, v_dim=64, heads=8)
methods = [METHODS]
many = {"prefill": 500, "jobs": 2, "progress": False, "budgets": [256, 400, 512], "seeds": 50}
sent = []

def send():
    time.sleep(1)
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=send).start()
try:
    kvreplay.replay(*arrays, methods=methods, **many)
    print("it was over too soon")
except KeyboardInterrupt:
    late = time.monotonic() - sent[0]
    print("interrupted" if late < 1 else f"interrupted {late:.2f} s late")
tasks = len(os.listdir("/proc/self/task"))
assert tasks <= 2, f"{tasks} threads are left"  # this one, and at most that which sent the signal
small = made_layer(1)
print(len(kvreplay.replay(*small, prefill=112, methods=["h2o"], budgets=[32], jobs=2, progress=False)))
"""

SLOW_METHOD = """
class Slow(kvreplay.Policy):
    def evict(self, tokens):
        time.sleep(0.3)
        return tokens[: len(tokens) - self.budget]
"""
LONG = {
    "while it decodes": ("", "'h2o', 'balancekv_stream'"),
    "while it reads the prompt": ("", "'keyformer'"),
    "while budgets are shared": (
        "",
        "{'name': 'keyformer', 'phase': 'oneshot', 'allocator': 'ada'}",
    ),
    "in a method in Python": (SLOW_METHOD, "Slow"),
}


@pytest.mark.parametrize("text,methods", LONG.values(), ids=LONG)
def test_ctrl_c_ends_a_long_replay_within_a_second_and_the_process_goes_on(text, methods):
    code = INTERRUPTED.replace("methods = [METHODS]", f"{text}methods = [{methods}]")
    done = run_python(code, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "interrupted\n2\n"


def threads_of_process():
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.parametrize(
    "error", [RuntimeError("the bar broke"), KeyboardInterrupt(), SystemExit(3), MemoryError()]
)
@pytest.mark.parametrize("call", ["start", "advance"])
def test_an_exception_of_the_progress_bar_ends_the_run_and_leaves_no_thread(error, call, monkeypatch):
    from kvbase.progress import Bar

    def breaking(*_):
        raise error

    before = threads_of_process()
    with monkeypatch.context() as patched:
        patched.setattr(Bar, call, breaking)
        with pytest.raises(type(error)):
            kvreplay.replay(*made_layer(1), jobs=3, **WORDS)
    assert threads_of_process() == before
    assert len(replayed(*made_layer(1), **WORDS)) == 4


def test_no_thread_remains_after_a_run():
    before = threads_of_process()
    for jobs in (1, 2, 5):
        replayed(*made_layer(1), **WORDS, jobs=jobs)
    with pytest.raises(kvreplay.TraceError):
        kvreplay.replay(*(x * np.nan for x in made_layer(1)), **WORDS, jobs=4)
    assert threads_of_process() == before


def test_a_closed_standard_error_harms_no_run():
    code = """
import os, sys
import kvreplay
from program_beside_python import made_layer
os.close(2)
sys.stderr = None
print(len(kvreplay.replay(*made_layer(1), prefill=112, methods=["h2o"], budgets=[32])))
"""
    assert run_python(code).stdout == "2\n"


# ---- threads of Python


def test_replays_from_several_threads_at_once_have_the_numbers_of_replays_alone():
    arrays = [made_layer(seed) for seed in range(4)]
    words = {**WORDS, "methods": ["h2o", Oldest, "uniform"], "seeds": 2, "save": ("kept", "outputs")}
    alone = [replayed(*given, **words) for given in arrays]
    found = [None] * 12

    def run(i):
        found[i] = replayed(*arrays[i % 4], **words)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    for i, one in enumerate(found):
        check_equal_runs(one, alone[i % 4])


def test_one_trace_is_replayed_from_several_threads_at_once():
    trace = kvreplay.open(ROOT / "traces" / "samples" / "smollm2-135m.h5")
    words = {"methods": ["streaming_llm"], "budgets": [64], "layers": [0, 7], "tokens": 680}
    alone = replayed(trace, **words)
    failures = []

    def run():
        try:
            check_equal_runs(replayed(trace, **words), alone)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    with trace:
        for thread in threads:
            thread.join(timeout=60)
        assert trace.layer(0).k.shape == (3, 704, 64)
    assert not failures


def test_a_trace_that_is_open_stays_open_while_it_is_replayed():
    trace = kvreplay.open(ROOT / "traces" / "samples" / "smollm2-135m.h5")
    with trace:
        opened = trace._held
        replayed(trace, methods=["window"], budgets=[64], layers=[0], tokens=680)
        replayed(layers={0: trace.layer(0)}, prefill=640, methods=["window"], budgets=[64])
        assert trace._held is opened and opened
        assert trace.layer(0).k.shape == (3, 704, 64)


def test_a_method_may_replay_itself():
    arrays = made_layer(1)

    @kvreplay.scorer
    def asking(prompt):
        inner = replayed(*arrays, prefill=112, methods=["window"], budgets=[40], jobs=1)
        return prompt.positions * float(len(inner))

    run = replayed(*arrays, prefill=112, methods=[asking, "window"], budgets=[40])
    kept = [run.kept(method, head=0)[0] for method in ("asking", "window")]
    assert np.array_equal(*kept)


def test_python_threads_run_while_the_engine_works():
    arrays = made_layer(1, tokens=1500, dim=64, v_dim=64, heads=8)
    words = {"prefill": 300, "methods": ["h2o", "tova", "keyformer"], "budgets": [256, 512], "jobs": 1}
    stamps = []
    over = threading.Event()

    def count():
        while not over.is_set():
            stamps.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    started = time.monotonic()
    run = replayed(*arrays, **words)
    ended = time.monotonic()
    over.set()
    thread.join()
    during = [stamp for stamp in stamps if started < stamp < ended]
    assert run.engine_s > 0.1, "the run was too short for this test"
    assert len(during) > 0.1 * (ended - started) / 0.001
    gaps = np.diff([started, *during, ended])
    assert gaps.max() < 0.5 * (ended - started)


# ---- memory

MEMORY = """
import numpy as np
import kvreplay

def peak():  # getrusage would count the process that started this one
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024

LAYERS, HEADS, TOKENS, DIM = 8, 8, 2048, 128
rng = np.random.default_rng(0)
seed = rng.normal(size=(HEADS, TOKENS, DIM)).astype(np.float32)
layers = {n: tuple(MADE(np.roll(seed, 3 * n + i, axis=1)) for i in range(3)) for n in range(LAYERS)}
size = sum(x.nbytes for tensors in layers.values() for x in tensors)
small = {0: tuple(x[:2, :256] for x in layers[0])}
words = {"methods": ["window"], "budgets": [64], "jobs": 2, "progress": False, "queries": {"last": 8}}
kvreplay.replay(layers=small, prefill=128, **words).table  # what is imported is not counted
before = peak()
run = kvreplay.replay(layers=layers, prefill=TOKENS - 16, **words)
assert len(run) == LAYERS * HEADS and not len(run.failed)
print(size, peak() - before)
"""


@pytest.mark.parametrize(
    "made,megabytes",
    [("np.ascontiguousarray", 201), ("lambda x: x.astype(np.float16)", 100), ("np.asfortranarray", 201)],
    ids=["float32", "float16", "fortran"],
)
def test_tensors_are_not_copied(made, megabytes):
    done = run_python(MEMORY.replace("MADE", f"({made})"))
    size, grown = map(int, done.stdout.split())
    assert size // 10**6 == megabytes
    assert grown < 0.25 * size, f"{grown / 1e6:.0f} MB more for tensors of {size / 1e6:.0f} MB"
