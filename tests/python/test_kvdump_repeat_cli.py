"""`--repeat` and `--with-input` on the command line: recording, refusals, resuming and verification."""

import json
import os
import signal

import h5py
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from dumper_runs import contents  # noqa: E402
from front_door import record as cli  # noqa: E402
from tiny_model_folder import TEXT, jsonl, saved, words_for  # noqa: E402

pytestmark = pytest.mark.torch

OK, USAGE, TROUBLE = 0, 2, 3
TOKENS = len(TEXT.split())
SHORT = len(TEXT[:30].split())
# Tokens of the instruction before the first chunk, and before a later chunk without the 8 repeated tokens.
# The tiny model's tokenizer splits at whitespace and punctuation; the suffix "\n" is not a token.
FIRST, LATER = 6, 11
# Prints a line when the first chunk's rows are captured, then waits to be killed.
WAITS = """
import sys, time
from front_door import record as cli
from kvrecord import prompt_capture
keep = prompt_capture.PromptCapture.keep
def keep_and_wait(self, layer, name, rows):
    keep(self, layer, name, rows)
    if name == "repeat_q":
        print("kept", flush=True)
        time.sleep(60)
prompt_capture.PromptCapture.keep = keep_and_wait
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def words(llama, tmp_path):
    """words(output, options...): arguments of the program for two prompts."""
    return words_for(llama, jsonl(tmp_path / "p.jsonl", TEXT, TEXT[:30]))


def group_of(path, prompt="p0"):
    """(attributes, {dataset: list}) of a prompt's group `repeat`."""
    with h5py.File(path) as trace:
        group = trace[f"prompts/{prompt}/repeat"]
        return dict(group.attrs), {name: dataset[...].tolist() for name, dataset in group.items()}


@pytest.mark.parametrize(
    ("options", "ctx"),
    [
        ((), [0, TOKENS]),
        (("9",), [0, 9, 18, TOKENS]),
        (("--context-tokens", "6"), [0, 6]),
        (("4", "--context-tokens", "7"), [0, 4, 7]),
        (("--generate", "3", "--ignore-eos"), [0, TOKENS]),
        (("--generate", "3", "--ignore-eos", "--context-tokens", str(SHORT + 2)), [0, SHORT + 2]),
    ],
)
def test_chunks_and_context_have_the_requested_lengths(words, tmp_path, options, ctx):
    out = tmp_path / "t.h5"
    assert cli.main(words(out, "--repeat", *options, "--verify")) == OK
    attributes, found = group_of(out)
    assert found["ctx"] == ctx and attributes["context_tokens"] == ctx[-1]
    with h5py.File(out) as trace:
        layer = trace["prompts/p0/layers/001"]
        assert layer["repeat_q"].shape == (8, len(found["tokens"]), 4)
        assert layer["repeat_k"].shape == (1, len(found["tokens"]), 4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--context-tokens", "3"), "--context-tokens needs --repeat or --lookahead: add one"),
        (
            ("--repeat", "--context-tokens", "12"),
            f"p.jsonl:2: --context-tokens 12: the prompt has {SHORT} rows: give a number up to that",
        ),
        (("--repeat", "--max-bytes", "21k"), "more than --max-bytes"),
    ],
)
def test_invalid_options_are_refused_before_the_model_runs(words, tmp_path, capsys, options, says):
    assert cli.main(words(tmp_path / "t.h5", *options)) == USAGE
    assert says in capsys.readouterr().err
    assert not (tmp_path / "t.h5").exists()


def test_a_chunk_that_does_not_fit_after_its_context_is_refused_with_a_remedy(tmp_path, capsys):
    model = saved(tmp_path / "m", "Llama", max_position_embeddings=TOKENS + 12)
    words = words_for(model, jsonl(tmp_path / "p.jsonl", TEXT))
    assert cli.main(words(tmp_path / "t.h5", "--repeat")) == USAGE
    rows = FIRST + TOKENS
    assert (
        f"p.jsonl:1: --repeat: {TOKENS} tokens and a chunk of {rows} rows after them make {TOKENS + rows}, "
        f"the model has {TOKENS + 12} positions: use a smaller CHUNK" in capsys.readouterr().err
    )
    assert cli.main(words(tmp_path / "t.h5", "--repeat", "2", "--context-tokens", "5", "--dry-run")) == OK


def test_the_plan_counts_repeated_rows_and_norms(words, tmp_path, capsys):
    def planned(*options):
        assert cli.main(words(tmp_path / "t.h5", *options, "--dry-run")) == OK
        captured = capsys.readouterr()
        return json.loads(captured.out), captured.err

    without, _ = planned()
    plan, said = planned("--repeat", "12")
    repeated = [FIRST + 12 + LATER + 8 + TOKENS - 12, FIRST + SHORT]
    assert plan["repeat_rows"] == repeated
    assert f"repeat: {sum(repeated)} rows in 3 chunks" in said
    # 2 layers, 8 query heads and one kv head of dimension 4, 4 bytes per number; one norm.
    assert plan["bytes"] - without["bytes"] == pytest.approx(
        1.01 * sum(repeated) * 2 * (9 * 4 * 4 + 4), abs=2
    )
    norms, _ = planned("--with-input")
    assert norms["bytes"] - without["bytes"] == pytest.approx(1.01 * (TOKENS + SHORT) * 2 * 4, abs=2)
    assert "repeat_rows" not in without and list(tmp_path.glob("t.h5*")) == []
    assert cli.main(words(tmp_path / "t.h5", "--repeat", "12")) == OK
    assert [len(group_of(tmp_path / "t.h5", prompt)[1]["tokens"]) for prompt in ("p0", "p1")] == repeated


