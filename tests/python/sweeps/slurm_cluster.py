"""A real Slurm on the loopback of one machine, without systemd and cgroups: a controller and several nodes.

with SlurmCluster(tmp_path / "slurm", nodes=3, cpus=2) as cluster:  # where why_not() is None
    job = cluster.submit("#!/bin/bash\n#SBATCH --array=0-9%4\nexec ./program $SLURM_ARRAY_TASK_ID\n")
    cluster.wait_for(job, 30)
    assert set(cluster.state(job).values()) == {"COMPLETED"}
"""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

READY_S = 60
POLL_S = 0.05
PROGRAMS = ["munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "setpriv"]
# Below the range of ports that the system assigns to outgoing connections.
PORTS = range(12_000, 32_000)
# Slurm's commands take options from these variables; a test inside a job of another Slurm would pass them on.
FOREIGN = re.compile(r"S(LURM|LURMD|BATCH|QUEUE|INFO|CANCEL|RUN|ALLOC|CONTROL)_")
UP = re.compile(r"(IDLE|MIXED|ALLOCATED)(\+COMPLETING)?")
HELD = re.compile("held|launch failed", re.IGNORECASE)
TIME = "%Y-%m-%dT%H:%M:%S"

# config_overrides: more CPUs than the machine has. cred_expire below 5 is ignored: 120 again.
CONF = """\
ClusterName=kvreplay
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={sockets}/munge,cred_expire={requeue_wait_s}
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={sockets}/%n
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.txt
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=10
KillWait=2
MinJobAge=600
JobRequeue=1
MaxArraySize=100001
MaxJobCount=200000
SlurmdParameters=config_overrides
"""
NODE = "NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=1000\n"
PARTITION = "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"


def why_not():
    """The reason why no Slurm can start here, or None."""
    if os.geteuid() != 0:
        return "starting a Slurm needs root"
    missing = [name for name in PROGRAMS if not shutil.which(name, path=_path())]
    if missing:
        return f"not installed: {', '.join(missing)} (see tests/install_slurm.sh)"
    try:
        socket.getaddrinfo(_host(), None)
    except OSError as error:
        return f"the name of this host, {_host()}, does not resolve: {error}"
    return None


def until(condition, timeout_s, what):
    """Waits until the condition holds; `what` (a text, or a function that returns one) describes the
    condition in the error message."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not reached within {timeout_s} s: {what() if callable(what) else what}")
        time.sleep(POLL_S)


def alive(pid):
    """Whether a process runs. A zombie counts as ended: a container may have no process that reaps
    orphans."""
    return pid in _parents()


class SlurmCluster:
    """Nodes are n0, n1, ...; they share the machine, so nothing is isolated and no memory limit holds.

    Daemons run in the foreground as children of this process, so that their pids are known and they end with
    it even when it is killed (setpriv --pdeathsig, which refers to the thread that started them); only job
    steps survive that. No process is looked up by name. The cluster starts its own munged: containers lack
    /run/munge, and keys of the machine stay untouched. The path of a Unix socket has at most 107 characters,
    fewer than paths in pytest's folders: sockets are in a short folder of /tmp that is removed at the end.

    requeue_wait_s: how long Slurm holds a requeued task (at least 5; 120 is its default).
    """

    def __init__(self, folder, nodes=3, cpus=2, requeue_wait_s=120):
        self.folder = Path(folder).resolve()
        self.nodes, self.cpus, self.requeue_wait_s = nodes, cpus, requeue_wait_s
        self.conf = self.folder / "slurm.conf"
        self.munge = self.controller = None
        self.slurmd, self.since = {}, {}
        self.seen = set()  # pids that belong or belonged to the cluster

    def __enter__(self):
        self.sockets = Path(tempfile.mkdtemp(prefix="slurm", dir="/tmp"))
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.kill_controller()
        for i in range(self.nodes):
            self.kill_node(i)
        self._end(self.munge)
        shutil.rmtree(self.sockets)

    @property
    def env(self):
        ours = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
        return ours | {"PATH": _path(), "SLURM_CONF": str(self.conf)}

    def run(self, *words, text=None):
        """Runs a Slurm command to its end; returns returncode, stdout and stderr (text).

        Without a controller, commands take 9 s to fail."""
        return subprocess.run(
            [str(word) for word in words],
            input=text,
            capture_output=True,
            text=True,
            timeout=READY_S,
            cwd=self.folder,
            env=self.env,
            check=False,
        )

    def submit(self, script, *options):
        """Submits a script (text or path) from the cluster's folder; returns the id of the job."""
        is_text = isinstance(script, str) and script.startswith("#!")
        file, text = ([], script) if is_text else ([script], None)
        return int(self._ask("sbatch", "--parsable", *options, *file, text=text).partition(";")[0])

    def tasks(self, job):
        """Slurm's data of each task of an array: {task: {"JobState": ..., "ExitCode": ..., ...}}.

        A plain job has the single task None."""
        found = {}
        for line in self._ask("scontrol", "show", "job", job, "-o").splitlines():
            facts = dict(re.findall(r"(\S+?)=(\S*)", line))
            numbers = _numbers(facts["ArrayTaskId"]) if "ArrayTaskId" in facts else [None]
            found |= dict.fromkeys(numbers, facts)
        return found

    def state(self, job):
        return {task: facts["JobState"] for task, facts in self.tasks(job).items()}

    def wait_for(self, job, timeout_s):
        """Waits until no task of the job is pending or running."""

        def ended():
            done = self.run("squeue", "-h", "-j", job)
            return done.returncode == 0 and not done.stdout.strip()

        until(ended, timeout_s, lambda: f"end of job {job}\n{self.run('squeue').stdout}{self.logs()}")

    def wait_until_saved(self, job):
        """Waits until the controller has saved its state. Call this before killing the controller.

        The controller saves jobs within 5 s of a submission, an end or an update, but not of a start. Unsaved
        changes are lost: new jobs vanish, running tasks are killed and run again."""
        asked, file = time.time(), self.folder / "state" / "job_state"
        self._ask("scontrol", "update", f"jobid={job}", "comment=saved")
        until(lambda: _written(file) > asked, READY_S, "saved jobs")

    def running_pids(self, node):
        """Pids of the job processes on a node."""
        return self._processes(node)[1]

    def kill_node(self, i, noticed=True):
        """Kills all processes of a node, like a power failure.

        The controller is informed, unless `noticed` is false. Then it notices after 30 s (minutes with
        Slurm's defaults) or when the node is back, and one minute later still for tasks that had just
        started."""
        self._end(self.slurmd.pop(i, None))
        while any(found := self._processes(i)):
            daemons, jobs = found
            for pid in daemons or jobs:  # a slurmstepd that sees its job die would report FAILED
                _kill(pid)
        if noticed and self.controller:
            self._ask("scontrol", "update", f"nodename=n{i}", "state=down", "reason=killed")

    def start_node(self, i):
        self._start_slurmd(i)
        if self.controller:
            self._wait_for_nodes()

    def kill_controller(self):
        """Kills the controller. Tasks continue; tasks that end meanwhile count once it is back (see
        wait_until_saved)."""
        self._end(self.controller)
        self.controller = None

    def start_controller(self):
        """Takes 4 s: a new controller contacts its nodes only then."""
        self._start_slurmctld()
        self._wait_for_nodes()

    def logs(self, lines=15):
        """The last lines of every daemon's log, or of its stderr if the log is not open yet."""
        texts = {}
        for file in sorted((self.folder / "log").iterdir(), key=_written):
            if text := file.read_text(errors="replace").splitlines():
                texts[file.stem] = "\n".join([f"== {file}", *text[-lines:]])
        return "\n".join(texts.values())

    def _start(self):
        for name in ["state", "log"]:
            (self.folder / name).mkdir(parents=True)
        self._write_conf()
        self._start_munged()
        self._start_slurmctld()
        for i in range(self.nodes):
            self._start_slurmd(i)
        self._wait_for_nodes()

    def _write_conf(self):
        self.port, *ports = _free_ports(1 + self.nodes)
        facts = {"host": _host(), "folder": self.folder, "sockets": self.sockets, "cpus": self.cpus}
        text = CONF.format(**facts, port=self.port, requeue_wait_s=self.requeue_wait_s)
        for i, port in enumerate(ports):
            text += NODE.format(**facts, i=i, port=port)
            (self.sockets / f"n{i}").mkdir()
        self.conf.write_text(text + PARTITION)

    def _start_munged(self):
        key = self.sockets / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(64))
        files = {"key-file": "key", "socket": "munge", "pid-file": "munged.pid", "seed-file": "seed"}
        where = [f"--{option}={self.sockets / name}" for option, name in files.items()]
        # --force: munged refuses a socket folder that only root may enter.
        self.munge = self._daemon("munged", "munged", "--foreground", "--force", *where)
        self._wait((self.sockets / "munge").exists, "munged's socket")

    def _start_slurmctld(self):
        """Returns once it listens: a client that finds the port closed would sleep a second."""
        self.controller = self._daemon("slurmctld", "slurmctld", "-D")
        self._wait(lambda: _listens(self.port), "slurmctld's port")

    def _start_slurmd(self, i):
        self.since[i] = time.strftime(TIME)
        self.slurmd[i] = self._daemon(f"n{i}", "slurmd", "-D", "-N", f"n{i}", SLURMD_NODENAME=f"n{i}")

    def _daemon(self, name, *words, **environment):
        with (self.folder / "log" / f"{name}.err").open("ab") as errors:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *words],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=environment | self.env,
            )
        self.seen.add(process.pid)
        return process

    def _end(self, process):
        """Kills a daemon and its children (slurmctld has a slurmscriptd)."""
        if process:
            family = _with_children([process.pid], _parents())
            self.seen |= family
            for pid in family:
                _kill(pid)
            process.wait()

    def _ask(self, *words, text=None):
        done = self.run(*words, text=text)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr}")
        return done.stdout

    def _wait_for_nodes(self):
        self._wait(self._nodes_are_up, "nodes that are up")

    def _wait(self, condition, what):
        def tell():
            return f"{what}\n{self.run('sinfo', '-N').stdout}{self.logs()}"

        until(lambda: self._all_run() and condition(), READY_S, tell)

    def _all_run(self):
        ours = [self.munge, self.controller, *self.slurmd.values()]
        if ended := [process.args for process in ours if process and process.poll() is not None]:
            raise RuntimeError(f"ended: {ended}\n{self.logs()}")
        return True

    def _nodes_are_up(self):
        """Whether every started slurmd has reported; until then the controller shows its predecessor.

        A controller that lost its last seconds drains nodes that still run a job which it starts again
        (duplicate job). They are resumed, as an operator would do."""
        nodes = {}
        for facts in self._node_facts():
            began = facts.get("SlurmdStartTime", "None")
            nodes[facts["NodeName"]] = began if UP.fullmatch(facts["State"]) and began != "None" else ""
        self.resume_drained()
        return all(nodes.get(f"n{i}", "") >= self.since[i] for i in self.slurmd)

    def _node_facts(self):
        shown = self.run("scontrol", "show", "nodes", "-o").stdout.splitlines()
        return [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in shown]

    def resume_drained(self):
        """Resumes nodes and releases jobs, as an operator would. A controller that lost its last seconds
        drains nodes, and holds jobs that a node refused because it already runs a job of that number."""
        for facts in self._node_facts():
            if "DRAIN" in facts["State"]:
                self._ask("scontrol", "update", f"nodename={facts['NodeName']}", "state=resume")
        for line in self.run("squeue", "-h", "-t", "PD", "-o", "%i %r").stdout.splitlines():
            job, reason = line.split(None, 1)
            if HELD.search(reason):
                self.run("scontrol", "release", job)

    def _processes(self, node):
        """The daemons of a node and the processes of its jobs."""
        parents = _parents()
        named = {pid for pid in parents if self._has_node_option(pid, node)}
        daemons = {
            pid for pid in parents if _is_slurm_process(pid) and (pid in named or self._logs_to(pid, node))
        }
        jobs = _with_children(named | daemons, parents) - daemons
        self.seen |= daemons | jobs
        return daemons, jobs

    def _has_node_option(self, pid, node):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            return {f"SLURM_CONF={self.conf}".encode(), f"SLURMD_NODENAME=n{node}".encode()} <= set(words)
        return False

    def _logs_to(self, pid, node):
        """Whether the process logs to this node. A slurmstepd is not a child of its slurmd, and its process
        title overwrites its environment."""
        log = self.folder / "log" / f"n{node}.log"
        with contextlib.suppress(OSError):
            return log in {link.readlink() for link in Path(f"/proc/{pid}/fd").iterdir()}
        return False


def _path():
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def _host():
    return socket.gethostname().partition(".")[0]


def _numbers(text):
    """Tasks of an array as Slurm writes them: 3, 0-9%4, 1,5-7 or 0-8:2."""
    found = []
    for part in text.partition("%")[0].split(","):
        first, last, step = re.fullmatch(r"(\d+)(?:-(\d+))?(?::(\d+))?", part).groups()
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return found


def _free_ports(count):
    """Returns unused ports; all are held open until the last one is found."""
    with contextlib.ExitStack() as held:
        found = []
        for port in random.sample(PORTS, 1000):
            with contextlib.suppress(OSError):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == count:
                return found
    raise OSError("no free ports")


def _listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _written(file):
    """Modification time, 0 if the file is missing: Slurm removes the old file before it writes the new
    one."""
    with contextlib.suppress(OSError):
        return file.stat().st_mtime
    return 0


def _parents():
    """{pid: parent} of every process that is not a zombie."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended meanwhile
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                found[int(stat.parent.name)] = int(parent)
    return found


def _with_children(pids, parents):
    found = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _is_slurm_process(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name.startswith("slurm")
    return False


def _kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
