"""The recorder's command line on tiny models in folders."""

import json
import shlex

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from front_door import record as cli  # noqa: E402
from kvrecord import __version__  # noqa: E402
from kvrecord.hook import AttentionHook  # noqa: E402
from kvreplay_cli import kvreplay  # noqa: E402
from kvtrace.dtypes import stored_dtype  # noqa: E402
from tiny_model_folder import TEXT, jsonl, saved  # noqa: E402
from tiny_models import SILENT, silent  # noqa: E402

pytestmark = pytest.mark.torch

OK, USAGE, TROUBLE = 0, 2, 3
TOKENS = len(TEXT.split())


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("gemma3"), "gemma 3, two thetas")


@pytest.fixture
def prompts(tmp_path):
    return jsonl(tmp_path / "p.jsonl", TEXT, TEXT[::-1].replace("w", " w"), TEXT[:30])


@pytest.fixture
def dump(capsys):
    """dump(model, prompts, output, options...): exit code and messages; checks that there is no traceback."""

    def run(model, prompts, output, *options):
        words = ["--model", model, "--prompts", prompts, "-o", output, *options]
        code = cli.main([str(word) for word in words])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        run.printed = said.out
        return code, said.err

    return run


def test_each_line_of_a_jsonl_file_is_a_prompt_of_one_trace(llama, prompts, tmp_path, dump):
    code, said = dump(llama, prompts, tmp_path / "t.h5", "--with-text", "--with-output", "--verify")
    assert code == OK
    assert said.count(" ok") == 3 * (1 + 2 * 3)
    assert dump.printed == f"{tmp_path}/t.h5\n"
    with h5py.File(tmp_path / "t.h5") as trace:
        assert list(trace["prompts"]) == ["p0", "p1", "p2"]
        prompt = trace["prompts/p0"]
        assert prompt.attrs["text"] == TEXT
        assert list(prompt["token_text"].asstr()[()]) == TEXT.split()
        assert prompt.attrs["source"] == "p.jsonl:1"
        assert prompt["tokens"].shape == (TOKENS,)
        for layer in ("000", "001"):
            group = prompt[f"layers/{layer}"]
            assert {"q", "k", "v", "out", "o_proj", "resid_norm"} == set(group)
            assert group["k"].shape == (1, TOKENS, 4)


@pytest.mark.parametrize(
    ("options", "then"),
    [
        ([], "kvreplay compare {} --at 20% --prefill 75%"),
        (["--generate", 1], "kvreplay compare {} --at 20% --prefill 75%"),
        (["--generate", 4], "kvreplay compare {} --at 20%"),
        (["--generate", 4, "--query-stride", 2], "kvreplay inspect {}"),
    ],
)
def test_the_last_line_is_a_next_step_that_works(llama, tmp_path, dump, options, then):
    prompts, out = jsonl(tmp_path / "p.jsonl", TEXT), tmp_path / "a trace.h5"
    code, said = dump(llama, prompts, out, *options)
    assert (code, dump.printed) == (OK, f"{out}\n")
    command = said.splitlines()[-1].removeprefix("next: ")
    assert command == then.format(f"'{out}'")
    verb, *words = shlex.split(command)[1:]
    done = kvreplay(verb, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_given_answers_are_compared_without_a_cut(llama, tmp_path, dump):
    (tmp_path / "p.jsonl").write_text(json.dumps({"text": TEXT, "answer": " w3 w4"}) + "\n")
    said = dump(llama, tmp_path / "p.jsonl", tmp_path / "t.h5")[1]
    assert said.endswith(f"next: kvreplay compare {tmp_path}/t.h5 --at 20%\n")


def test_a_trial_and_a_kept_trace_end_without_surprise(llama, prompts, tmp_path, dump):
    assert "next: " not in dump(llama, prompts, tmp_path / "t.h5", "--dry-run")[1]
    assert dump(llama, prompts, tmp_path / "t.h5")[0] == OK
    assert "next: kvreplay compare" in dump(llama, prompts, tmp_path / "t.h5", "--resume")[1]


def test_each_text_file_of_a_folder_is_a_prompt_of_its_name(llama, tmp_path, dump):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "one.txt").write_text(TEXT)
    (texts / "two.txt").write_text("w5 w6 w7")
    assert dump(llama, texts, tmp_path / "t.h5")[0] == OK
    with h5py.File(tmp_path / "t.h5") as trace:
        assert {name: p["tokens"].shape[0] for name, p in trace["prompts"].items()} == {
            "one": TOKENS,
            "two": 3,
        }


