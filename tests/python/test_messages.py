"""Mistakes in a configuration: the program's complete messages, word for word."""

import shutil

import h5py
import pytest
from kvreplay_cli import kvreplay, synth

REST = "methods: [h2o]\nbudget: {tokens: [16]}\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a trace, an unfinished recording and a foreign HDF5 file."""
    folder = tmp_path_factory.mktemp("messages")
    size = ("--tokens", 128, "--prompt", 96, "--layers", 2, "--q-heads", 2, "--kv-heads", 1)
    synth(folder / "t.h5", *size)
    shutil.copy(folder / "t.h5", folder / "half.h5.part")
    with h5py.File(folder / "foreign.h5", "w") as file:
        file["x"] = [1]
    (folder / "file").write_text("in the way")
    return folder


def config(rest, trace="t.h5"):
    return f"schema: 1\ntraces: [{trace}]\n{rest}"


def said_of(folder, text, *words):
    (folder / "c.yaml").write_text(text)
    done = kvreplay("run", "c.yaml", "-o", "out", "--progress", "none", *words, cwd=folder)
    return done.returncode, done.stderr.replace(str(folder), "DIR")


WRONG = {
    "an unknown key": (
        config(REST + "sedes: {count: 2}\n"),
        'c.yaml:5:1: error: unknown key "sedes" (did you mean seeds?)\n',
    ),
    "an unknown method": (
        config("methods: [snapvk]\nbudget: {tokens: [16]}\n"),
        'c.yaml:3:11: error: unknown method "snapvk" (did you mean snapkv?): see kvreplay list methods\n',
    ),
    "a parameter of another method": (
        config("methods: [{name: h2o, kernel: 7}]\nbudget: {tokens: [16]}\n"),
        'c.yaml:3:23: error: "kernel" is a parameter of snapkv and pyramidkv and laq and lava and '
        "defensivekv and self_balancing_walk and rocketkv and rkv and vase and gkv and "
        "block_eviction, not of h2o\n",
    ),
    "a key given twice": (
        config(REST + "budget: {tokens: [8]}\n"),
        'c.yaml:5:1: error: the key "budget" is given twice (first on line 4): remove one\n',
    ),
    "a share above one": (
        config("methods: [h2o]\nbudget: {fraction_kept: 5}\n"),
        "c.yaml:4:25: error: fraction_kept is 5 and must be in (0, 1]. 5 %? write 0.05. 5 tokens? use "
        "budget: {tokens: [5]}\n",
    ),
    "a value out of range": (
        config("methods: [{name: h2o, recent_frac: 2}]\nbudget: {tokens: [16]}\n"),
        "c.yaml:3:36: error: recent_frac is 2 and must be in [0, 1]\n",
    ),
    "a budget below sinks and recent tokens": (
        config("methods: [{name: streaming_llm, sinks: 20}]\nbudget: {tokens: [16]}\n"),
        "c.yaml:3:40: error: streaming_llm: sinks 20 leave no room for recent tokens in a budget of 16; "
        "give fewer sinks or a larger budget: at least 21\n",
    ),
    "a layer that the trace does not hold": (
        config(REST + "select: {layers: [7]}\n"),
        "c.yaml:5:19: error: t.h5 has no layer 7: take some of 0, 1\n",
    ),
    "a head that the trace does not hold": (
        config(REST + "select: {kv_heads: [3]}\n"),
        "c.yaml:5:21: error: t.h5 has no kv head 3 (layers 0, 1): take 0\n",
    ),
    "a leading zero": (
        config("methods: [h2o]\nbudget: {tokens: [016]}\n"),
        "c.yaml:4:19: error: budget.tokens is 016 and must be written without the leading zero, which "
        "some readers "
        "take for octal: 16\n",
    ),
    "a merge key": (
        config("methods: [h2o]\nbudget: {<<: {x: 1}, tokens: [16]}\n"),
        "c.yaml:4:10: error: the merge key << is not read here: write the keys out\n",
    ),
    "tokens beyond the trace": (
        config(REST + "replay: {tokens: 500}\n"),
        "c.yaml:5:18: error: replay.tokens is 500, but t.h5 has 128 tokens: write at most 128, or "
        "leave it out for all\n",
    ),
    "all problems at once": (
        config("methods: [snapvk]\nbudget: {fraction_kept: 5}\nsedes: 1\n"),
        'c.yaml:3:11: error: unknown method "snapvk" (did you mean snapkv?): see kvreplay list methods\n'
        "c.yaml:4:25: error: fraction_kept is 5 and must be in (0, 1]. 5 %? write 0.05. 5 tokens? use "
        "budget: {tokens: [5]}\n"
        'c.yaml:5:1: error: unknown key "sedes" (did you mean seeds?)\n',
    ),
}
TRACES = {
    "a missing trace": ("tt.h5", "c.yaml:2:10: error: no trace tt.h5 (did you mean t.h5?)\n"),
    "an unfinished dump": (
        "half.h5",
        "c.yaml:2:10: error: half.h5 does not exist, only half.h5.part: the dump is unfinished, run "
        "`kvreplay record` again "
        "with --resume\n",
    ),
    "an unfinished dump by its name": (
        "half.h5.part",
        "c.yaml:2:10: error: half.h5.part is an unfinished dump: run `kvreplay record` again with "
        "--resume, then use the file without .part\n",
    ),
    "a foreign HDF5 file": (
        "foreign.h5",
        "c.yaml:2:10: error: foreign.h5: is an HDF5 file but no trace: the root has no attribute "
        "kvreplay_schema = 1 "
        "(docs/formats.md)\n",
    ),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG)