def test_a_resumed_directory_holds_the_same_bytes_and_words_as_one_file(words, tmp_path):
    out, options = tmp_path / "d", ("--repeat", "8", "--with-input", "--generate", "3", "--ignore-eos")
    assert cli.main(words(out, *options)) == OK
    whole, index = contents(out / "index.h5"), group_of(out / "index.h5")
    assert {("p1", "001", name) for name in ("repeat_q", "repeat_k", "repeat_in_norm")} < whole.keys()
    for lost in ("p0/001.h5", "index.h5"):
        (out / lost).unlink()
    assert cli.main(words(out, *options, "--resume", "--verify")) == OK
    assert contents(out / "index.h5") == whole
    assert group_of(out / "index.h5") == group_of(out / "p0/001.h5") == index
    assert group_of(out / "index.h5", "p1") == group_of(out / "p1/000.h5", "p1")
    assert cli.main(words(tmp_path / "one.h5", *options)) == OK
    assert contents(tmp_path / "one.h5") == whole and group_of(tmp_path / "one.h5") == index
    with h5py.File(out / "index.h5") as linked, h5py.File(tmp_path / "one.h5") as one:
        assert linked.attrs["trace_id"] == one.attrs["trace_id"]


def test_resume_refuses_other_chunks(words, tmp_path, capsys):
    out = tmp_path / "t.h5"
    assert cli.main(words(out, "--repeat", "8")) == OK
    for other in (
        (),
        ("--repeat",),
        ("--repeat", "8", "--context-tokens", "5"),
        ("--repeat", "8", "--with-input"),
    ):
        assert cli.main(words(out, *other, "--resume")) == USAGE
        assert "made with other settings" in capsys.readouterr().err
    assert cli.main(words(out, "--repeat", "--force")) == OK
    assert group_of(out)[1]["ctx"] == [0, TOKENS]


def test_text_after_a_prompt_is_not_repeated(llama, tmp_path, capsys):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(json.dumps({"id": "p0", "text": TEXT, "answer": "w5 w6"}) + "\n")
    words = words_for(llama, prompts)
    assert cli.main(words(tmp_path / "t.h5", "--repeat", "--verify")) == OK
    assert group_of(tmp_path / "t.h5")[0]["context_tokens"] == TOKENS
    # The recorded pass included the answer: its sums may be rounded differently.
    line = next(line for line in capsys.readouterr().err.splitlines() if "keys of the repeated" in line)
    assert line.endswith("(<= 1e-04) ok")


def test_verify_reports_bitwise_equal_keys_of_the_context(words, tmp_path, capsys):
    options = ("--repeat", "9", "--with-input", "--dtype", "bf16", "--generate", "3", "--ignore-eos")
    assert cli.main(words(tmp_path / "t.h5", *options, "--verify")) == OK
    said = capsys.readouterr().err
    assert said.count("keys of the repeated context against the recorded ones: 0.00e+00 (<= 0e+00) ok") == 4
    assert said.count("repeated rows against one pass over context and chunk") == 4
    assert said.count("norm of what q is projected from against one full prefill") == 4


@pytest.mark.parametrize("output", ["t.h5", "d"])
def test_a_dump_that_is_killed_while_it_repeats_leaves_no_trace_and_starts_anew(
    words, dumpers, tmp_path, output
):
    options = words(tmp_path / output, "--repeat", "8")
    with dumpers.run(tmp_path, WAITS, *options) as process:
        assert "kept\n" in process.printed
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert list(tmp_path.rglob("*.h5")) == []
    assert cli.main([*options, "--resume", "--verify"]) == OK
    assert list(tmp_path.glob("*.spool")) == []


def test_the_repeat_instruction_of_smollm2_uses_its_chat_template(smollm2, tmp_path):
    ferry = "The ferry leaves at nine."
    prompts = tmp_path / "p.jsonl"
    chat = {"id": "chat", "messages": [{"role": "user", "content": ferry}]}
    prompts.write_text(json.dumps({"id": "plain", "text": ferry}) + "\n" + json.dumps(chat) + "\n")
    words = words_for(smollm2, prompts)
    assert cli.main(words(tmp_path / "t.h5", "--layers", "3", "--repeat", "50", "--verify")) == OK
    attributes, found = group_of(tmp_path / "t.h5", "plain")
    # 8 tokens for "\n\nRepeat the previous context exactly." and one for "\n".
    assert attributes["suffix"] == "\n" and len(found["tokens"]) == 9 + attributes["context_tokens"]
    attributes, _ = group_of(tmp_path / "t.h5", "chat")
    assert attributes["suffix"] == "<|im_end|>\n<|im_start|>assistant\n"
