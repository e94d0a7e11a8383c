"""200 cells give one table: in one process, by local workers, with stops, and in a job array with accidents.

Audited cells are slow: tests that interrupt workers use them, the others do not.
"""

import contextlib
import os
import random
import signal
import time
import warnings

import pytest
from kvreplay_cli import kvreplay, start
from slurm_cluster import SlurmCluster, why_not
from sweep_fixture import CELLS, comparable, make_trace, merge, plan, status, write_config

pytestmark = pytest.mark.long

WAIT_S = 120
LOST_S = 5  # seconds without a process of any task
SHARDS = 20


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A configuration with audited cells, slow enough that kills hit running work."""
    folder = tmp_path_factory.mktemp("sweep")
    return write_config(folder, make_trace(folder / "t.h5", tokens=1280), "run: {audit: true}\n")


@pytest.fixture(scope="module")
def whole_slow(config, tmp_path_factory):
    """The table of the audited cells, made by one process."""
    out = tmp_path_factory.mktemp("whole")
    assert kvreplay("run", config, "-o", out).returncode == 0
    return comparable(out)


@pytest.fixture
def slow(config, tmp_path):
    """The directory of a planned sweep of the audited cells, without any results."""
    plan(config, tmp_path / "out")
    return tmp_path / "out"


def report(way, out):
    """Adds to pytest's summary of warnings: computing a cell twice is no failure, but worth knowing."""
    warnings.warn(f"{way}: {status(out)['repeated']} of {CELLS} cells were computed twice", stacklevel=2)


def test_four_local_workers_give_the_table_of_one_process(out, whole):
    words = ["--engine", "local", "--workers", 4, "--shards", SHARDS]
    result = kvreplay("sweep", "submit", out, *words)
    assert result.returncode == 0, result.stderr
    assert comparable(out) == whole
    assert status(out)["repeated"] == 0


def test_a_worker_stopped_and_started_five_times_gives_the_table_of_one_process(slow, whole_slow):
    for _ in range(5):
        before = status(slow)["ok"]
        process = start("sweep", "work", slow, "-j", 1, "--progress", "none")
        until = time.monotonic() + WAIT_S
        while status(slow)["ok"] == before and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)
        assert process.returncode == 75
        assert before < status(slow)["ok"] < CELLS
    assert kvreplay("sweep", "work", slow, "--progress", "none").returncode == 0
    assert merge(slow).returncode == 0
    assert comparable(slow) == whole_slow
    assert status(slow)["repeated"] == 0


class Accidents:
    """Kills a worker, a node and the controller, each at a random moment."""

    def __init__(self, cluster, seed):
        self.cluster, self.random = cluster, random.Random(seed)
        self.waiting = [self.kill_worker, self.kill_node, self.kill_worker, self.kill_controller]
        self.busy_s = time.monotonic()  # time at which a process of a task was last seen

    def maybe(self):
        if self.waiting and self.random.random() < 0.8 and self.workers():
            self.waiting.pop(0)()

    def workers(self):
        found = [pid for node in range(self.cluster.nodes) for pid in self.cluster.running_pids(node)]
        if found:
            self.busy_s = time.monotonic()
        return found

    def cancel_lost(self):
        """The controller may list a task as running that no node has, and checks only a minute later. If no
        process runs, this cancels the task; its cells are submitted again."""
        if not self.workers() and time.monotonic() - self.busy_s > LOST_S:
            self.cluster.run("scancel", "--user=root", "--state=RUNNING")

    def kill_worker(self):
        if workers := self.workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.random.choice(workers), signal.SIGKILL)

    def kill_node(self):
        node = self.random.randrange(self.cluster.nodes)
        self.cluster.kill_node(node)
        self.cluster.start_node(node)

    def kill_controller(self):
        """Unsaved state becomes inconsistent (unknown tasks, drained nodes); as users would, this cancels
        all."""
        self.cluster.kill_controller()
        self.cluster.start_controller()
        self.cluster.run("scancel", "--user=root")
        self.cluster.run("scontrol", "update", "nodename=ALL", "state=resume")


@pytest.mark.skipif(why_not() is not None, reason=f"no Slurm here: {why_not()}")
def test_a_job_array_with_accidents_gives_the_table_of_one_process(slow, whole_slow, tmp_path):
    submit = ["sweep", "submit", slow, "--engine", "slurm", "--shards", SHARDS, "-j", 1, "--at-once", 3]
    # A task that was requeued late must not wait longer than the test does.
    with SlurmCluster(tmp_path / "slurm", nodes=3, cpus=2, requeue_wait_s=20) as cluster:
        accidents = Accidents(cluster, seed=os.getpid())
        submissions, until = 0, time.monotonic() + WAIT_S
        while not (slow / "results.csv").exists():
            assert time.monotonic() < until, cluster.run("squeue").stdout + cluster.logs()
            if accidents.waiting == []:
                cluster.resume_drained()
                accidents.cancel_lost()
            if not cluster.run("squeue", "-h").stdout.strip():
                result = kvreplay(*submit, **cluster.env)
                assert result.returncode == 0, result.stderr
                submissions += 1
            accidents.maybe()
            time.sleep(0.2)
        assert accidents.waiting == []
    assert comparable(slow) == whole_slow
    assert status(slow).items() >= {"ok": CELLS, "parked": 0, "damaged": 0}.items()
    report(f"job array with 4 accidents, submitted {submissions} times by hand", slow)


@pytest.mark.skipif(why_not() is not None, reason=f"no Slurm here: {why_not()}")
def test_a_task_near_its_time_limit_exits_with_75_and_the_merge_job_submits_the_rest(
    slow, whole_slow, tmp_path
):
    """Slurm checks limits only every 30 s, so the test sends the signal itself."""
    words = ["--shards", 2, "-j", 1, "--rounds", 3]
    with SlurmCluster(tmp_path / "slurm", nodes=1, cpus=2) as cluster:
        assert kvreplay("sweep", "submit", slow, "--engine", "slurm", *words, **cluster.env).returncode == 0
        until = time.monotonic() + WAIT_S
        while status(slow)["ok"] == 0:
            assert time.monotonic() < until, cluster.logs()
            time.sleep(0.05)
        (job,) = {
            line.split("_")[0]
            for line in cluster.run("squeue", "-h", "-o", "%i").stdout.split()
            if "_" in line
        }
        cluster.run("scancel", "-b", "-s", "USR1", job)
        while not (slow / "results.csv").exists():
            assert time.monotonic() < until, cluster.logs()
            time.sleep(0.2)
        codes = {facts["ExitCode"] for facts in cluster.tasks(job).values()}
    assert codes == {"75:0"}
    assert comparable(slow) == whole_slow
    assert status(slow)["repeated"] == 0


@pytest.mark.skipif(why_not() is not None, reason=f"no Slurm here: {why_not()}")
def test_submitting_and_waiting_ends_with_the_table(out, whole, tmp_path):
    with SlurmCluster(tmp_path / "slurm", nodes=2, cpus=2) as cluster:
        words = ["--engine", "slurm", "--shards", 4, "-j", 1, "--wait"]
        result = kvreplay("sweep", "submit", out, *words, **cluster.env)
    assert result.returncode == 0, result.stderr
    assert "#SBATCH --array=0-3" in result.stdout and "h2o" in result.stdout
    assert comparable(out) == whole
