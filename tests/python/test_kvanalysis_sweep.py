"""Adaptive sweeps: the rules by hand, mistakes in the section, and rounds with a fake engine."""

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from caught_figures import caught_figures, pictures
from fake_engine import calls, fake_engine, in_process_engine
from kvanalysis import load
from kvanalysis.budgets.bends import bends, refinements, refining_budgets
from kvanalysis.budgets.replayed import common_curves, log_spaced, midpoint, replayed
from kvanalysis.budgets.search import COLUMNS as EPSILON_COLUMNS
from kvanalysis.budgets.search import bracket, epsilon_table, open_searches, over_heads, probe
from kvanalysis.errors import SweepError
from kvanalysis.figures.alone import alone
from kvanalysis.plots.budgets import budget_for_epsilon
from kvanalysis.sweeps.config import read_sweep_config
from kvreplay.program import main
from kvreplay_cli import BINARY, ROOMS, ROOT, kvreplay, synth
from test_kvanalysis_fake import COLUMNS, failed_row, fake_row, write_results

MEASURE = "rel_err_out_mean"
TABLE = [*COLUMNS, "given", "rel_err_prefix_mean"]
NAN = float("nan")


@pytest.mark.parametrize(
    ("asked", "budgets"),
    [
        ((16, 512, 6), [16, 32, 64, 128, 256, 512]),
        ((64, 100, 3), [64, 80, 100]),
        ((1, 4, 6), [1, 2, 3, 4]),  # 1, 1.32, 1.74, 2.30, 3.03, 4
        ((10, 12, 2), [10, 12]),
    ],
)
def test_budgets_have_one_ratio_and_are_whole_and_unique(asked, budgets):
    assert log_spaced(*asked) == budgets


@pytest.mark.parametrize(
    ("low", "high", "middle"), [(16, 64, 32), (64, 128, 91), (7, 8, None), (6, 8, 7), (1, 3, 2), (1, 100, 10)]
)
def test_the_midpoint_is_geometric_and_strictly_between(low, high, middle):
    assert midpoint(low, high) == middle


def test_a_power_law_does_not_bend():
    budgets = np.array([16, 40, 64, 300])
    assert bends(budgets, 3.0 * budgets**-0.7, 1e-9) == []


def test_a_budget_is_a_bend_if_it_is_off_the_line_between_its_neighbours():
    # ln(error) at ln(2), a quarter of the way from ln(1) to ln(16): the line is at -1.
    budgets, errors = [1, 2, 16], np.exp([0.0, -0.9, -4.0])
    assert bends(budgets, errors, 0.099) == [1]
    assert bends(budgets, errors, 0.101) == []
    # Deviations count above and below the line; the ends of the curve are not checked.
    assert bends([1, 2, 4, 8], np.exp([0.0, 0.2, 0.0, 5.0]), 0.15) == [1, 2]


@pytest.mark.parametrize("errors", [[0.4, 0.0, 0.1], [0.0, 0.4, 0.1], [0.4, 0.1, 0.0], [0.4, NAN, 0.1]])
def test_an_error_of_zero_and_its_neighbours_are_not_checked_for_bends(errors):
    assert bends([16, 32, 64], errors, 0.05) == []


def test_both_intervals_beside_a_bend_are_cut_and_an_interval_between_two_bends_once():
    assert refining_budgets([16, 64, 256], [1, 0.1, 0.09], 0.05) == [32, 128]
    assert refining_budgets([16, 64, 256, 1024], [1, 0.1, 1, 0.1], 0.05) == [32, 128, 512]


@pytest.mark.parametrize(
    ("budgets", "middles"),
    [
        ([16, 17, 32], [23]),  # neighbours
        ([20, 22, 88], [44]),  # 22 / 21 is less than 1.05
        ([40, 45, 180], [42, 90]),  # 42 / 40 is 1.05
    ],
)
def test_budgets_differ_by_at_least_a_twentieth(budgets, middles):
    assert refining_budgets(budgets, [1, 0.1, 0.09], 0.05) == middles


@pytest.mark.parametrize(
    ("errors", "epsilon", "meets", "misses", "smaller_meets"),
    [
        ([0.4, 0.2, 0.1, 0.05], 0.1, 2, 1, 0),
        ([0.4, 0.2, 0.1, 0.05], 0.4, 0, None, 0),  # even the smallest budget meets epsilon
        ([0.4, 0.2, 0.1, 0.05], 0.01, None, 3, 0),  # none does
        (
            [0.4, 0.05, 0.2, 0.05, 0.03],
            0.1,
            3,
            2,
            1,
        ),  # a larger budget misses again, so the smaller one does not count
        ([0.4, 0.05, 0.2, 0.05, 0.3], 0.1, None, 4, 2),  # the largest misses
        ([0.4, NAN, 0.05, 0.05], 0.1, 2, 1, 0),  # a failure misses
        ([0.4, 0.05, NAN], 0.1, None, 2, 1),
        ([0.4, 0.0, 0.0], 1e-12, 1, 0, 0),
    ],
)
def test_the_bracket_is_the_last_crossing(errors, epsilon, meets, misses, smaller_meets):
    found = bracket(errors, epsilon)
    assert (found.meets, found.misses, found.smaller_meets) == (meets, misses, smaller_meets)


