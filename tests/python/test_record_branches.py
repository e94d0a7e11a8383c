"""Branches on the command line: questions behind one context, against plain recordings of context and
question that know nothing of branches."""

import json

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from dumper_runs import contents  # noqa: E402
from front_door import record as cli  # noqa: E402
from kvrecord.branches import _Rows  # noqa: E402
from kvreplay_cli import kvreplay  # noqa: E402
from tiny_model_folder import saved, words_for  # noqa: E402
from tiny_models import LATENT_SIZES, every_architecture  # noqa: E402

pytestmark = pytest.mark.torch

OK, USAGE, TROUBLE = 0, 2, 3
CONTEXT = [f"w{(5 * i * i + i) % 60 + 3}" for i in range(20)]
QUESTIONS = (("w20 w21 w22", ""), ("w30", "w31 w32"), ("w41 w40 w45 w9", ""))
LATENT = "DeepseekV3"
FLOAT32_DEVIATION = 1e-5  # float32, sums in another order


def lines(path, *entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def branched(path, **more):
    """A line with QUESTIONS: texts where no answer is given."""
    asked = [{"question": q, "answer": a} if a else q for q, a in QUESTIONS]
    return lines(path, {"id": "p0", "context": " ".join(CONTEXT), "questions": asked} | more)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("llama"))


def recorded(folder, model, out="t.h5", *options):
    words = words_for(model, branched(folder / "p.jsonl"), "--force")
    assert cli.main(words(folder / out, *options)) == OK
    return folder / out


def rows_of(group):
    return {name: data[...] for name, data in group.items()}


@pytest.mark.parametrize("architecture", [*every_architecture(), LATENT])
def test_rows_of_a_branch_are_those_of_its_context_and_question_recorded_plainly(architecture, tmp_path):
    model = saved(tmp_path / "m", architecture, **(LATENT_SIZES if architecture == LATENT else {}))
    trace = recorded(tmp_path, model, "t.h5", "--verify")
    plain = [" ".join([*CONTEXT, *f"{q} {a}".split()]) for q, a in QUESTIONS]
    texts = lines(tmp_path / "plain.jsonl", *({"id": f"p{i}", "text": text} for i, text in enumerate(plain)))
    assert cli.main(words_for(model, texts)(tmp_path / "plain.h5")) == OK
    with h5py.File(trace) as file, h5py.File(tmp_path / "plain.h5") as alone:
        prompt, n = file["prompts/p0"], len(CONTEXT)
        assert prompt["branches"].attrs["context_tokens"] == n == len(prompt["tokens"])
        assert list(prompt["branches"]) == ["000", "001", "002"]
        for number, (name, branch) in enumerate(prompt["branches"].items()):
            whole = alone[f"prompts/p{number}"]
            assert np.array_equal(branch["tokens"], whole["tokens"][n:]), name
            assert np.array_equal(branch["position_ids"], whole["position_ids"][n:])
            assert branch.attrs["input_tokens"] == len(QUESTIONS[number][0].split())
            assert branch.attrs["name"] == QUESTIONS[number][0]
            assert list(branch["layers"]) == list(prompt["layers"])
            for layer, group in branch["layers"].items():
                for tensor, rows in group.items():
                    expected = whole[f"layers/{layer}/{tensor}"][...]
                    expected = expected[..., n:, :]
                    assert rows.dtype == expected.dtype and rows.shape == expected.shape
                    assert np.linalg.norm(rows - expected) <= FLOAT32_DEVIATION * np.linalg.norm(expected)


def test_the_keys_of_the_context_in_a_branchs_pass_are_the_contexts_bit_by_bit(llama, tmp_path, monkeypatch):
    seen = []
    keep = _Rows.__call__

    def look(self, call):
        before = call.kv_len - call.q.shape[1]
        seen.append((call.layer, call.all_k[:, :before].numpy().copy(), before))
        keep(self, call)

    monkeypatch.setattr(_Rows, "__call__", look)
    trace = recorded(tmp_path, llama)
    with h5py.File(trace) as file:
        for layer, keys, before in seen:
            assert before == len(CONTEXT)
            assert np.array_equal(keys, file[f"prompts/p0/layers/{layer:03d}/k"][...])
    assert len(seen) == 2 * len(QUESTIONS)


