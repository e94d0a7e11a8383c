"""Alternating rounds of the engine, the peer and sgemm, and the ratios of their CPU seconds."""

import json
import os
import re
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path

from . import agreement, child, engine, peer
from .errors import Lack

SGEMM = Path(__file__).with_name("sgemm.py")
TOTAL = "total"


@dataclass
class Contest:
    """All measurements: one row per call, errors of each instruction set, and the programs and machine."""

    rounds: list = field(default_factory=list)  # {round, isa, contestant, part, cpu_s, load}
    agreement: list = field(default_factory=list)
    verdicts: dict = field(default_factory=dict)  # {isa: (agrees, sentence)}
    facts: dict = field(default_factory=dict)

    def note(self, number, isa, contestant, part, cpu_s):
        row = {"round": number, "isa": isa, "contestant": contestant, "part": part, "cpu_s": cpu_s}
        self.rounds.append(row | {"load": round(os.getloadavg()[0], 2)})

    def seconds(self, contestant, part, isa=""):
        """CPU seconds of every round."""
        wanted = (contestant, part, isa)
        return [r["cpu_s"] for r in self.rounds if (r["contestant"], r["part"], r["isa"]) == wanted]


def say(text):
    print(text, file=sys.stderr, flush=True)


def sweep(one, subject):
    """Runs all configurations of the contest once: {name: Run}."""
    return {name: one.replay(name, engine.settings(subject, name)) for name in engine.contest_configs()}


def alone(one, subject, method):
    """CPU seconds of one method in every configuration that has it, the exact reference included."""
    seconds = 0.0
    for name, config in engine.contest_configs().items():
        chosen = [m for m in config["methods"] if engine.method_name(m) == method]
        if chosen:
            overrides = [*engine.settings(subject, name), f"methods={json.dumps(chosen)}"]
            seconds += one.replay(name, overrides).spent.cpu_s
    return seconds


def method_names():
    """Names of the methods of all configurations, in their order."""
    configs = engine.contest_configs().values()
    return list(dict.fromkeys(engine.method_name(m) for c in configs for m in c["methods"]))


def last_query_rows(one, subject):
    """Replays streaming methods again with only the last queries: equal caches, other rows; not timed."""
    configs = engine.contest_configs()
    cut_last = {engine.method_name(m) for m in configs.get(engine.LAST, {"methods": []})["methods"]}
    rows = []
    for name, config in configs.items():
        chosen = [m for m in config["methods"] if engine.method_name(m) not in cut_last]
        if name == engine.LAST or not chosen:
            continue
        overrides = [*engine.settings(subject, name), f"methods={json.dumps(chosen)}"]
        rows += one.replay(name, [*overrides, f"replay.queries={{last: {subject.last}}}"]).rows
    return rows


def note_engine(contest, number, isa, runs):
    contest.note(number, isa, "engine", TOTAL, sum(run.spent.cpu_s for run in runs.values()))
    for name, run in runs.items():
        contest.note(number, isa, "engine", f"config {name}", run.spent.cpu_s)
    rows = [row for run in runs.values() for row in run.rows]
    for method, seconds in engine.select_and_attend_s(rows).items():
        contest.note(number, isa, "engine", f"caches {method}", seconds)


def isa_of(runs):
    """The instruction set that the engine chose."""
    return next(iter(runs.values())).isa


def plain(isa):
    """One spelling for AVX-512 and avx512."""
    return re.sub(r"[^a-z0-9]", "", isa.lower())


def engine_round(contest, number, one, subject, with_alone):
    """Runs one round of one instruction set. Returns its runs, or None if the machine lacks the set."""
    try:
        runs = sweep(one, subject)
    except Lack as lack:
        if not one.isa or "KVREPLAY_ISA" not in str(lack):
            raise
        say(f"instruction set {one.isa} is left out: {lack}")
        return None
    isa = isa_of(runs)
    if one.isa and plain(isa) != plain(one.isa):
        say(f"instruction set {one.isa}: the engine ran {isa} instead, so it is left out")
        return None
    note_engine(contest, number, isa, runs)
    for method in method_names() if with_alone else ():
        contest.note(number, isa, "engine", f"alone {method}", alone(one, subject, method))
    return runs


