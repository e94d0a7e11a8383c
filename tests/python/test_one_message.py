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


def with_recorded_rows(folder, path, context):
    """The trace of `folder` with every query, a repeat pass and generated rows behind `context` tokens."""
    with h5py.File(folder / "t.h5") as full, h5py.File(path, "w") as f:
        for name, value in full.attrs.items():
            f.attrs[name] = value
        full.copy("prompts", f)
        for prompt in f["prompts"].values():
            repeat, ahead = prompt.create_group("repeat"), prompt.create_group("lookahead")
            repeat.attrs["context_tokens"] = ahead.attrs["context_tokens"] = context
            repeat["rows"], repeat["ctx"] = np.array([0, context], "i4"), np.array([0, context], "i4")
            ahead["tokens"] = np.zeros(4, "i4")
            for layer in prompt["layers"].values():
                queries = np.repeat(layer["q"][()], 2, axis=1)
                del layer["q"], layer["q_pos"]
                layer["q"] = queries
                layer["repeat_q"], layer["repeat_k"] = (
                    np.ones((4, context, 8), "f4"),
                    np.ones((2, context, 8), "f4"),
                )
                layer["lookahead_q"] = np.ones((4, 4, 8), "f4")


@pytest.mark.parametrize(
    ("context", "words", "remedy"),
    [(48, ("--prefill", "40"), "leave out --prefill"), (40, (), "give --prefill 40")],
)
def test_rows_behind_a_prompt_of_another_length_are_refused_once_before_the_run(
    folder, tmp_path, context, words, remedy
):
    with_recorded_rows(folder, tmp_path / "t.h5", context)
    methods = [
        "kvzip",
        {"name": "kvzip", "level": "head"},
        {"name": "laq", "generated": True, "lookahead": 4},
        {"name": "laq", "generated": True, "lookahead": 3},
    ]
    lines = lines_of_program(tmp_path, methods, *words)
    assert [line.split()[0] for line in lines] == ["kvzip", "laq"], lines
    for line, flag in zip(lines, ("--repeat", "--lookahead"), strict=True):
        end = f"{remedy}, or record it with `kvreplay record {flag}` at that length"
        assert line.endswith(f"(layers 0-3; prompts other and synthetic): {end}")
    mended = ["-s", f"methods={json.dumps(methods)}", "--budget", "16"]
    if context != 48:
        mended += ["--prefill", context]
    done = kvreplay("run", "t.h5", *mended, "-o", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


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


SAMPLE = kv.sample()


def lines_on_the_sample(*words):
    """What the program says when it refuses these words, without its name."""
    done = kvreplay("run", SAMPLE, *words, "-n")
    assert done.returncode == 2, (done.stdout, done.stderr)
    return [line.removeprefix("kvreplay: error: ") for line in done.stderr.splitlines()]


def test_budgets_that_are_too_small_are_one_line_with_the_smallest_that_works():
    lines = lines_on_the_sample("--method", "lagkv,curdkv,buzz,streaming_llm,hybrid", "--budget", "1,2,3")
    assert [line.split(":")[0] for line in lines] == [
        "lagkv and curdkv",
        "buzz",
        "streaming_llm",
        "hybrid",
    ]
    assert all("budget of 1, 2 or 3" in line for line in lines), lines
    assert "-" not in lines[1]
    for line in lines:
        names, least = re.match(r"[\w ]+", line)[0].split(" and "), int(re.search(r"at least (\d+)", line)[1])
        words = ("--method", ",".join(names), "--budget")
        assert kvreplay("run", SAMPLE, *words, least, "-n").returncode == 0, line
        (refused,) = lines_on_the_sample(*words, least - 1)
        assert f"budget of {least - 1}" in refused


def test_sizes_that_no_budget_fits_are_one_line_with_all_budgets():
    (line,) = lines_on_the_sample("-s", "methods=[{name: h2o, heavy: 3, recent: 2}]", "--budget", "64,128")
    assert "is not the budget of 64 or 128" in line


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("phase: stream", "the phase of snapkv, adakv and lagkv"),
        ("gqa.level: layer, phase: oneshot", "adakv"),
        ("reweight: uniform, phase: stream", "the phase of snapkv, adakv and lagkv"),
        ("row_format: int4", None),
    ],
)
def test_a_combination_is_refused_once_for_all_methods(option, said):
    names = ("snapkv", "adakv", "lagkv")
    methods = ", ".join(f"{{name: {name}, {option}}}" for name in names)
    words = ("-s", f"methods=[{methods}]", "--budget", "64")
    if said is None:
        assert kvreplay("run", SAMPLE, *words, "-n").returncode == 0
        return
    lines = lines_on_the_sample(*words)
    assert said in lines[0]
    assert len({re.sub(r"\b(snapkv|adakv|lagkv)\b", "", line) for line in lines}) == len(lines)