def test_a_question_without_an_answer_is_answered_greedily(llama, tmp_path):
    trace = recorded(tmp_path, llama, "t.h5", "--generate", "4", "--ignore-eos", "--verify")
    text = lines(tmp_path / "plain.jsonl", {"id": "p0", "text": " ".join([*CONTEXT, QUESTIONS[0][0]])})
    plain = words_for(llama, text)(tmp_path / "plain.h5", "--generate", "4", "--ignore-eos")
    assert cli.main(plain) == OK
    with h5py.File(trace) as file, h5py.File(tmp_path / "plain.h5") as alone:
        branches, whole = file["prompts/p0/branches"], alone["prompts/p0"]
        assert np.array_equal(branches["000/tokens"], whole["tokens"][len(CONTEXT) :])
        assert branches["000"].attrs["final_token"] == whole.attrs["final_token"]
        assert [len(branch["tokens"]) for branch in branches.values()] == [3 + 3, 1 + 2, 4 + 3]
        assert "final_token" not in branches["001"].attrs
        assert file["prompts/p0"].attrs["n_generated"] == 0


def test_each_context_and_question_can_be_a_prompt_of_its_own(llama, tmp_path):
    trace = recorded(tmp_path, llama)
    apart = recorded(tmp_path, llama, "apart.h5", "--branches-as-prompts")
    with h5py.File(trace) as file, h5py.File(apart) as prompts:
        assert list(prompts["prompts"]) == ["p0-000", "p0-001", "p0-002"]
        for number, prompt in enumerate(prompts["prompts"].values()):
            question, answer = (len(text.split()) for text in QUESTIONS[number])
            assert "branches" not in prompt
            assert prompt.attrs["question_from"] == len(CONTEXT)
            assert prompt.attrs["n_prompt"] == len(CONTEXT) + question
            assert prompt.attrs["n_generated"] == answer
            branch = file[f"prompts/p0/branches/{number:03d}"]
            assert np.array_equal(prompt["tokens"][len(CONTEXT) :], branch["tokens"])


def test_a_folder_of_files_holds_the_same_trace_and_resumes(llama, tmp_path):
    one = recorded(tmp_path, llama)
    many = recorded(tmp_path, llama, "d/")
    with h5py.File(one) as file, h5py.File(many / "index.h5") as index:
        assert file.attrs["trace_id"] == index.attrs["trace_id"]
        for name in ("000", "001", "002"):
            for layer in ("000", "001"):
                place = f"prompts/p0/branches/{name}/layers/{layer}"
                mine, theirs = rows_of(file[place]), rows_of(index[place])
                assert mine.keys() == theirs.keys() == {"q", "k", "v"}
                assert all(np.array_equal(mine[tensor], theirs[tensor]) for tensor in mine)
        before = index.attrs["trace_id"]
    (many / "index.h5").unlink()
    (many / "p0/001.h5").unlink()
    again = words_for(llama, tmp_path / "p.jsonl")(many, "--resume")
    assert cli.main(again) == OK
    with h5py.File(many / "index.h5") as index:
        assert index.attrs["trace_id"] == before
    (many / "index.h5").unlink()
    assert cli.main(again) == OK
    with h5py.File(many / "index.h5") as index:
        assert index.attrs["trace_id"] == before


def test_the_identity_of_a_trace_covers_the_rows_of_branches(llama, tmp_path):
    ids = []
    for last in ("w50", "w51"):
        entry = {"id": "p0", "context": " ".join(CONTEXT), "questions": ["w20", f"w21 {last}"]}
        words = words_for(llama, lines(tmp_path / f"{last}.jsonl", entry))
        assert cli.main(words(tmp_path / f"{last}.h5")) == OK
        with h5py.File(tmp_path / f"{last}.h5") as file:
            ids.append(file.attrs["trace_id"])
    assert contents(tmp_path / "w50.h5") == contents(tmp_path / "w51.h5")  # the prompts' own rows
    assert ids[0] != ids[1]