@pytest.mark.parametrize(
    ("layers", "recorded"),
    [("all", ["000", "001", "002"]), ("2,0,2", ["000", "002"]), ("every:2", ["000", "002"]), ("1", ["001"])],
)
def test_layers_are_chosen_on_the_command_line(gemma, prompts, tmp_path, dump, layers, recorded):
    assert dump(gemma, prompts, tmp_path / "t.h5", "--layers", layers)[0] == OK
    with h5py.File(tmp_path / "t.h5") as trace:
        assert list(trace["prompts/p1/layers"]) == recorded


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--layers", "3"], USAGE, "there are layers 0-2"),
        (["--layers", "2-1"], USAGE, "write all, 7, 15-29, a list such as 0,7,15-29, or every:4"),
        (["--layers", "0", "--out-layers", "1"], USAGE, "--out-layers [1] are not among --layers"),
        (
            ["--max-bytes", "1k"],
            USAGE,
            "choose fewer layers, --query-stride, --dtype bf16, or raise --max-bytes",
        ),
        (["--generate", "1000"], USAGE, "the model has 256 positions: use --max-tokens"),
        (["--top-p", "0.5"], USAGE, "--top-p needs a --temperature above 0"),
        (["--device", "nowhere"], USAGE, "--device nowhere"),
    ],
)
def test_an_impossible_request_is_refused_with_the_remedy(
    gemma, prompts, tmp_path, dump, options, code, says
):
    found, said = dump(gemma, prompts, tmp_path / "t.h5", *options)
    assert (found, says in said) == (code, True), said
    assert not list(tmp_path.glob("t.h5*"))


def test_strided_queries_are_recorded_while_tokens_are_generated(gemma, prompts, tmp_path, dump):
    options = ["--query-stride", 4, "--generate", 6, "--ignore-eos", "--with-output", "--verify"]
    code, said = dump(gemma, prompts, tmp_path / "t.h5", *options)
    assert code == OK, said
    with h5py.File(tmp_path / "t.h5") as trace:
        prompt = trace["prompts/p0"]
        assert (prompt.attrs["n_prompt"], prompt.attrs["n_generated"]) == (TOKENS, 5)
        group = prompt["layers/002"]
        assert np.array_equal(group["q_pos"], range(0, TOKENS + 5, 4))
        assert group["out"].shape[1] == group["q"].shape[1] == group["q_pos"].shape[0]
        assert group["resid_norm"].shape == (TOKENS + 5,)


def test_a_dry_run_prints_the_plan_and_writes_nothing(gemma, prompts, tmp_path, dump):
    code, _ = dump(gemma, prompts, tmp_path / "out" / "t.h5", "--dry-run", "--layers", "0,2")
    plan = json.loads(dump.printed)
    assert (code, plan["layers"], plan["rows"][0], plan["dtype"]) == (OK, [0, 2], TOKENS, "f32")
    assert plan["bytes"] == int(1.01 * 2 * sum(plan["rows"]) * 4 * 8 * (4 + 2 + 2))
    assert not (tmp_path / "out").exists()


def test_a_plan_counts_only_layers_with_attention(tmp_path, dump):
    model = saved(tmp_path / "model", "qwen3-next, one attention layer of four")
    prompts = jsonl(tmp_path / "p.jsonl", TEXT)
    assert dump(model, prompts, tmp_path / "t.h5", "--dry-run")[0] == OK
    plan = json.loads(dump.printed)
    assert plan["layers"] == [3]
    assert plan["bytes"] == int(1.01 * TOKENS * 4 * 16 * (4 + 1 + 1))


@pytest.mark.parametrize(("dtype", "stored"), [(torch.bfloat16, "bf16"), (torch.float16, "f16")])
def test_a_16_bit_model_is_recorded_in_its_type(tmp_path, dump, dtype, stored):
    model = saved(tmp_path / "model", "gemma 2, softcap and own scale", dtype)
    prompts = jsonl(tmp_path / "p.jsonl", TEXT)
    options = ["--generate", 4, "--ignore-eos", "--with-output", "--verify"]
    code, said = dump(model, prompts, tmp_path / "t.h5", *options)
    assert code == OK, said
    with h5py.File(tmp_path / "t.h5") as trace:
        group = trace["prompts/p0/layers/000"]
        assert {stored_dtype(group[x]) for x in ("q", "k", "v", "out")} == {stored}
        assert group.attrs["source_dtype"] == str(dtype).removeprefix("torch.")
        assert stored_dtype(group["o_proj"]) == stored_dtype(group["resid_norm"]) == "f32"


