"""One mistake is one message, in the words of whoever made it, and its remedy works."""

import json
import re
import shlex

import h5py
import numpy as np
import pytest
from kvreplay_cli import kvreplay, synth

kv = pytest.importorskip("kvreplay")

LAYERS, PROMPTS = 4, ("other", "synthetic")
# What a trace may lack: {name: (methods or options that need it, what the message says)}.
LACKING = {
    "a repeat pass": (["kvzip"], "kvzip needs a repeat pass, which t.h5 lacks"),
    "rows after a cut": (
        [{"name": "laq", "generated": True}],
        "laq needs rows generated after a cut, which t.h5 lacks",
    ),
    "the output projection": (
        [{"name": "snapkv", "wrapper": "critical"}],
        "snapkv needs the output projection (o_proj), which t.h5 lacks",
    ),
    "the text": (["fastgen"], "fastgen needs the text of tokens, which t.h5 lacks"),
    "the rotary embedding, for positions": (
        ["streaming_llm"],
        "streaming_llm needs the rotary embedding, which t.h5 lacks, to re-assign positions",
    ),
    "the rotary embedding, for queries": (
        [{"name": "attention_matching", "positions": "original"}],
        "attention_matching needs the rotary embedding, which t.h5 lacks, to rotate queries",
    ),
    "the rotary embedding, for keys": (
        [{"name": "h2o", "row_format": {"name": "int4", "keys": "pre_rope"}, "positions": "original"}],
        "takes the rotary embedding out of keys, which t.h5 lacks",
    ),
    "every query": (["h2o", "tova"], "h2o and tova need every query of the prompt, but t.h5 holds only"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A trace of four layers and two prompts that lacks all that a trace may lack."""
    folder = tmp_path_factory.mktemp("one")
    synth(
        folder / "t.h5", "--tokens", 64, "--prompt", 48, "--layers", LAYERS, "--q-heads", 4, "--kv-heads", 2,
        "--head-dim", 8, "--v-head-dim", 8,
    )  # fmt: skip
    with h5py.File(folder / "t.h5", "r+") as f:
        del f.attrs["trace_id"]
        f.attrs.pop("rope_json", None)
        for layer in f["prompts/synthetic/layers"].values():
            layer.attrs.pop("rope_json", None)
            every_other = layer["q"][:, ::2]
            del layer["q"]
            layer["q"], layer["q_pos"] = every_other, np.arange(0, 64, 2, dtype="i4")
        f.copy("prompts/synthetic", "prompts/other")
    return folder


def lines_of_program(folder, methods, *words):
    """What the program says of these methods, without its name."""
    settings = ("-s", f"methods={json.dumps(methods)}", "-s", "budget.tokens=[16]")
    done = kvreplay("run", "t.h5", *settings, *words, "-n", cwd=folder)
    assert done.returncode == 2, (done.stdout, done.stderr)
    lines = done.stderr.splitlines()
    assert all(line.startswith("kvreplay: error: ") for line in lines), lines
    return [line.removeprefix("kvreplay: error: ") for line in lines]


def lines_of_python(monkeypatch, folder, methods, **how):
    monkeypatch.chdir(folder)
    with pytest.raises(kv.ConfigError) as refused:
        kv.replay("t.h5", methods=methods, budgets=[16], **how)
    return str(refused.value).splitlines()


@pytest.mark.parametrize(("methods", "said"), LACKING.values(), ids=LACKING)
def test_what_a_trace_lacks_is_one_line_with_its_layers_and_prompts(folder, monkeypatch, methods, said):
    for lines in (lines_of_program(folder, methods), lines_of_python(monkeypatch, folder, methods)):
        (line,) = [line for line in lines if said in line]
        places = (
            "prompts other and synthetic" if "text of" in said else "layers 0-3; prompts other and synthetic"
        )
        assert f"({places}): " in line, line


def test_gradients_that_a_trace_lacks_are_one_line(folder):
    (line,) = lines_of_program(folder, ["exact"], "--save", "projections")
    assert line == (
        "--save projections needs the gradient, which t.h5 lacks (layers 0-3; prompts other and synthetic): "
        "record it with `kvreplay record --with-gradient`"
    )


def test_no_method_says_one_thing_twice(folder, monkeypatch):
    """Places and methods aside, all lines differ, whatever each method needs."""
    names = [name for name in kv.methods() if name != "external"]
    everything = lines_of_program(folder, names)
    for lines in (everything, lines_of_python(monkeypatch, folder, names)):
        rules = [re.sub(r"^.*? (needs?|decides?) |\(.*?\)", "", line).split(": ")[0] for line in lines]
        assert len(set(rules)) == len(rules), lines
    assert len(everything) < len(names) / 2


def test_the_norms_of_the_inputs_are_one_line_and_so_is_the_output(folder, tmp_path):
    with h5py.File(folder / "t.h5") as full, h5py.File(tmp_path / "t.h5", "w") as f:
        for name, value in full.attrs.items():
            f.attrs[name] = value
        full.copy("prompts", f)
        for prompt in f["prompts"].values():
            repeat = prompt.create_group("repeat")
            repeat.attrs["context_tokens"] = 48
            repeat["rows"], repeat["ctx"] = np.array([0, 48], "i4"), np.array([0, 48], "i4")
            for layer in prompt["layers"].values():
                layer["repeat_q"], layer["repeat_k"] = np.ones((4, 48, 8), "f4"), np.ones((2, 48, 8), "f4")
    norms, output = lines_of_program(tmp_path, ["kvzip_plus"])
    assert "needs the norm of the layer's input, which t.h5 lacks (layers 0-3; " in norms
    assert "needs the output projection (o_proj), which t.h5 lacks (layers 0-3; " in output


def test_the_remedy_of_the_program_can_be_typed_as_it_stands(folder):
    with h5py.File(folder / "t.h5") as full, h5py.File(folder / "whole.h5", "w") as f:
        for name, value in full.attrs.items():
            f.attrs[name] = value
        full.copy("prompts", f)
        for prompt in f["prompts"].values():
            for layer in prompt["layers"].values():
                queries = np.repeat(layer["q"][()], 2, axis=1)
                del layer["q"], layer["q_pos"]
                layer["q"] = queries
    command = ("run", "whole.h5", "--method", "exact,streaming_llm", "--budget", "16", "-n")
    done = kvreplay(*command, cwd=folder)
    remedy = re.search(r": write (--set \S+), or ", done.stderr)
    assert remedy, done.stderr
    assert kvreplay(*command, *shlex.split(remedy[1]), cwd=folder).returncode == 0


NUMBERS = np.random.default_rng(0).standard_normal((2, 64, 8)).astype(np.float32)
MISTAKES = [
    {"budgets": [0]},
    {"budgets": [0.5, 2]},
    {"budgets": "200%"},
    {"budgets": {"share_of_cache": [20]}},
    {"budgets": {"fraction_kept": [5]}},
    {"budgets": {"tokens": [0.5]}},
    {"budgets": {"tokens": [4], "bytes": [9]}},
    {"budgets": {"of": "mean", "tokens": [4]}},
    {"budgets": {"prefill": 3}},
    {"budgets": {}},
    {"budgets": None},
    {"methods": ["h2oo"]},
    {"methods": [{"name": "h2o", "recnt": 3}]},
    {"methods": [{"name": "h2o", "budget": 3}]},
    {"methods": [{"h2o": {}}]},
    {"methods": [{"name": "h2o", "gqa": 3}]},
    {"methods": [{"name": "h2o", "row_format": "int5"}]},
    {"methods": [{"name": "h2o", "row_format": {"bits": 3}}]},
    {"methods": [{"name": "h2o", "row_format": {"key": 3, "value": []}}]},
    {"methods": [{"name": "snapkv", "wrapper": {"alpha": 3}}]},
    {"methods": [{"name": "snapkv", "merge": {}}]},
    {"methods": [{"name": "snapkv", "allocator": {}}]},
    {"methods": [{"name": "snapkv", "allocator": "file:no"}]},
    {"methods": [{"name": "snapkv", "allocator": "lu_kv"}]},
    {"methods": [{"name": "adakv", "scorer": {"window": 3}}]},
    {"methods": [{"name": "h2o", "uniforms": "no.h5"}]},
    {"methods": [{"name": "qfilters", "calibration": "file:no.h5"}]},
    {"methods": [{"name": "qfilters", "calibration": "others"}]},
    {"methods": ["external"]},
    {"methods": ["snapkv"], "prompt": "stream"},
    {"methods": [{"name": "h2o", "phase": "oneshot", "prompt": "stream"}]},
    {"methods": ["kvzip", "streaming_llm", "fastgen"]},
    {"methods": [{"name": "h2o", "kernel": 3, "wrapper": "critical"}]},
    {"metrics": "all"},
    {"metrics": ["bytes"]},
    {"prefill": 80},
    {"prefill": 64},
    {"prefill": 9, "tokens": 8},
    {"tokens": 80},
    {"kv_heads": [9]},
    {"kv_heads": []},
    {"prompts": ["p9"]},
    {"queries": "last"},
    {"needles": {"at": [0.5]}},
    {"needles": {"at": [], "tokens": 3}},
    {"seeds": 0},
    {"seeds": (4294967295, 9)},
    {"jobs": 0},
    {"precision": "half"},
    {"device": "gpu"},
    {"audit": "x"},
]
OF_OTHERS = (
    "budget.tokens",
    "kvreplay list",
    "command line",
    "yaml",
    "--set",
    "--budget",
    "this file",
    "a map",
)


@pytest.mark.parametrize("given", MISTAKES, ids=lambda given: json.dumps(given))
def test_a_replay_is_refused_in_the_words_of_its_arguments(given):
    how = {"prefill": 48, "methods": ["h2o"], "budgets": [16], **given}
    with pytest.raises((kv.ConfigError, kv.TraceError)) as refused:
        kv.replay(NUMBERS, NUMBERS, NUMBERS, **how)
    message = str(refused.value)
    assert not [words for words in OF_OTHERS if words in message.lower()], message
    assert not re.search(r"\b(replay|select|run|output|seeds)\.\w", message.replace("kvreplay.", "")), message
    assert not re.search(r"\{\w+: ", message), message


def test_several_mistakes_are_several_lines():
    with pytest.raises(kv.ConfigError) as refused:
        kv.replay(NUMBERS, NUMBERS, NUMBERS, prefill=48, methods=["h2oo"], budgets=[0], seeds=0)
    assert [line.split(" is ")[0] for line in str(refused.value).splitlines()] == [
        'unknown method "h2oo" (did you mean h2o?): see kvreplay.methods()',
        "budgets",
        "seeds",
    ]


ROWS = np.random.default_rng(0).standard_normal((9, 7)).astype(np.float32)
ROTATED = ["turboquant_3bit_nc", "turboquant_4bit_nc", {"name": "int4", "rotate": "hadamard"}]
ROTATED += [{"name": "int4", "rotate": "hadamard", "rotate_block": 4}, "int4_token_head"]
ROTATED += [{"name": "tq_mse", "rotation": "hadamard"}, {"name": "tq_prod", "rotation": "hadamard_signed"}]


@pytest.mark.parametrize("row_format", ROTATED, ids=json.dumps)
def test_rows_that_no_hadamard_matrix_fits_are_refused_with_a_remedy_that_works(row_format):
    with pytest.raises(kv.ConfigError) as refused:
        kv.read_back(row_format, ROWS, ROWS, prompt=8)
    remedy = str(refused.value).partition("numbers of keys: ")[2]
    if whole := re.search(r"\{.*\}", remedy):
        mended = json.loads(whole[0])
    else:
        mended = {"name": row_format} if isinstance(row_format, str) else dict(row_format)
        if left_out := re.search("leave out (\\w+)", remedy):
            del mended[left_out[1]]
        mended |= json.loads("{" + re.search(r'write (".*)$', remedy)[1] + "}")
    assert kv.read_back(mended, ROWS, ROWS, prompt=8).keys.shape == (9, 7)
    if isinstance(row_format, str) and whole:
        assert kv.read_back(row_format, ROWS[:, :6], ROWS[:, :6], prompt=8).keys.shape == (9, 6)
