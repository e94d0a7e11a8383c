"""The Slurm that other tests start: jobs end, killed parts come back, and no process stays behind."""

import collections

import pytest
import slurm_cluster
from slurm_cluster import SlurmCluster, alive, until, why_not

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(why_not() is not None, reason=f"no Slurm here: {why_not()}"),
]
WAIT_S = 30
# Prints its task number and pid, and ends once the file `go` exists.
WAITS = '#!/bin/bash\necho "$SLURM_ARRAY_TASK_ID $$" >>began\nuntil [ -e go ]; do sleep 0.1; done\n'


@pytest.fixture
def cluster(tmp_path):
    with SlurmCluster(tmp_path / "slurm", nodes=2, cpus=2) as cluster:
        yield cluster


def began(cluster):
    """(task, pid) for each time that a waiting task began."""
    file = cluster.folder / "began"
    return [tuple(map(int, line.split())) for line in file.read_text().splitlines()] if file.exists() else []


def start_waiting(cluster, tasks, *options):
    """Submits tasks that wait, and returns once all of them run."""
    job = cluster.submit(WAITS, f"--array=0-{tasks - 1}", *options)
    until(lambda: states(cluster, job) == {"RUNNING": tasks}, WAIT_S, cluster.logs)
    until(lambda: len(began(cluster)) >= tasks, WAIT_S, cluster.logs)
    return job


def states(cluster, job):
    return collections.Counter(cluster.state(job).values())


def test_an_array_of_ten_tasks_completes(cluster):
    job = cluster.submit("#!/bin/bash\n#SBATCH --array=0-9%3\ntouch task-$SLURM_ARRAY_TASK_ID\n")
    cluster.wait_for(job, WAIT_S)
    assert cluster.state(job) == dict.fromkeys(range(10), "COMPLETED")
    assert len(list(cluster.folder.glob("task-*"))) == 10


def test_a_killed_node_loses_its_tasks_and_accepts_others_later(cluster):
    job = start_waiting(cluster, 4, "--no-requeue")
    tasks = {pid for _, pid in began(cluster)}
    lost, kept = (cluster.running_pids(node) & tasks for node in range(2))
    assert len(lost) == len(kept) == 2
    cluster.kill_node(0)
    assert not any(map(alive, lost))
    assert all(map(alive, kept))
    assert states(cluster, job) == {"NODE_FAIL": 2, "RUNNING": 2}
    cluster.start_node(0)
    other = cluster.submit("#!/bin/bash\n", "--nodelist=n0")
    cluster.wait_for(other, WAIT_S)
    assert cluster.state(other) == {None: "COMPLETED"}
    assert states(cluster, job) == {"NODE_FAIL": 2, "RUNNING": 2}


def test_tasks_of_a_lost_node_run_elsewhere_after_the_hold(tmp_path):
    with SlurmCluster(tmp_path / "slurm", nodes=2, cpus=2, requeue_wait_s=5) as cluster:
        job = start_waiting(cluster, 4)
        cluster.kill_node(0)
        assert states(cluster, job) == {"PENDING": 2, "RUNNING": 2}
        (cluster.folder / "go").touch()
        cluster.wait_for(job, WAIT_S)
        assert states(cluster, job) == {"COMPLETED": 4}
        times = collections.Counter(task for task, _ in began(cluster))
        restarts = {task: int(facts["Restarts"]) for task, facts in cluster.tasks(job).items()}
        assert sorted(times.values()) == [1, 1, 2, 2]
        assert restarts == {task: n - 1 for task, n in times.items()}


def test_a_killed_controller_comes_back_and_finds_the_tasks_running(cluster):
    job = start_waiting(cluster, 2)
    cluster.wait_until_saved(job)
    cluster.kill_controller()
    assert cluster.run("scontrol", "ping").returncode != 0
    assert all(alive(pid) for _, pid in began(cluster))
    cluster.start_controller()
    assert states(cluster, job) == {"RUNNING": 2}
    (cluster.folder / "go").touch()
    cluster.wait_for(job, WAIT_S)
    assert states(cluster, job) == {"COMPLETED": 2}
    assert len(began(cluster)) == 2  # no task started again


def test_nothing_runs_after_a_test_that_failed(tmp_path):
    cluster = SlurmCluster(tmp_path / "slurm", nodes=2, cpus=2)
    with pytest.raises(ZeroDivisionError), cluster:
        # With a new session and an empty environment, only its parent identifies the process.
        cluster.submit("#!/bin/bash\nenv -i setsid sleep 600 &\necho 9 $! >>began\nwait\n")
        start_waiting(cluster, 3)
        until(lambda: len(began(cluster)) == 4, WAIT_S, cluster.logs)
        pids = cluster.seen | {pid for _, pid in began(cluster)}
        assert len(pids) >= 8  # munged, slurmctld, two slurmd, four tasks
        assert all(map(alive, pids))
        _ = 1 / 0
    assert not any(map(alive, pids | cluster.seen))
    assert not cluster.sockets.exists()


def test_a_cluster_that_does_not_start_shows_the_logs(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_cluster, "CONF", slurm_cluster.CONF.replace("SlurmUser=root", "SlurmUser=none"))
    cluster = SlurmCluster(tmp_path / "slurm")
    with pytest.raises(RuntimeError, match=r"(?s)slurmctld.*SlurmUser none"), cluster:
        pass
    assert cluster.seen and not any(map(alive, cluster.seen))
