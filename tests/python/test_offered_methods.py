"""Methods of an installed package, run by the program: a scorer, a policy, and their failures."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import kvreplay
import pytest
from kvreplay_cli import BINARY

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "traces/samples/smollm2-135m.h5"
PACKAGE = '''
import os
import numpy as np
import kvreplay

@kvreplay.scorer(window=32)
def my_votes(prompt, power=1.0):
    """Votes of the last rows."""
    return (prompt.attention(last=32) ** power).sum(axis=(0, 1))

@kvreplay.scorer
def small_keys(prompt):
    return -np.linalg.norm(prompt.keys, axis=-1) + 0 * prompt.values[..., 0] + 0 * prompt.positions

@kvreplay.scorer
def breaks(prompt):
    raise RuntimeError("it broke on purpose")

@kvreplay.scorer
def dies(prompt):
    os._exit(3)

class Late(kvreplay.Policy):
    def start(self, prompt, budget):
        self.prompt = prompt
    def evict(self, tokens):
        return self.prompt.keys

@kvreplay.scorer
def surrogate(prompt):
    raise RuntimeError("\\udc80")

class Heavy(kvreplay.Policy):
    window = 640
    def start(self, prompt, budget):
        self.recent = budget // 2
        return prompt.attention().sum(axis=(0, 1))
    def observe(self, tokens, p):
        assert tokens.keys.shape[1] == len(tokens)
        tokens.scores += p.sum(axis=0)
    def evict(self, tokens):
        old = len(tokens) - self.recent
        order = np.argsort(-tokens.scores[:old], kind="stable")
        return tokens[:old][order[self.budget - self.recent :]]
'''
OFFERED = {
    "my_votes": "my_votes",
    "small_keys": "small_keys",
    "breaks": "breaks",
    "dies": "dies",
    "late": "Late",
    "surrogate": "surrogate",
    "heavy": "Heavy",
}


def offer(folder, methods=OFFERED, text=PACKAGE):
    """Installs a package that offers methods in `folder`."""
    (folder / "offering").mkdir()
    (folder / "offering/__init__.py").write_text(text)
    info = folder / "offering-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offering\nVersion: 1.0\n")
    points = "\n".join(f"{name} = offering:{where}" for name, where in methods.items())
    (info / "entry_points.txt").write_text(f"[kvreplay.methods]\n{points}\n")
    return folder


@pytest.fixture(scope="module")
def offering(tmp_path_factory):
    return offer(tmp_path_factory.mktemp("site"))


def program(site, *words):
    """Runs the front door, which hosts the methods in `site` for the program."""
    paths = os.pathsep.join(
        map(str, [site, ROOT / "lib/python", ROOT / "apps", ROOT / "analysis", ROOT / "traces"])
    )
    return subprocess.run(
        [sys.executable, "-m", "kvreplay", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "KVREPLAY": str(BINARY), "PYTHONPATH": paths},
    )


def rows_of(out):
    with (out / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def run(site, out, methods, *more):
    return program(site, "run", SAMPLE, "--method", methods, "--layers", "7", "-o", out, *more)


def test_the_program_lists_and_describes_what_packages_offer(offering):
    listed = program(offering, "list", "methods").stdout
    assert "my_votes" in listed
    assert "Votes of the last rows." in listed
    described = program(offering, "describe", "my_votes").stdout
    assert "power" in described
    assert program(offering, "describe", "h2o").returncode == 0


def test_the_program_replays_them_as_python_does_in_its_own_process(offering, tmp_path, monkeypatch):
    out = tmp_path / "out"
    done = run(offering, out, "heavy,h2o,my_votes,small_keys,knorm", "--budget", "64,128", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    rows = rows_of(out)
    assert len(rows) == 3 * 5 * 2
    monkeypatch.syspath_prepend(str(offering))
    here = kvreplay.replay(
        SAMPLE, methods=["heavy", "h2o", "my_votes", "small_keys", "knorm"], budgets=[64, 128], layers=[7]
    )
    for row, cell in zip(rows, here.cells, strict=True):
        assert row["key"] == cell.row["key"]
        for name in ("rel_err_out_mean", "kept_mass_mean", "total_bytes", "n_evictions"):
            assert float(row[name]) == cell.row[name], name
    error = {(r["method"], r["kv_head"], r["budget_tokens"]): r["rel_err_out_mean"] for r in rows}
    for copy, own in (("heavy", "h2o"), ("small_keys", "knorm")):
        copies = {tuple(place): value for (name, *place), value in error.items() if name == copy}
        assert len(copies) == 6
        for place, value in copies.items():
            assert float(value) == pytest.approx(float(error[own, *place]), rel=1e-6), (copy, place)


def test_a_broken_or_dying_python_method_fails_only_its_cells(offering, tmp_path):
    out = tmp_path / "out"
    done = run(offering, out, "breaks,dies,h2o", "--budget", "64")
    assert done.returncode == 1
    errors = {}
    for row in rows_of(out):
        errors.setdefault(row["method"], set()).add(row["error"])
    assert errors["h2o"] == {""}
    assert all("RuntimeError: it broke on purpose" in error for error in errors["breaks"])
    assert errors["dies"] == {"the process of Python that hosts the method has ended"}


def test_a_prompt_is_valid_only_during_its_call_and_any_text_can_be_raised(offering, tmp_path):
    out = tmp_path / "out"
    assert run(offering, out, "late,surrogate,h2o", "--budget", "64").returncode == 1
    errors = {row["method"]: row["error"] for row in rows_of(out)}
    assert "only good during the call" in errors["late"]
    assert "RuntimeError" in errors["surrogate"]
    assert errors["h2o"] == ""


def test_a_name_that_is_taken_is_left_out(tmp_path):
    done = program(offer(tmp_path, {"h2o": "my_votes", "my_votes": "my_votes"}), "-q", "list", "methods")
    assert done.returncode == 0
    assert "the name is taken" in done.stderr or "there is one of that name" in done.stderr
    assert "my_votes" in done.stdout


def test_a_method_that_cannot_be_loaded_is_named_and_the_others_are_there(tmp_path):
    site = offer(tmp_path, {"lost": "nowhere", "my_votes": "my_votes"})
    done = program(site, "list", "methods")
    assert done.returncode == 0
    assert "my_votes" in done.stdout
    assert "kvreplay: warning: the method lost of an installed package" in done.stderr
    assert "offering:nowhere" in done.stderr
    assert "Traceback" not in done.stderr


def test_another_text_of_a_method_is_another_cell(tmp_path):
    keys = []
    for power in ("1.0", "2.0"):
        site = tmp_path / power
        site.mkdir()
        offer(site, {"my_votes": "my_votes"}, PACKAGE.replace("** power", f"** {power}"))
        assert run(site, tmp_path / f"out{power}", "my_votes", "--budget", "64").returncode == 0
        keys.append({row["key"] for row in rows_of(tmp_path / f"out{power}")})
    assert not keys[0] & keys[1]