def peer_round(contest, number, options, subject):
    said = peer.call(options.peer_python, options.peer, subject)
    contest.facts["torch"] = said["torch"]
    for part, cpu_s in said["seconds"].items():
        contest.note(number, "", "peer", part, cpu_s)
    return said


def sgemm_round(contest, number, size):
    said = json.loads(child.run([sys.executable, SGEMM, size]).stdout)
    contest.facts["sgemm"] = {"size": size, "blas": said["blas"]}
    contest.note(number, "", "sgemm", str(size), said["cpu_s"])


def hold(options, subject, engines):
    """Runs all rounds: (Contest, engines that ran). `options`: rounds, peer, peer_python, sgemm, alone."""
    contest, running = Contest(), list(engines)
    for number in range(1, options.rounds + 1):
        say(f"round {number} of {options.rounds}")
        runs_of = {}
        for one in list(running):
            runs = engine_round(contest, number, one, subject, options.alone)
            if runs is None:
                running.remove(one)
            else:
                runs_of[one] = runs
        said = peer_round(contest, number, options, subject) if options.peer else None
        if options.sgemm:
            sgemm_round(contest, number, options.sgemm)
        if number == 1 and said:
            for one, runs in runs_of.items():
                check(contest, one, subject, runs, said)
    contest.facts["isas"] = list(
        dict.fromkeys(r["isa"] for r in contest.rounds if r["contestant"] == "engine")
    )
    return contest, running


def check(contest, one, subject, runs, said):
    isa = isa_of(runs)
    ours = agreement.engine_errors(runs, last_query_rows(one, subject))
    rows = agreement.compare(ours, said["errors"])
    contest.agreement += [{"isa": isa, **row} for row in rows]
    contest.verdicts[isa] = agreement.verdict(rows, subject.budgets)


def ratios(contest):
    """One row per instruction set and comparison: seconds of both sides, and the peer's over the engine's.

    `total`: everything. `config NAME`: one program of it. `alone METHOD`: runs of that method with their
    reference, beside the peer's method and exact pass. `caches METHOD`: its caches within everything, by the
    engine's own clock, beside the peer's method. A ratio is empty without a peer, or if errors disagree.
    """
    rows = []
    for isa in contest.facts["isas"]:
        parts = [TOTAL] + [f"config {name}" for name in engine.contest_configs()]
        parts += [f"{kind} {method}" for kind in ("alone", "caches") for method in method_names()]
        for part in parts:
            ours = contest.seconds("engine", part, isa)
            if ours:
                rows.append(
                    {"isa": isa, "what": part} | beside(ours, peer_seconds(contest, part), isa, contest)
                )
    return rows


def peer_seconds(contest, part):
    if part == TOTAL:
        return contest.seconds("peer", TOTAL)
    kind, _, name = part.partition(" ")
    method = contest.seconds("peer", name)
    if kind != "alone":
        return method
    return [a + b for a, b in zip(contest.seconds("peer", "exact"), method, strict=False)]


def beside(ours, theirs, isa, contest):
    row = {"engine_min_s": min(ours), "engine_median_s": statistics.median(ours)}
    if not theirs:
        return row | dict.fromkeys(("peer_min_s", "peer_median_s", "ratio", "ratio_of_medians"), "")
    row |= {"peer_min_s": min(theirs), "peer_median_s": statistics.median(theirs)}
    agrees = contest.verdicts.get(isa, (False, ""))[0]
    row["ratio"] = row["peer_min_s"] / row["engine_min_s"] if agrees else ""
    row["ratio_of_medians"] = row["peer_median_s"] / row["engine_median_s"] if agrees else ""
    return row