@pytest.mark.parametrize(
    ("budgets", "errors", "resolution", "tried"),
    [
        ([64, 128, 256], [0.4, 0.05, 0.01], 1.05, 91),
        ([64, 128, 256], [0.4, 0.4, 0.05], 1.05, 181),
        (
            [64, 128, 256],
            [0.05, 0.4, 0.05],
            1.05,
            181,
        ),  # the smallest budget meets epsilon, a larger one does not
        ([64, 128, 256], [0.05, 0.05, 0.05], 1.05, None),  # all budgets meet epsilon
        ([64, 128, 256], [0.4, 0.05, 0.4], 1.05, None),  # the largest misses
        ([64, 128, 256], [0.4, 0.4, 0.4], 1.05, None),  # none does
        ([100, 105], [0.4, 0.05], 1.05, None),
        ([100, 106], [0.4, 0.05], 1.05, 103),
        ([7, 8], [0.4, 0.05], 1.0, None),
        ([100, 102], [0.4, 0.05], 1.0, 101),
    ],
)
def test_a_search_tries_the_midpoint_of_its_bracket_until_the_resolution(budgets, errors, resolution, tried):
    assert probe(budgets, errors, 0.1, resolution) == tried


def frame_of(folder, rows):
    return load(write_results(folder, rows, columns=TABLE))


def table_of(folder, rows):
    return replayed(frame_of(folder, rows), MEASURE)


def test_seeds_are_averaged_and_one_that_failed_leaves_no_mean(tmp_path):
    rows = [fake_row("uniform", budget=64, seed=seed, rel_err=error) for seed, error in ((0, 0.1), (1, 0.3))]
    rows += [
        fake_row("uniform", budget=128, seed=0, rel_err=0.1),
        failed_row(method="uniform", budget=128, seed=1),
    ]
    table = table_of(tmp_path, rows)
    assert table["error"].round(9).fillna(-1).tolist() == [0.2, -1]
    assert table["n_seeds"].tolist() == [2, 2]


def curve_rows(errors, head, **place):
    return [fake_row(budget=b, rel_err=e, kv_head=head, **place) for b, e in errors.items()]


def test_the_mean_curve_has_the_same_heads_at_every_budget(tmp_path):
    rows = curve_rows({16: 0.4, 64: 0.2, 128: 0.1}, 0) + curve_rows({16: 0.2, 64: 0.1}, 1)
    rows += [*curve_rows({16: 9.0}, 2), failed_row(kv_head=2, budget=64)]
    [(instance, curve)] = common_curves(table_of(tmp_path, rows)).items()
    assert instance == ("h2o", "{}")
    # 128 was replayed for one head only; head 2 failed at 64.
    assert curve.round(9).to_dict() == {16: 0.3, 64: 0.15}


def test_every_instance_of_a_method_is_refined_by_its_own_curve(tmp_path):
    bent, straight = {16: 1.0, 64: 0.1, 256: 0.09}, {16: 0.4, 64: 0.2, 256: 0.1}
    rows = [
        fake_row("h2o", {"sinks": sinks}, budget, rel_err=error)
        for sinks, errors in ((0, bent), (4, straight))
        for budget, error in errors.items()
    ]
    assert refinements(table_of(tmp_path, rows), 0.05) == {("h2o", '{"sinks": 0}'): [32, 128]}


def test_every_head_and_epsilon_has_a_separate_search(tmp_path):
    rows = curve_rows({16: 0.4, 64: 0.2, 256: 0.1}, 0) + curve_rows({16: 0.2, 64: 0.1, 256: 0.05}, 1)
    found = open_searches(table_of(tmp_path, rows), (0.1, 0.2), 1.05)
    said = found[["kv_head", "epsilon", "budget_tokens"]].values.tolist()
    assert said == [[0, 0.1, 128], [0, 0.2, 32], [1, 0.1, 32]]  # head 1 meets 0.2 at its smallest budget


def answers(folder, rows, epsilons, *names):
    table = epsilon_table(frame_of(folder, rows), MEASURE, epsilons)
    return table[list(names)].astype(object).where(table[list(names)].notna(), None).values.tolist()


def test_the_table_has_the_budget_from_which_all_larger_ones_meet(tmp_path):
    names = ("status", "budget_tokens", "error", "budget_below", "error_below", "smaller_meets")
    rows = curve_rows({16: 0.4, 64: 0.1, 128: 0.3, 256: 0.05}, 0)
    assert answers(tmp_path, rows, [0.4, 0.1, 0.01], *names) == [
        ["not_met", None, None, 256, 0.05, 0],
        ["met", 256, 0.05, 128, 0.3, 1],
        ["met", 16, 0.4, None, None, 0],
    ]
    assert answers(tmp_path, rows, [0.1], "share_of_prompt", "n_seeds") == [[256 / 768, 1]]