@pytest.mark.parametrize("prefix", SILENT)
def test_a_model_that_never_calls_the_interface_ends_the_program_with_its_name(tmp_path, dump, prefix):
    model = saved(tmp_path / "model", prefix, **silent(prefix))
    code, said = dump(model, jsonl(tmp_path / "p.jsonl", TEXT), tmp_path / "t.h5")
    assert (code, f"error: {prefix}ForCausalLM never calls the attention interface" in said) == (
        TROUBLE,
        True,
    )
    assert not list(tmp_path.glob("t.h5*"))


def test_a_gated_output_is_recorded_with_its_gate(tmp_path, dump):
    name = "qwen3-next, one attention layer of four"
    model = saved(tmp_path / "model", name)
    prompts = jsonl(tmp_path / "p.jsonl", TEXT)
    code, said = dump(model, prompts, tmp_path / "t.h5", "--layers", "0")
    assert (code, "layers [0] call no attention" in said, "use --layers 3" in said) == (TROUBLE, True, True)
    assert dump(model, prompts, tmp_path / "t.h5", "--layers", "3", "--with-output", "--verify")[0] == OK
    with h5py.File(tmp_path / "t.h5") as trace:
        (prompt,) = trace["prompts"].values()
        assert "out_gate" in prompt["layers/003"]


@pytest.mark.parametrize("damage", ["cut", "gone", "no tokenizer", "config"])
def test_a_damaged_model_folder_ends_the_program_with_a_message(tmp_path, dump, damage):
    model = saved(tmp_path / "model")
    weights = model / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:2000])
    elif damage == "gone":
        weights.unlink()
    elif damage == "no tokenizer":
        for file in model.glob("tokenizer*"):
            file.unlink()
    else:
        (model / "config.json").write_text("{")
    code, said = dump(model, jsonl(tmp_path / "p.jsonl", TEXT), tmp_path / "t.h5")
    assert (code, "cannot load" in said) == (TROUBLE, True), said
    assert said.count("error: ") == 1, said
    assert not list(tmp_path.glob("t.h5*"))


def provenance(attributes, command):
    """The attributes of origin that every file must have."""
    from importlib import metadata

    assert attributes["kvreplay_schema"] == 1
    assert attributes["complete"] == 1
    assert attributes["dumper"] == f"kvreplay record {__version__}"
    for package in ("torch", "transformers", "h5py"):
        assert attributes[f"{package}_version"] == metadata.version(package)
    assert attributes["created_utc"].endswith("Z")
    assert attributes["command_line"] == command
    assert attributes["model"] == "my model"
    assert json.loads(attributes["config_json"])["model_type"] == "llama"
    assert "64 tokens" in attributes["tokenizer"]


def test_every_file_names_its_origin(tmp_path, dump):
    model = saved(tmp_path / "my model")
    prompts = jsonl(tmp_path / "p.jsonl", TEXT)
    for output in (tmp_path / "t.h5", tmp_path / "dir"):
        assert dump(model, prompts, output)[0] == OK
        command = f"kvreplay record --model '{model}' --prompts {prompts} -o {output}"
        files = [output] if output.is_file() else sorted(output.rglob("*.h5"))
        assert len(files) == (1 if output.is_file() else 3)
        for file in files:
            with h5py.File(file) as trace:
                provenance(trace.attrs, command)


def test_the_commit_of_a_model_of_the_hub_is_its_revision(llama, prompts, tmp_path, dump, monkeypatch):
    from kvrecord import model

    plain = model.load_config

    def with_commit(source):
        config = plain(source)
        config._commit_hash = "abc123"
        return config

    monkeypatch.setattr(model, "load_config", with_commit)
    assert dump(llama, prompts, tmp_path / "t.h5")[0] == OK
    with h5py.File(tmp_path / "t.h5") as trace:
        assert trace.attrs["revision"] == "abc123"


def test_the_model_is_hooked_no_more_after_a_dump(llama, prompts, tmp_path, dump, monkeypatch):
    left = []
    plain = AttentionHook.__exit__
    monkeypatch.setattr(AttentionHook, "__exit__", lambda self, *a: (left.append(self), plain(self, *a))[1])
    assert dump(llama, prompts, tmp_path / "t.h5")[0] == OK
    assert left
    assert all("kvdump" not in hook.model.config._attn_implementation for hook in left)
