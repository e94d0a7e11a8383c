"""Mistakes of newcomers, each with its one message: what is wrong, where, what to do, and the exit code."""

import os
import subprocess
import sys

import numpy as np
import pytest
from kvreplay_cli import ROOT, kvreplay, synth

kv = pytest.importorskip("kvreplay")
HIDES = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
from kvreplay.program import main
sys.exit(main({words!r}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a trace, results of a run, a configuration, a file that is no trace, and an empty
    folder."""
    folder = tmp_path_factory.mktemp("newcomer")
    synth(folder / "t.h5", "--tokens", 128, "--prompt", 96, "--layers", 2, "--q-heads", 2, "--kv-heads", 1)
    (folder / "c.yaml").write_text("schema: 1\ntraces: [t.h5]\nmethods: [exact]\n")
    (folder / "notes.h5").write_text("no trace")
    (folder / "p.txt").write_text("a prompt")
    (folder / "empty").mkdir()
    done = kvreplay("run", "t.h5", "--method", "exact", "-o", "results", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def yaml_of(rest):
    return f"schema: 1\ntraces: [t.h5]\n{rest}"


# {mistake: (arguments, text of bad.yaml or None, exit code, complete message)}
MISTAKES = {
    "a method with a typo": (
        "run t.h5 --method h2oo --budget 16",
        None,
        2,
        'kvreplay: error: unknown method "h2oo" (did you mean h2o?): see kvreplay list methods',
    ),
    "a parameter with a typo": (
        "run bad.yaml",
        yaml_of("methods: [{name: snapkv, windw: 16}]\nbudget: {tokens: [16]}\n"),
        2,
        'bad.yaml:3:26: error: unknown parameter "windw" of snapkv (did you mean window?): see '
        "kvreplay describe "
        "snapkv",
    ),
    "a tab": (
        "run bad.yaml",
        yaml_of("methods:\n\t- h2o\nbudget: {tokens: [16]}\n"),
        2,
        "bad.yaml:4:1: error: a tab indents this line: YAML wants spaces",
    ),
    "a tab behind spaces": (
        "run bad.yaml",
        yaml_of("methods: [h2o]\nbudget:\n  tokens: [16]\n \tbytes: 3\n"),
        2,
        "bad.yaml:6:2: error: a tab indents this line: YAML wants spaces",
    ),
    "a folder for a trace": (
        "run empty --method h2o --budget 16",
        None,
        2,
        "empty: error: is a folder without an index.h5: give a .yaml configuration or a trace",
    ),
    "a trace that does not exist": (
        "run tt.h5 --method h2o --budget 16",
        None,
        3,
        "kvreplay: error: no trace tt.h5 (did you mean t.h5?)",
    ),
    "a file that is no trace": (
        "run notes.h5 --method h2o --budget 16",
        None,
        3,
        "kvreplay: error: notes.h5: is not an HDF5 file. Traces are HDF5 (docs/formats.md)",
    ),
    "a budget in quotes": (
        "run bad.yaml",
        yaml_of('methods: [h2o]\nbudget: {tokens: ["10"]}\n'),
        2,
        'bad.yaml:4:19: error: budget.tokens is "10" and must be a whole number: remove the quotes',
    ),
    "a layer that there is not": (
        "run t.h5 --method h2o --budget 16 --layers 7",
        None,
        2,
        "kvreplay: error: t.h5 has no layer 7: take some of 0, 1",
    ),
    "an output folder that is a file": (
        "run t.h5 --method exact -o notes.h5/out",
        None,
        2,
        "kvreplay: error: cannot write to --out DIR/notes.h5/out: DIR/notes.h5 is not a "
        "directory. Choose "
        "another with -o DIR",
    ),
    "results for a configuration": (
        "run results",
        None,
        2,
        "results: error: is the output of a run: give the .yaml configuration or the trace that "
        "was run, or draw it: "
        "kvreplay report results",
    ),
    "a configuration for results": (
        "report c.yaml",
        None,
        3,
        "kvreplay: error: c.yaml: holds no results.csv. report takes the output directory of a run, or what "
        "`kvreplay figures CONFIG -o DIR` made",
    ),
    "a report of nothing": (
        "report empty",
        None,
        3,
        "kvreplay: error: empty: holds no results.csv. report takes the output directory of a run, or what "
        "`kvreplay figures CONFIG -o DIR` made",
    ),
    "a list of nothing": (
        "list",
        None,
        2,
        "kvreplay: error: list needs a word for what to list: methods, formats, metrics or devices. Try "
        "kvreplay list methods",
    ),
}


def run_script(script, folder):
    """Runs Python code in a folder, in a process that finds the packages of this checkout."""
    path = os.pathsep.join(str(ROOT / part) for part in ("lib/python", "apps", "traces", "analysis"))
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), path])},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("words", "text", "code", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_gives_one_message_with_the_remedy(folder, words, text, code, said):
    if text is not None:
        (folder / "bad.yaml").write_text(text)
    done = kvreplay(*words.split(), cwd=folder)
    assert (done.returncode, done.stderr.replace(str(folder), "DIR"), done.stdout) == (code, f"{said}\n", "")


@pytest.mark.parametrize(
    ("words", "names", "code", "said"),
    [
        (["export", "results"], ["pyarrow"], 2, "kvreplay[analysis]"),
        (["confirm", "results", "--model", "m", "--select", "own"], ["torch"], 3, "kvreplay[record]"),
        (
            ["record", "--model", "m", "--prompts", "p.txt", "-o", "o.h5"],
            ["torch", "transformers"],
            3,
            "kvreplay[record]",
        ),
    ],
)
def test_a_command_without_its_extra_says_how_to_install_it_in_any_shell(folder, words, names, code, said):
    script = HIDES.format(words=words, names=set(names))
    done = run_script(script, folder)
    assert done.returncode == code, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert f"pip install '{said}'" in done.stderr  # zsh reads unquoted brackets as a pattern


def test_confirm_of_a_run_without_lists_ends_before_torch_is_loaded(folder):
    script = HIDES.format(words=["confirm", "results", "--model", "m"], names={"torch"})
    done = run_script(script, folder)
    assert (done.returncode, done.stderr) == (
        2,
        "kvreplay: error: results/kept.h5: no such file; run kvreplay again with output.save: "
        "[kept] (--save kept), "
        "or give --select own\n",
    )


NUMBERS = np.random.default_rng(0).standard_normal((4, 64, 8)).astype(np.float32)
ARRAYS = (NUMBERS, NUMBERS[:2], NUMBERS[:2])


class Misspelt(kv.Policy):
    def evcit(self, tokens):
        return tokens[:1]


class Underived:
    def evict(self, tokens):
        return tokens[:1]


IN_PYTHON = {
    "an argument with a typo": (
        lambda: kv.replay(*ARRAYS, prefill=48, methods=["h2o"], budget=[16]),
        TypeError,
        "replay() has no argument 'budget' (did you mean budgets?): help(kvreplay.replay) says what it takes",
    ),
    "an argument of a scorer with a typo": (
        lambda: kv.scorer(windw=8),
        TypeError,
        "scorer() has no argument 'windw' (did you mean window?): help(kvreplay.scorer) says what it takes",
    ),
    "a method of one's own with a typo": (
        lambda: kv.replay(*ARRAYS, prefill=48, methods=[Misspelt], budgets=[16]),
        kv.ConfigError,
        "misspelt: Misspelt.evict(tokens) is missing (evcit is near: did you mean evict?): it returns "
        "the tokens to evict",
    ),
    "a class that is not derived": (
        lambda: kv.replay(*ARRAYS, prefill=48, methods=[Underived], budgets=[16]),
        kv.ConfigError,
        "methods: <class 'test_newcomers_mistakes.Underived'> is no method: give a name, a dict "
        "with `name`, a scorer or "
        "a Policy. Derive it: class Underived(kvreplay.Policy)",
    ),
    "a budget as text": (
        lambda: kv.replay(*ARRAYS, prefill=48, methods=["h2o"], budgets="10"),
        kv.ConfigError,
        "budgets: '10' is text: remove the quotes",
    ),
    "tokens before heads": (
        lambda: kv.replay(*(x.transpose(1, 0, 2) for x in ARRAYS), prefill=48, methods=["h2o"], budgets=[16]),
        kv.TraceError,
        "q has 64 heads of 4 tokens, k 64 of 2: they look like [tokens, heads, dim]. Give heads first: "
        "q.transpose(1, 0, 2), in torch q.transpose(0, 1)",
    ),
}


@pytest.mark.parametrize(("call", "kind", "said"), IN_PYTHON.values(), ids=IN_PYTHON)
def test_a_mistake_in_python_raises_one_exception_with_the_remedy(call, kind, said):
    with pytest.raises(kind) as refused:
        call()
    assert str(refused.value) == said