def test_the_table_distinguishes_missing_budgets_missing_values_and_failures(tmp_path):
    rows = [fake_row("exact", budget="", rel_err=0.0), fake_row("topp", budget=64, **{MEASURE: ""})]
    rows += [fake_row("h2o", budget=64, rel_err=0.05), failed_row(method="h2o", budget=128)]
    names = ("method", "status", "budget_tokens", "error", "smaller_meets")
    assert answers(tmp_path, rows, [0.1], *names) == [
        ["exact", "no_budget", None, 0.0, 0],
        ["topp", "no_value", None, None, 0],
        ["h2o", "not_met", None, None, 1],
    ]


CONFIG = """\
schema: 1
traces: [t.h5]
methods: [exact, h2o, {name: uniform, window: 3}]
seeds: {first: 0, count: 2}
sweep:
  budgets: {first: 16, last: 512, count: 6}
"""
SEARCH = CONFIG + "  refine: {tolerance: 0.05, rounds: 2}\n  epsilon: [0.1, 0.05]\n"
# h2o has a step at 50, and head 1 needs twice the budget; two seeds of uniform average to 3.5 / b.
FORMULAS = {"exact": 0, "h2o": "4 / b * (1 + head) + (0.5 if b < 50 else 0)", "uniform": "(3 + seed) / b"}


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """Replaces the program by an engine with FORMULAS; returns its folder."""

    def made(formulas=FORMULAS, **rules):
        in_process_engine(monkeypatch, tmp_path / "engine", formulas, TABLE, **rules)
        return tmp_path / "engine"

    made()
    return made


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The fake engine as a separate program, named by KVREPLAY."""

    def made(**rules):
        monkeypatch.setenv("KVREPLAY", str(fake_engine(tmp_path / "engine", FORMULAS, TABLE, **rules)))
        return tmp_path / "engine"

    return made


def written(folder, text=SEARCH):
    path = folder / "sweep.yaml"
    path.write_text(text)
    return path


def sweep(folder, *words, text=SEARCH):
    return main(["refine", str(written(folder, text)), "-o", str(folder / "out"), *words])


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """(folder of a finished sweep by SEARCH, its messages); tests must not change it."""
    folder = tmp_path_factory.mktemp("swept")
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(io.StringIO()) as said:
        in_process_engine(patch, folder / "engine", FORMULAS, TABLE)
        assert sweep(folder) == 0
    return folder / "out", said.getvalue()


@pytest.fixture
def copy_of_swept(swept, tmp_path):
    return Path(shutil.copytree(swept[0], tmp_path / "out"))


def refusal(folder, text, overrides=()):
    with pytest.raises(SweepError) as caught:
        read_sweep_config(written(folder, text), overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("  epsilon: 0.1", ":6:3: sweep.budgets: is missing: write budgets: {first: 16, last: 512"),
        ("  budgets: [16]", ":6:12: sweep.budgets: write a map: budgets: {first: 16"),
        ("  budgets: {first: 16, last: 64}", ":6:12: sweep.budgets.count: is missing: budgets: {first"),
        ("  budgets: {first: 0, last: 64, count: 3}", ":6:20: sweep.budgets.first: '0' is too few: write"),
        ("  budgets: {first: 64, last: 64, count: 3}", ":6:30: sweep.budgets.last: write more tokens"),
        ("  budgets: {first: 16, last: 6.5, count: 3}", "sweep.budgets.last: '6.5' is not a whole number: w"),
        ("  budgets: {first: 16, last: 64, count: 1}", "sweep.budgets.count: '1' is too few: write a"),
        ("  budgets: {first: 16, last: 64, count: 1001}", "'1001' is too many: write a whole number of b"),
        ("  budgets: {first: [16], last: 64, count: 3}", "first: a list or map is not a whole number: write"),
        ("  budgets: {first: 16, last: 64, count: 3, step: 2}", "sweep.budgets.step: unknown key: remove"),
        ("  measure: rel_err_out", "sweep.measure: no measure 'rel_err_out' (did you mean rel_err_out_m"),
        ("  measure: [a]", "sweep.measure: no measure '': use one from `kvreplay list metrics`"),
        ("  measure: kept_mass_mean", "sweep.measure: kept_mass_mean is better the larger it is"),
        ("  refine: {tolerance: 0.05}", "sweep.refine.rounds: is missing: refine: {tolerance: 0.05, ro"),
        ("  refine: yes", "sweep.refine: write a map: refine: {tolerance: 0.05, rounds: 3}"),
        ("  refine: {tolerance: 0, rounds: 3}", "sweep.refine.tolerance: '0' is too small: write a number a"),
        ("  refine: {tolerance: 0.1, rounds: -1}", "sweep.refine.rounds: '-1' is too few: write a whole num"),
        ("  epsilon: []", "sweep.epsilon: is an empty list: write [0.05, 0.1], or remove it"),
        ("  epsilon: [0.1, low]", "sweep.epsilon: 'low' is not a number: write one above 0"),
        ("  epsilon: [.nan]", "sweep.epsilon: '.nan' is not a number: write one above 0"),
        ("  epsilon: [0.1, 1e-1]", "sweep.epsilon: 0.1 is listed twice: keep one of them"),
        ("  resolution: 0.9", "sweep.resolution: '0.9' is too small: write a number from 1"),
        ("  resolutoin: 1.1", "sweep.resolutoin: unknown key: remove it, or use one of budgets, me"),
        ("  resolution: 1.1\n  resolution: 1.2", ":7:3: sweep.resolution: occurs twice: keep one of them"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_section_is_reported_with_file_place_key_and_remedy(tmp_path, engine, section, says):
    head = CONFIG.partition("  budgets")[0]
    budgets = "" if "budgets" in section or section[-3:] == "0.1" else "\n" + CONFIG.splitlines()[-1]
    said = refusal(tmp_path, head + section + budgets)
    assert says in said
    assert said.startswith(str(tmp_path / "sweep.yaml:"))
    assert "\n" not in said


def test_all_mistakes_are_reported_together_and_nothing_runs(tmp_path, engine, capsys):
    text = CONFIG.replace("first: 16", "first: x") + "  epsilon: 0\nbudget: {tokens: [64]}\n"
    assert sweep(tmp_path, "-s", "sweep.resolution=0", text=text) == 2
    said = capsys.readouterr().err.splitlines()
    keys = [
        "budget: sweep.budgets sets",
        "sweep.budgets.first: 'x'",
        "sweep.epsilon: '0'",
        "sweep.resolution: '0'",
    ]
    assert len(said) == len(keys)
    assert all(key in line for key, line in zip(keys, said, strict=True))
    assert all(line.startswith("kvreplay: error: ") for line in said)
    assert not (tmp_path / "out").exists()


def test_a_refined_sweep_needs_a_point_between_two_others(tmp_path, engine):
    text = CONFIG.replace("count: 6", "count: 2")
    read_sweep_config(written(tmp_path, text))
    assert "sweep.budgets.count" in refusal(tmp_path, text + "  refine: {tolerance: 0.05, rounds: 1}\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("schema: 1\nmethods: [h2o]\n", "has no section sweep: add sweep: {budgets: {first: 16"),
        ("[1, 2]", "a configuration is a map"),
        ("a: [", "cannot be read"),
        ("", "a configuration is a map"),
        ("sweep: &s {budgets: *s}\n", "sweep.budgets"),
        ("traces: &t [*t]\nsweep: {}\n", "nested too deeply"),
    ],
)
def test_a_file_that_is_no_sweep_is_refused_in_one_line(tmp_path, engine, text, says):
    assert says in refusal(tmp_path, text).splitlines()[0]


def test_the_engine_reads_values_as_they_were_written_and_absolute_paths(tmp_path, engine):
    methods = "[{name: h2o, recent_frac: 1e-1, variant: 'on'}, {name: uniform, uniforms: u.h5}, \
{name: window, allocator: [ada, 'file:a.csv']}]"
    config = read_sweep_config(written(tmp_path, CONFIG.replace("[exact", f"{methods} # [exact")))
    text = config.text([np.int64(16), 32])
    assert "recent_frac: 1e-1, variant: 'on'" in text
    held = yaml.safe_load(text)
    assert "sweep" not in held
    assert held["budget"] == {"tokens": [16, 32]}
    assert held["traces"] == [str(tmp_path / "t.h5")]
    assert held["methods"][1]["uniforms"] == str(tmp_path / "u.h5")
    assert held["methods"][2]["allocator"] == ["ada", f"file:{tmp_path / 'a.csv'}"]


def test_the_command_line_overrides_values_and_traces(tmp_path, engine):
    text = CONFIG.replace("{name: uniform, window: 3}", "&u {name: uniform, gqa.level: kv}, *u")
    given = ["methods.1.window=16", "methods.2.gqa.level=layer", "sweep.epsilon=[1e-1]", "replay.prefill=900"]
    config = read_sweep_config(written(tmp_path, text), given, [tmp_path / "other.h5"])
    held = yaml.safe_load(config.text([16]))
    assert held["methods"][1] == {"name": "h2o", "window": 16}
    assert [method["gqa.level"] for method in held["methods"][2:]] == ["layer", "kv"]
    assert held["replay"] == {"prefill": 900}
    assert held["traces"] == [str(tmp_path / "other.h5")]
    assert config.epsilons == (0.1,)


def test_the_page_of_sweeps_shows_a_configuration_and_every_column(tmp_path, engine):
    page = (ROOT / "docs/adaptive_sweeps.md").read_text()
    config = read_sweep_config(written(tmp_path, re.search(r"```yaml\n(.*?)```", page, re.S)[1]))
    assert config.budgets.tokens() == [16, 32, 64, 128, 256, 512]
    assert (config.refine.rounds, config.epsilons, config.resolution) == (3, (0.05, 0.1, 0.2), 1.05)
    columns = re.findall(r"`(\w+)`", page.partition("column of `epsilon.csv`")[2].partition("## ")[0])
    assert set(EPSILON_COLUMNS) <= set(columns)


def test_the_page_of_sweeps_names_the_columns_that_load_adds_and_averages_the_same_heads(swept):
    frame = load(swept[0])
    pandas = (ROOT / "docs/adaptive_sweeps.md").read_text().partition("## Reading results with pandas")[2]
    added = [name for row in re.findall(r"^\| (`.*?) \|", pandas, re.M) for name in re.findall(r"\w+", row)]
    assert [name for name in frame if name not in TABLE] == added
    example = re.findall(r"```python\n(.*?)```", pandas, re.S)[1]
    held = {"frame": frame}
    exec(example, held)
    n_heads = frame.groupby(["method", "budget_tokens"])["kv_head"].nunique()
    assert (
        n_heads["h2o", 181] == 1
    )  # only tried by a search: this mean covers other heads than its neighbours
    kept = [b for (method, b), n in n_heads.items() if method == "h2o" and n == 2]
    assert list(held["means"]["h2o"].index) == kept
    assert held["means"]["h2o"][64] == pytest.approx(6 / 64)


@pytest.mark.parametrize("path", sorted((ROOT / "configs/sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_configurations_of_the_repository_are_valid(path, tmp_path, monkeypatch):
    monkeypatch.setenv("KVREPLAY", str(BINARY))
    config = read_sweep_config(path)
    (tmp_path / "config.yaml").write_text(config.text(config.budgets.tokens()))
    done = kvreplay("validate", tmp_path / "config.yaml")
    assert done.returncode == 0, done.stderr
    assert kvreplay("validate", path, "-s", "budget.tokens=[64]").returncode == 0


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("seeds.count", "write KEY=VALUE"),
        ("seeds.count=[", "not valid YAML"),
        ("methods.7.window=1", 'methods has 3 entries, numbered from 0; there is no "7"'),
        ("schema.x=1", 'schema is a single value and has no "x"'),
    ],
)
def test_an_override_that_leads_nowhere_is_refused(tmp_path, engine, assignment, says):
    assert says in refusal(tmp_path, CONFIG, [assignment])


def rows_of(file):
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def wanted_in(folder):
    return [
        (row["method"], int(row["kv_head"]), int(row["budget_tokens"]))
        for row in rows_of(folder / "only.csv")
    ]


def test_without_refinement_one_round_replays_everything(tmp_path, program, capsys):
    made = program()
    assert sweep(tmp_path, text=CONFIG) == 0
    out = tmp_path / "out"
    [words] = calls(made)
    assert words[:4] == ["run", str(out / "round-0/config.yaml"), "-o", str(out / "round-0")]
    assert "--only" not in words
    said = capsys.readouterr()
    assert said.out == f"{out / 'results.csv'}\n{out / 'results.meta.json'}\n"
    assert said.err.splitlines() == [
        "round 0: 6 budgets, 16, 32, 64, 128, 256, 512",
        "done: 1 round, 38 cells",  # 2 cells of exact, 12 of h2o, 24 of uniform's two seeds
    ]
    assert (out / "results.csv").read_text() == (out / "round-0/results.csv").read_text()


def test_each_round_replays_exactly_the_midpoints_of_bends_and_brackets(swept):
    out, said = swept
    # h2o's mean over heads is 6/b, plus 0.5 below 50: it bends at 32 and 64. 0.1 is crossed between 32 and 64
    # for head 0, between 64 and 128 for head 1; 0.05 one interval later. uniform's 3.5/b crosses between 32
    # and 64, and between 64 and 128.
    bent = [("h2o", head, budget) for budget in (23, 45, 91) for head in (0, 1)]
    searched = [("h2o", 1, 181), *(("uniform", head, budget) for head in (0, 1) for budget in (45, 91))]
    assert sorted(wanted_in(out / "round-1")) == sorted(bent + searched)
    header = (out / "round-1/only.csv").read_text().splitlines()[0]
    assert header == "trace_id,prompt,layer,kv_head,method,given,budget_tokens"
    assert {row["given"] for row in rows_of(out / "round-1/only.csv")} == {"{}", '{"window": 3}'}
    config = yaml.safe_load((out / "round-1/config.yaml").read_text())
    assert config["budget"]["tokens"] == [23, 45, 91, 181]
    lines = said.splitlines()
    # Cells include seeds: 7 of h2o, twice 4 of uniform.
    assert lines[1] == "round 1: 15 cells, 3 budgets of h2o refined, 8 searches open"
    assert "refined" in lines[2]
    assert all("refined" not in line for line in lines[3:])
    rounds, cells = len(list(out.glob("round-*"))), len(load(out))
    assert lines[-1] == f"done: 8 searches met, 0 not met; {rounds} rounds, {cells} cells"


def test_the_search_ends_at_the_resolution_and_matches_the_formula(swept):
    answers = rows_of(swept[0] / "epsilon.csv")
    found = {
        (row["method"], row["kv_head"], row["epsilon"]): row for row in answers if row["status"] == "met"
    }
    # The step at 50 tokens keeps head 0 of h2o above 0.1 up to 50, where the error drops to 4 / 50.
    needed = {("h2o", "0", "0.1"): 50, ("h2o", "0", "0.05"): 80, ("h2o", "1", "0.1"): 80,
              ("h2o", "1", "0.05"): 160, ("uniform", "0", "0.1"): 35, ("uniform", "0", "0.05"): 70,
              ("uniform", "1", "0.1"): 35, ("uniform", "1", "0.05"): 70}  # fmt: skip
    assert set(found) == set(needed)
    for key, least in needed.items():
        low, high = int(found[key]["budget_below"]), int(found[key]["budget_tokens"])
        assert low < least <= high
        assert high <= 1.05 * low or high - low == 1
        assert float(found[key]["error"]) <= float(key[2]) < float(found[key]["error_below"])
        assert float(found[key]["share_of_prompt"]) == pytest.approx(high / 768, rel=1e-5)
    assert {row["n_seeds"] for row in answers if row["method"] == "uniform"} == {"2"}


def test_measures_of_the_table_have_six_digits_at_most_and_epsilons_all_of_theirs(tmp_path, engine):
    assert sweep(tmp_path, text=CONFIG + "  epsilon: [0.12345678]\n") == 0
    rows = rows_of(tmp_path / "out/epsilon.csv")
    assert {row["epsilon"] for row in rows} == {"0.12345678"}
    names = ("error", "error_below", "share_of_prompt")
    measures = [row[name] for row in rows for name in names if row[name]]
    assert len(measures) > 6
    assert all(len(text.partition("e")[0].replace(".", "").lstrip("0")) <= 6 for text in measures)


def test_the_first_budget_is_not_blamed_for_other_refusals(tmp_path, engine, capfd):
    engine(codes={"round-1": 2})
    assert sweep(tmp_path) == 2
    assert "sweep.budgets.first" not in capfd.readouterr().err
    (tmp_path / "x").mkdir()
    engine(codes={"round-0": 3})
    assert sweep(tmp_path / "x") == 3
    assert "sweep.budgets.first" not in capfd.readouterr().err


def test_methods_without_a_budget_are_replayed_once(swept):
    rounds = sorted(swept[0].glob("round-*"))
    assert len(rounds) > 2
    assert [sum(row["method"] == "exact" for row in rows_of(r / "results.csv")) for r in rounds][1:] == [
        0
    ] * (len(rounds) - 1)
    answers = [row for row in rows_of(swept[0] / "epsilon.csv") if row["method"] == "exact"]
    assert {(row["status"], row["budget_tokens"], row["error"]) for row in answers} == {
        ("no_budget", "", "0.0")
    }


def test_the_table_has_the_rows_of_all_rounds_as_they_stand_under_one_header(swept):
    out = swept[0]
    rounds = [out / f"round-{k}" for k in range(len(list(out.glob("round-*"))))]
    texts = [(folder / "results.csv").read_text().partition("\n") for folder in rounds]
    assert (out / "results.csv").read_text() == texts[0][0] + "\n" + "".join(rows for _, _, rows in texts)
    meta = json.loads((out / "results.meta.json").read_text())
    assert [each["folder"] for each in meta["rounds"]] == [folder.name for folder in rounds]
    assert meta["cells"]["ok"] == sum(each["cells"]["ok"] for each in meta["rounds"]) == len(load(out))
    assert meta["sweep"]["epsilon"] == [0.05, 0.1]
    assert load(out).attrs["folders"] == [str(out), *map(str, rounds)]
    assert [path.name for path in out.rglob("*.tmp")] == []


def test_running_again_repeats_the_same_rounds(tmp_path, engine, copy_of_swept):
    files = [*sorted((tmp_path / "out").rglob("only.csv")), tmp_path / "out/epsilon.csv"]
    before = [file.read_bytes() for file in files]
    assert sweep(tmp_path) == 0
    assert [file.read_bytes() for file in files] == before
    assert sorted((tmp_path / "out").rglob("only.csv")) == files[:-1]


@pytest.mark.parametrize("code", [130, 75])
def test_a_stop_in_a_round_returns_its_code_and_a_rerun_resumes(tmp_path, engine, code, capfd):
    engine(codes={"round-2": code})
    assert sweep(tmp_path) == code
    said = capfd.readouterr().err
    assert "asked to stop" in said
    assert "round-2: stopped; run again to continue" in said
    assert not (tmp_path / "out/results.csv").exists()
    engine()
    assert sweep(tmp_path) == 0
    assert (tmp_path / "out/epsilon.csv").is_file()


def test_a_refusal_by_the_engine_ends_the_sweep_with_its_code_and_message(tmp_path, program, capfd):
    program(codes={"round-0": 2})
    assert sweep(tmp_path) == 2
    said = capfd.readouterr().err
    assert "asked to stop" in said
    assert "round-0: not replayed, the engine ended with exit code 2" in said
    mend = said.splitlines()[-1]
    assert mend.startswith(f"kvreplay: error: {tmp_path / 'sweep.yaml'}: ")
    assert mend.endswith("if a method needs more than 16 tokens, raise sweep.budgets.first")
    program()
    assert sweep(tmp_path, text=CONFIG.replace("first: 16", "first: 64")) == 0


def test_cells_that_fail_are_misses_and_the_sweep_ends_with_code_1_and_all_its_files(
    tmp_path, engine, capsys
):
    engine(fails=[("uniform", 64), ("uniform", 91)])
    text = CONFIG + "  epsilon: [0.1]\n"
    assert sweep(tmp_path, text=text) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[-2].startswith("done: 4 searches met, 0 not met; ")
    assert "8 cells failed" in said[-1]
    [row, _] = [row for row in rows_of(tmp_path / "out/epsilon.csv") if row["method"] == "uniform"]
    # 3.5 / 64 would meet epsilon; 91, between 64 and 128, is tried and fails, too, and the search goes on
    # above.
    assert (int(row["budget_tokens"]), row["error_below"]) == (95, "")
    assert row["smaller_meets"] == "0"


def test_a_cell_that_fails_in_a_later_round_gives_exit_code_1(tmp_path, engine, capsys):
    engine(fails=[("uniform", 45)])
    assert sweep(tmp_path, text=CONFIG + "  epsilon: [0.1]\n") == 1
    assert "4 cells failed" in capsys.readouterr().err


def test_a_wanted_cell_without_a_result_ends_the_sweep(tmp_path, engine, capsys):
    engine(loses=[("uniform", 45)])
    assert sweep(tmp_path) == 2
    assert "round-1: 2 of 11 requested combinations have no result" in capsys.readouterr().err


def test_a_measure_that_does_not_apply_is_reported(tmp_path, engine, capsys):
    text = CONFIG + "  measure: rel_err_prefix_mean\n  epsilon: 0.1\n"
    assert sweep(tmp_path, text=text) == 0
    assert "rel_err_prefix_mean has no value for exact, h2o, uniform" in capsys.readouterr().err
    assert {row["status"] for row in rows_of(tmp_path / "out/epsilon.csv")} == {"no_budget", "no_value"}


def test_a_curve_that_is_not_monotone_is_searched_at_its_last_crossing(tmp_path, engine):
    engine({"exact": 0, "uniform": "4 / b", "h2o": "0.5 if b < 40 or 100 < b < 300 else 0.01"})
    assert sweep(tmp_path, text=CONFIG + "  epsilon: [0.1, 0.001]\n") == 0
    met, never = {}, {}
    for row in rows_of(tmp_path / "out/epsilon.csv"):
        if row["method"] == "h2o":
            (met if row["epsilon"] == "0.1" else never)[row["kv_head"]] = row
    # The curve misses up to 299: 362 and 304 meet, 279 and 291 miss, and 304 / 291 is below 1.05. 64 meets.
    assert {(row["budget_tokens"], row["budget_below"]) for row in met.values()} == {("304", "291")}
    assert {row["smaller_meets"] for row in met.values()} == {"1"}
    assert {(row["status"], row["budget_tokens"], row["budget_below"]) for row in never.values()} == {
        ("not_met", "", "512")
    }


def test_other_engines_plan_and_submit_each_round(tmp_path, engine):
    made = engine()
    assert (
        sweep(tmp_path, "--engine", "slurm", "--submit=--partition 'a b'", text=CONFIG + "  epsilon: [3]\n")
        == 0
    )
    folder = str(tmp_path / "out/round-0")
    assert calls(made) == [
        ["sweep", "plan", f"{folder}/config.yaml", "-o", folder],
        ["sweep", "submit", folder, "--engine", "slurm", "--wait", "--partition", "a b"],
    ]
    (tmp_path / "x").mkdir()
    assert sweep(tmp_path / "x", "--engine", "local") == 0
    second = [words for words in calls(made) if any("round-1" in word for word in words)]
    folder = str(tmp_path / "x/out/round-1")
    assert second == [
        ["sweep", "plan", f"{folder}/config.yaml", "-o", folder, "--only", f"{folder}/only.csv"],
        ["sweep", "submit", folder, "--engine", "local", "--wait"],
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--submit", "--jobs 2"], "add --engine local or slurm"), (["--submit='"], "No closing quotation")],
)
def test_unknown_arguments_are_refused(tmp_path, engine, words, says, capsys):
    assert sweep(tmp_path, *words) == 2
    assert says in capsys.readouterr().err


def test_a_folder_of_another_sweep_of_a_run_or_in_use_is_refused(tmp_path, engine, capsys):
    assert sweep(tmp_path, text=CONFIG) == 0
    # A moved trace is still the same trace: the engine identifies it by its content.
    assert sweep(tmp_path, "--trace", "moved.h5", text=CONFIG) == 0
    assert sweep(tmp_path, text=SEARCH) == 2
    assert "holds a sweep of another configuration" in capsys.readouterr().err
    (tmp_path / "out/shards").mkdir()
    assert sweep(tmp_path, text=CONFIG) == 2
    assert "holds a plain run; choose another -o" in capsys.readouterr().err
    with alone(tmp_path / "out"):
        assert sweep(tmp_path, text=CONFIG) == 2
    assert "another process sweeps there" in capsys.readouterr().err


def test_a_signal_is_handled_by_the_engine(tmp_path, monkeypatch):
    program = tmp_path / "kvreplay"
    program.write_text(f"#!/bin/sh\ntrap 'exit 75' TERM\ntouch {tmp_path}/up\nwhile :; do sleep 0.05; done\n")
    program.chmod(0o755)
    words = [sys.executable, "-m", "kvreplay", "refine", written(tmp_path, CONFIG), "-o", tmp_path / "out"]
    environment = {**os.environ, "KVREPLAY": str(program), "PYTHONPATH": os.pathsep.join(ROOMS)}
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as running:
        until = time.monotonic() + 30
        while not (tmp_path / "up").exists() and time.monotonic() < until:
            time.sleep(0.02)
        running.send_signal(signal.SIGTERM)
        assert "stopped; run again to continue" in running.communicate(timeout=30)[1]
    assert running.returncode == 75


def test_a_missing_program_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KVREPLAY", str(tmp_path / "absent"))
    assert sweep(tmp_path, text=CONFIG) == 2
    assert "absent cannot be run: name the engine's program in KVREPLAY" in capsys.readouterr().err


def test_the_epsilon_table_of_any_results_equals_the_sweeps(copy_of_swept):
    out = copy_of_swept
    swept = (out / "epsilon.csv").read_bytes()
    (out / "epsilon.csv").unlink()
    assert main(["export", str(out), "--epsilon", "0.1,0.05"]) == 0
    assert (out / "epsilon.csv").read_bytes() == swept


def test_quartiles_are_budgets_that_suffice_for_that_share_of_the_heads():
    answers = pd.DataFrame(
        {
            "label": "h2o",
            "measure": MEASURE,
            "epsilon": 0.1,
            "status": ["met", "met", "met", "not_met", "no_value"],
            "budget_tokens": [16, 64, 32, NAN, NAN],
            "budget_below": [NAN, 60, 31, 512, 512],
            "smaller_meets": [0, 2, 0, 0, 0],
        }
    )
    [row] = over_heads(answers).to_dict("records")
    assert [row[name] for name in ("quarter", "half", "most")] == [16, 32, 64]
    assert [row[name] for name in ("met", "at_smallest", "smaller_meets", "heads")] == [3, 1, 1, 4]
    few = ["met", "not_met", "not_met", "not_met", "no_value"]
    [row] = over_heads(answers.assign(status=few)).to_dict("records")
    assert (row["quarter"], row["most"]) == (16, np.inf)


def test_the_page_of_a_sweep_draws_what_its_epsilons_need_and_means_of_the_same_heads(copy_of_swept, capsys):
    out = copy_of_swept
    assert main(["table", str(out)]) == 0
    budgets = {line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("h2o")}
    # 181 was tried for head 1 only.
    assert {"16", "45", "91", "512"} <= budgets
    assert "181" not in budgets
    frame = load(out)
    _, [drawn] = caught_figures(budget_for_epsilon, frame)
    assert len(drawn.table) == 4
    header, rows = drawn.cells
    # 35 tokens meet 0.1 for both heads of uniform.
    assert [text for text, _ in rows[3]] == ["uniform", "0.1", "35", "35", "35", "2", "2", "0"]
    assert len(header) == len(rows[0])
    (out / "epsilon.csv").unlink()
    assert pictures(budget_for_epsilon, frame) == []


SYNTH = ("--tokens", 256, "--prompt", 128, "--layers", 2)
REAL = """\
schema: 1
traces: [t.h5]
select: {kv_heads: [0]}
methods: [exact, h2o, uniform]
seeds: {first: 0, count: 2}
sweep: {budgets: {first: 8, last: 128, count: 4}, refine: {tolerance: 0.05, rounds: 1}, epsilon: [0.1, 0.2]}
"""


def test_a_real_search_finds_what_replaying_every_budget_finds(tmp_path, monkeypatch):
    monkeypatch.setenv("KVREPLAY", str(BINARY))
    synth(tmp_path / "t.h5", *SYNTH)
    assert sweep(tmp_path, text=REAL) == 0
    words = ["--method", "h2o,uniform", "--budget", ",".join(map(str, range(8, 129))), "--kv-heads", 0]
    done = kvreplay("run", tmp_path / "t.h5", *words, "--seeds", 2, "-j", 1, "-o", tmp_path / "all")
    assert done.returncode == 0, done.stderr
    frame = load(tmp_path / "all")
    every = frame.groupby(["method", "layer", "budget_tokens"])[MEASURE].mean()
    answers = [row for row in rows_of(tmp_path / "out/epsilon.csv") if row["status"] == "met"]
    assert len(answers) >= 6
    for row in answers:
        errors, epsilon = every[row["method"], int(row["layer"])], float(row["epsilon"])
        least = int(row["budget_tokens"])
        assert float(row["error"]) == pytest.approx(errors[least], rel=1e-4)
        assert errors[least] <= epsilon
        if row["budget_below"]:
            assert errors[int(row["budget_below"])] > epsilon
            assert least <= 1.05 * int(row["budget_below"]) or least - int(row["budget_below"]) == 1
    replayed_cells = load(tmp_path / "out")
    assert len(replayed_cells) < len(frame) / 3
    assert (replayed_cells["method"] == "exact").sum() == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--epsilon", "low"], "--epsilon low: write numbers above 0"),
        (["--epsilon", "0.1,0"], "write numbers above 0"),
        (["--epsilon", "0.1", "--measure", "bogus"], "bogus is not a measure of the table"),
        (["--epsilon", "0.1", "--measure", "model"], "model is not a measure of the table"),
    ],
)
def test_an_invalid_epsilon_or_measure_is_refused(tmp_path, words, says, capsys):
    write_results(tmp_path, [fake_row()], columns=TABLE)
    assert main(["export", str(tmp_path), *words]) == 2
    assert says in capsys.readouterr().err