def test_a_mistake_gives_this_message(folder, text, said):
    assert said_of(folder, text) == (2, said)


@pytest.mark.parametrize(("trace", "said"), TRACES.values(), ids=TRACES)
def test_an_unusable_trace_gives_this_message(folder, trace, said):
    assert said_of(folder, config(REST, trace)) == (3, said)


def test_a_budget_that_never_evicts_gives_this_warning(folder):
    text = config("methods: [h2o]\nbudget: {tokens: [128]}\n")
    warned = "c.yaml:4:19: warning: a budget of 128 tokens never evicts: 128 tokens are replayed\n"
    assert said_of(folder, text, "-n")[0] == 0
    assert said_of(folder, text, "-n")[1].startswith(warned)


def test_a_missing_device_gives_this_message(folder):
    if "cuda" in kvreplay("list", "devices").stdout.split():
        pytest.skip("this machine has a CUDA device")
    code, said = said_of(folder, config(REST + "run: {device: cuda:7}\n"))
    assert code == 4
    start = "c.yaml:5:15: error: there is no device cuda:7 here. Devices: cpu ("
    without = "this program was built without CUDA: cmake --preset cuda builds it with CUDA)\n"
    assert said.startswith(start)
    assert said == start + without or "CUDA" in said.removeprefix(start)


def test_an_unwritable_output_directory_gives_this_message(folder):
    text = config(REST + "output: {dir: file/out}\n")
    (folder / "c.yaml").write_text(text)
    done = kvreplay("run", "c.yaml", cwd=folder)
    assert (done.returncode, done.stderr.replace(str(folder), "DIR")) == (
        2,
        "c.yaml:5:15: error: cannot write to output.dir file/out: DIR/file is not a directory. Choose "
        "another with "
        "-o DIR\n",
    )


def test_a_resume_with_changed_settings_gives_this_message(folder):
    assert said_of(folder, config(REST))[0] == 0
    code, said = said_of(folder, config(REST + "replay: {prefill: 64}\n"))
    assert (code, said) == (
        2,
        'DIR/out: error: holds 2 cells of another question (replay.prefill is "trace" there and 64 here). '
        "Choose another directory with -o, or forget them with --force\n",
    )
