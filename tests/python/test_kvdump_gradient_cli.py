"""`--with-gradient` on the command line: recording, refusals, resuming and verification."""

import json

import h5py
import numpy as np
import pytest
from kvbase.errors import ConfigError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import kvrecord  # noqa: E402
from dumper_runs import contents  # noqa: E402
from front_door import record as cli  # noqa: E402
from kvrecord.verify_gradient import verify_gradient  # noqa: E402
from kvtrace.dtypes import bf16_bits, bf16_file_type, read_floats  # noqa: E402
from tiny_model_folder import TEXT, jsonl, saved, words_for  # noqa: E402
from tiny_models import PROMPT, build, logits  # noqa: E402

pytestmark = pytest.mark.torch

OK, USAGE, TROUBLE = 0, 2, 3
TOKENS = len(TEXT.split())


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def words(llama, tmp_path):
    """words(output, options...): arguments of the program for two prompts."""
    return words_for(llama, jsonl(tmp_path / "p.jsonl", TEXT, TEXT[:30]))


def rows_of(path, prompt="p0"):
    with h5py.File(path) as trace:
        return trace[f"prompts/{prompt}/layers/000/g_rows"][...].tolist()


@pytest.mark.parametrize(
    ("options", "samples", "first"),
    [
        ((), 8, TOKENS // 2),
        (("3", "--gradient-from", "4"), 3, 4),
        (("1", "--gradient-from", "0.25"), 1, TOKENS // 4),
        (("--labels", "recorded"), 1, TOKENS // 2),
        (("2", "--generate", "5", "--ignore-eos"), 2, TOKENS),
    ],
)
def test_the_requested_numbers_of_samples_and_rows_are_recorded(words, tmp_path, options, samples, first):
    out = tmp_path / "t.h5"
    assert cli.main(words(out, "--with-gradient", *options)) == OK
    rows = TOKENS + (4 if "--generate" in options else 0)
    assert rows_of(out) == list(range(first, rows - 1))
    with h5py.File(out) as trace:
        assert trace["prompts/p0/layers/001/g"].shape[0] == trace.attrs["g_samples"] == samples
        assert trace.attrs["g_labels"] == ("recorded" if "recorded" in options else "model")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--with-gradient", "2", "--labels", "recorded"), "the recorded tokens are one sample"),
        (("--labels", "recorded"), "need --with-gradient: add it"),
        (("--gradient-from", "3"), "need --with-gradient: add it"),
        (
            ("--with-gradient", "--gradient-from", "9"),
            "prompt p1: no row from 9 on predicts one of its 9 tokens",
        ),
        (("--with-gradient", "--generate", "2"), f"prompt p0: no row from {TOKENS} on predicts one of its"),
        (("--with-gradient", "--max-bytes", "20k"), "more than --max-bytes"),
    ],
)
def test_invalid_options_are_refused_before_the_model_runs(words, tmp_path, capsys, options, says):
    assert cli.main(words(tmp_path / "t.h5", *options)) == USAGE
    assert says in capsys.readouterr().err
    assert not (tmp_path / "t.h5").exists()


@pytest.mark.parametrize("share", ["-1", "1.5", "half"])
def test_a_value_that_is_neither_a_row_nor_a_share_is_refused(words, tmp_path, capsys, share):
    with pytest.raises(SystemExit):
        cli.main(words(tmp_path / "t.h5", "--with-gradient", f"--gradient-from={share}"))
    assert "is not a row, or a share of the rows from 0 to 1" in capsys.readouterr().err


def test_the_plan_counts_what_a_gradient_adds_to_the_trace_and_to_memory(words, tmp_path, capsys):
    def planned(*options):
        assert cli.main(words(tmp_path / "t.h5", *options, "--dry-run")) == OK
        return json.loads(capsys.readouterr().out)

    without, plan = planned(), planned("--with-gradient", "3")
    # 9 and 4 rows of two prompts, 4 losses, 2 layers, 8 heads of dimension 4, 2 bytes per number.
    scored = (TOKENS - 1 - TOKENS // 2) + (9 - 1 - 4)
    assert plan["bytes"] - without["bytes"] == pytest.approx(1.01 * scored * 4 * 2 * 8 * 4 * 2, abs=2)
    assert "gradient_memory_bytes" not in without and plan["gradient_memory_bytes"] > 0


def test_a_resumed_recording_holds_the_same_bytes(words, tmp_path):
    out, options = tmp_path / "d", ("--with-gradient", "2", "--gradient-seed", "3")
    assert cli.main(words(out, *options)) == OK
    whole = contents(out / "index.h5")
    assert ("p1", "001", "g") in whole and ("p1", "001", "g_recorded") in whole
    for lost in ("p0/001.h5", "p1/000.h5", "p1/001.h5", "index.h5"):
        (out / lost).unlink()
    assert cli.main(words(out, *options, "--resume")) == OK
    assert contents(out / "index.h5") == whole
    with h5py.File(out / "index.h5") as index:
        assert index["prompts/p0/g_entropy"].shape == index["prompts/p0/g_logprob"].shape == (9,)
    assert cli.main(words(tmp_path / "one.h5", *options)) == OK
    assert contents(tmp_path / "one.h5") == whole


def test_resume_refuses_another_gradient_and_plain_traces_have_no_gradient_fields(words, tmp_path, capsys):
    out = tmp_path / "d"
    assert cli.main(words(out, "--with-gradient", "2")) == OK
    for other in (("3",), ("2", "--gradient-seed", "1"), ("2", "--gradient-from", "3")):
        assert cli.main(words(out, "--with-gradient", *other, "--resume")) == USAGE
        assert "made with other settings" in capsys.readouterr().err
    assert cli.main(words(tmp_path / "old.h5")) == OK
    with h5py.File(tmp_path / "old.h5") as trace:
        assert "gradient" not in trace.attrs["dump_json"] and "g_samples" not in trace.attrs


def test_verify_compares_the_gradient_with_finite_differences(words, tmp_path, capsys):
    assert cli.main(words(tmp_path / "t.h5", "--with-gradient", "2", "--query-stride", "2", "--verify")) == OK
    said = capsys.readouterr().err
    assert said.count("gradient, all layers, against finite differences") == 2
    assert said.count("gradient, all layers, sample ") == 2


def scale(g):
    return 1.1 * g


def swap_heads(g):
    return np.concatenate([g[..., 1::-1, :, :], g[..., 2:, :, :]], axis=-3)


def shift_rows(g):
    return np.roll(g, 1, axis=-2)


def forget_a_head(g):
    return g * (np.arange(g.shape[-3]) != 0)[:, None, None]


@pytest.mark.parametrize("name", ["g", "g_recorded"])
@pytest.mark.parametrize("spoil", [scale, swap_heads, shift_rows, forget_a_head])
def test_verify_finds_a_wrong_gradient(tmp_path, spoil, name):
    model, path = build("Llama", num_key_value_heads=2), tmp_path / "t.h5"
    with kvrecord.record(model, path, gradient=2):
        logits(model)
    assert all(check.ok for check in verify_gradient(model, path))
    with h5py.File(path, "r+") as trace:
        for layer in ("000", "001"):
            dataset = trace[f"prompts/0/layers/{layer}/{name}"]
            wrong = bf16_bits(spoil(read_floats(dataset)))
            dataset.id.write(h5py.h5s.ALL, h5py.h5s.ALL, wrong, mtype=bf16_file_type())
    recorded, layer, sample = (check.ok for check in verify_gradient(model, path))
    assert (recorded, layer, sample) == ((True, True, False) if name == "g" else (False, False, True))


def test_a_model_in_16_bits_is_recorded_but_its_gradient_is_not_verified(tmp_path):
    model, path = build("Llama").to(torch.bfloat16), tmp_path / "t.h5"
    with kvrecord.record(model, path, gradient=1):
        logits(model)
    assert verify_gradient(model, path) == []


def test_record_texts_takes_a_number_of_samples(tmp_path):
    model = build("Llama")
    path = kvrecord.record_texts(
        model, PROMPT.tolist(), tmp_path / "t.h5", gradient=2, progress=False, verify=True
    )
    with h5py.File(path) as trace:
        assert trace["prompts/0/layers/000/g"].shape == (2, 4, 11, 8)
    with pytest.raises(ConfigError, match="gradient = -1 is not an integer of at least 0"):
        kvrecord.record_texts(model, PROMPT.tolist(), tmp_path / "u.h5", gradient=-1)