def test_the_engine_reads_what_was_recorded(llama, tmp_path):
    trace = recorded(tmp_path, llama, "t.h5", "--dtype", "bf16")
    done = kvreplay("validate", "--deep", trace)
    assert done.returncode == 0, done.stderr
    assert "3 branches behind its first 20 tokens, 10 rows in all" in kvreplay("inspect", trace).stdout
    said = json.loads(kvreplay("inspect", "--json", trace).stdout)["prompts"][0]["branches"]
    assert [branch["input_tokens"] for branch in said["branches"]] == [3, 1, 4]


def test_verify_notices_rows_of_a_branch_that_another_model_gave(llama, tmp_path, capsys):
    trace = recorded(tmp_path, llama)
    with h5py.File(trace, "r+") as file:
        file["prompts/p0/branches/001/layers/001/k"][0, 0, 0] += 1
    words = words_for(llama, tmp_path / "p.jsonl")(trace, "--resume", "--verify")
    assert cli.main(words) == TROUBLE
    said = capsys.readouterr().err
    assert "branch 001, layer 1: rows against one pass over context and branch" in said
    assert said.count("FAILED") == 2  # the check, and the summary


@pytest.mark.parametrize(
    ("entry", "options", "says"),
    [
        ({"context": "w5"}, (), "`questions` must be a list of questions"),
        ({"context": "w5", "questions": []}, (), "`questions` must be a list of questions"),
        ({"context": "w5", "questions": [{"answer": "w6"}]}, (), "list of texts, or of {"),
        ({"context": "w5", "questions": [{"question": "w6", "reply": "w7"}]}, (), "list of texts, or of {"),
        ({"context": "w5", "questions": [""]}, (), "list of texts, or of {"),
        ({"context": "w5", "questions": [" "]}, (), "p.jsonl:1: question 0: no tokens"),
        ({"context": "w5", "questions": ["w6"], "answer": "w7"}, (), "give each question its own"),
        ({"text": "w5", "questions": ["w6"]}, (), "`questions` need `context`"),
        ({"context": "w5", "text": "w5", "questions": ["w6"]}, (), "give exactly one of"),
        ({"context": "w5", "questions": ["w6 " * 300]}, (), "has 256 positions: use --max-tokens"),
        (
            {"context": "w5", "questions": ["w6"]},
            ("--generate", "3", "--temperature", "1"),
            "branches are generated greedily",
        ),
        ({"context": "w5", "questions": ["w6"]}, ("--max-bytes", "100"), "more than --max-bytes"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_with_a_remedy(llama, tmp_path, capsys, entry, options, says):
    words = words_for(llama, lines(tmp_path / "p.jsonl", entry))
    assert cli.main(words(tmp_path / "t.h5", *options)) == USAGE
    assert says in capsys.readouterr().err
    assert not (tmp_path / "t.h5").exists()


def test_max_tokens_cuts_the_context_and_no_question(llama, tmp_path):
    for out, more in (("t.h5", ()), ("apart.h5", ("--branches-as-prompts",))):
        recorded(tmp_path, llama, out, "--max-tokens", "6", *more)
    with h5py.File(tmp_path / "t.h5") as file, h5py.File(tmp_path / "apart.h5") as prompts:
        branches = file["prompts/p0/branches"]
        assert branches.attrs["context_tokens"] == 6
        assert [len(branch["tokens"]) for branch in branches.values()] == [3, 3, 4]
        assert [len(prompt["tokens"]) for prompt in prompts["prompts"].values()] == [9, 9, 10]


def test_the_plan_counts_the_rows_of_branches(llama, tmp_path, capsys):
    words = words_for(llama, branched(tmp_path / "p.jsonl"))
    assert cli.main(words(tmp_path / "t.h5", "--dry-run", "--generate", "5")) == OK
    said = capsys.readouterr()
    assert json.loads(said.out)["branch_rows"] == [3 + 4, 1 + 2, 4 + 4]
    assert "branches: 18 rows in 3 branches" in said.err