def test_methods_that_an_option_does_not_fit_are_one_sentence():
    entries = ", ".join(f"{{name: {name}, reweight: uniform}}" for name in ("h2o", "tova"))
    (line,) = lines_on_the_sample("-s", f"methods=[{entries}]", "--budget", "64")
    assert "and h2o and tova stream here" in line or "and h2o and tova do not select by scores" in line
    entries = ", ".join(f"{{name: {name}, merge: pivot}}" for name in ("exact", "topp"))
    (line,) = lines_on_the_sample("-s", f"methods=[{entries}]")
    assert "exact and topp keep every token" in line


def test_a_method_with_an_unknown_parameter_is_not_a_repetition():
    methods = "[{name: h2o, foo: 1}, {name: h2o, bar: 2}, h2o, {name: h2o, sinks: x}]"
    lines = lines_on_the_sample("-s", f"methods={methods}", "--budget", "64")
    assert not [line for line in lines if "twice" in line]
    assert ['"foo"' in lines[0], '"bar"' in lines[1], "sinks" in lines[2]] == [True] * 3
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("row_format=kivi", "--set methods.0.row_format=kivi"),
        ("row_format=foo", "--set methods.0.row_format="),
        ("gqa.level=layer", "--set methods.0.gqa.level=layer"),
        ("merge=pivot", "--set methods.0.merge=pivot"),
        ("merge={name: cam, next: 3}", "--set methods.0.merge="),
        ("recent=16", "--set methods.0.recent=16"),
        ("page=8", "--set methods.0.page=8"),
        ("dense_layers=[0]", "--set 'methods=[{name: quest, dense_layers: "),
        ("allocator=ada", "--set methods.0.allocator=ada"),
        ("kernel=5", "kernel: 5}]'"),
    ],
)
def test_a_parameter_at_the_root_is_refused_with_an_entry_that_works(setting, says):
    words = ("--method", "h2o,tova", "--budget", "64")
    (line,) = lines_on_the_sample(*words, "-s", setting)
    key = setting.partition("=")[0]
    assert line.startswith(f"{key} belongs to a method: "), line
    assert says in line
    remedy = shlex.split(line.partition("belongs to a method: ")[2])
    assert kvreplay("run", SAMPLE, *words, *remedy, "-n").returncode == 0, line


def test_a_parameter_at_the_root_of_a_file_is_refused_in_the_words_of_a_file(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        f"schema: 1\ntraces: [{SAMPLE}]\nmethods: [h2o]\nbudget: {{tokens: 64}}\n"
        "gqa.level: query\nkernel: 5\n"
    )
    assert kvreplay("run", path, "-n").stderr.splitlines() == [
        f"{path}:5:1: error: gqa.level belongs to a method: {{name: h2o, gqa.level: query}}",
        f"{path}:6:1: error: kernel belongs to a method: methods: [{{name: snapkv, kernel: 5}}]",
    ]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("snapvk", 'unknown method "snapvk" (did you mean snapkv?): see kvreplay list methods'),
        ("zzzzzz", 'unknown method "zzzzzz": see kvreplay list methods'),
        ("nvfp5", 'unknown format "nvfp5" (did you mean nvfp4?): see kvreplay list formats'),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_and_where_names_are_listed(name, says):
    assert kvreplay("describe", name).stderr == f"kvreplay: error: {says}\n"


def test_an_unknown_name_is_answered_in_the_words_of_python():
    with pytest.raises(kv.ConfigError, match=r"\(did you mean snapkv\?\): see kvreplay\.methods\(\)$"):
        kv.describe("snapvk")


@pytest.mark.parametrize("command", ["run", "validate"])
def test_a_file_of_another_kind_is_one_line(tmp_path, command):
    path = tmp_path / "notes.md"
    path.write_text("# Notes\n\n- a `list`\n```yaml\n@\n")
    refused = kvreplay(command, path)
    assert refused.returncode == 2
    assert refused.stderr == f"{path}: error: neither a trace (.h5) nor a configuration (.yaml)\n"
    path.write_text(f"schema: 1\ntraces: [{SAMPLE}]\nmethods: [exact]\n")
    assert kvreplay("validate", path).returncode == 0


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
