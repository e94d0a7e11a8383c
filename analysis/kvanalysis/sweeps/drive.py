"""Drives an adaptive sweep: round after round until no further cell is needed, then one table of them all.

A round follows from the results of earlier rounds, so a second run arrives at the same rounds; in each, the
engine replays only missing cells.
"""

import sys

import pandas as pd
import yaml
from kvbase.command import SOME_FAILED
from kvbase.files import write_atomic

from ..budgets.replayed import INSTANCE
from ..budgets.search import MET, NOT_MET
from ..data.epsilon_csv import read_epsilon_csv
from ..data.load import load
from ..errors import SweepError
from ..figures.alone import alone
from ..stats.intervals import UNIT
from ..stats.words import count
from .products import write_epsilon, write_results
from .rounds import round_folder, write_round
from .wanted import next_wanted, unanswered

IDENTITY = [*UNIT, *INSTANCE, "budget_tokens", "model", "n_prefill", "status"]
REFUSED = 2  # exit code of the engine: the configuration is wrong


def run_sweep(config, out, engine, say=lambda line: print(line, file=sys.stderr)):
    """Replays the rounds of `config` into OUT/round-<k> and yields the paths of the files beside them:
    results.csv, results.meta.json and, with epsilons, epsilon.csv. `say` is called with a line for each round
    and one at the end.

    Raises SweepError (if cells failed: exit code 1, after everything is written) and ResultsError.
    """
    with alone(out, "sweeps"):
        _claim_folder(config, out)
        folders, frame, finished = _rounds(config, out, engine, say)
        yield from write_results(out, folders, config.section())
        if config.epsilons:
            yield write_epsilon(out, frame, config.measure, config.epsilons)
            _report_missing_values(config, frame, say)
        searches = _searches(out) if config.epsilons else ""
        say(f"done: {searches}{count(len(folders), 'round')}, {len(frame)} cells")
        if not finished:
            failed = int((frame["status"] != "ok").sum())
            raise SweepError(f"{failed} cells failed: see `error` in {out / 'results.csv'}", SOME_FAILED)


def _rounds(config, out, engine, say):
    """(folders, rows of all rounds, whether every cell finished)."""
    first = round_folder(out, 0)
    budgets = config.budgets.tokens()
    write_round(first, config.text(budgets))
    say(f"round 0: {len(budgets)} budgets, {', '.join(map(str, budgets))}")
    try:
        finished = engine.replay(first, only=False)
    except SweepError as problem:
        if problem.exit_code != REFUSED:
            raise
        raise _with_remedy(problem, config) from problem
    folders, parts = [first], [_rows(config, first)]
    while True:
        frame = pd.concat(parts, ignore_index=True)
        wanted = next_wanted(config, frame, len(folders))
        if wanted.rows.empty:
            return folders, frame, finished
        say(f"round {len(folders)}: {wanted.line()}")
        folders.append(round_folder(out, len(folders)))
        part, whole = _round(config, folders[-1], wanted.rows, engine)
        parts.append(part)
        finished = finished and whole


def _with_remedy(problem, config):
    """Adds that an error in the first round must be fixed in the user's file, not in the round's."""
    mend = f"fix this file; if a method needs more than {config.budgets.first} tokens"
    return SweepError(f"{problem}\n{config.path}: {mend}, raise sweep.budgets.first", problem.exit_code)


def _searches(out):
    """Text such as "301 searches met, 179 not met; ". Methods without a budget have no searches."""
    status = read_epsilon_csv(out / "epsilon.csv")["status"]
    return f"{(status == MET).sum()} searches met, {(status == NOT_MET).sum()} not met; "


def _round(config, folder, wanted, engine):
    """Replays one further round; returns (rows, whether every cell finished)."""
    write_round(folder, config.text(sorted(wanted["budget_tokens"].unique())), wanted)
    whole = engine.replay(folder, only=True)
    rows = _rows(config, folder)
    lacking = unanswered(wanted, rows)
    if len(lacking):
        # Otherwise the next round would want the same cells again, without end.
        raise SweepError(f"{folder}: {len(lacking)} of {len(wanted)} requested combinations have no result")
    return rows, whole


def _rows(config, folder):
    return load(folder)[[*IDENTITY, config.measure]]


def _claim_folder(config, out):
    """Writes OUT/sweep.yaml; refuses a folder with rounds of another configuration, or with a plain run."""
    if (out / "shards").exists():
        raise SweepError(f"{out}: holds a plain run; choose another -o")
    file, asked = out / "sweep.yaml", config.question()
    # A configuration that the engine refused has left no cells that another one could clash with.
    begun = file.is_file() and (round_folder(out, 0) / "shards").exists()
    if begun and _settings(file.read_text(encoding="utf-8")) != _settings(asked):
        raise SweepError(f"{out}: holds a sweep of another configuration ({file}); choose another -o")
    write_atomic(file, asked)


def _settings(text):
    """A configuration without the paths of its traces: moving it does not change it."""
    return {key: value for key, value in yaml.safe_load(text).items() if key != "traces"}


def _report_missing_values(config, frame, say):
    """Reports methods to which the measure does not apply, because no row of the table says why they are
    missing."""
    ok = frame[frame["status"] == "ok"]
    empty = ok.groupby("method", sort=False)[config.measure].count()
    names = ", ".join(empty.index[empty == 0])
    if names:
        say(f"{config.measure} has no value for {names}: is it in `metrics`, and does it apply to them?")
