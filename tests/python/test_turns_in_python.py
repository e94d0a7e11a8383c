"""Turns and branches in traces that Python writes and reads, and in damaged files."""

import random
import shutil

import h5py
import kvreplay as kv
import numpy as np
import pytest
from kvbase.errors import TraceError
from kvreplay.trace import BranchArrays, PromptArrays
from kvreplay_cli import kvreplay
from mutate_trace import damage_at_random, replaced, with_attribute, without_attribute

TOKENS, CONTEXT, LAYERS = 12, 9, (2, 5)
Q_HEADS, KV_HEADS, DIM, V_DIM = 4, 2, 8, 6
ROWS = (3, 1)
SEGMENTS = [(0, "context", "book"), (4, "input"), (7, "output", "answer"), (9, "input"), (10, "output")]
BRANCH = "prompts/p0/branches/001"


def made(rows, dtype=np.float32):
    draw = np.random.default_rng(rows)
    shapes = ((Q_HEADS, rows, DIM), (KV_HEADS, rows, DIM), (KV_HEADS, rows, V_DIM))
    return tuple(draw.standard_normal(shape).astype(dtype) for shape in shapes)


def write(path, dtype=np.float32, **changes):
    """A trace of two branches and five turns; its branches' layers {number: (q, k, v)}."""
    layers = [{number: made(10 * rows + number, dtype) for number in LAYERS} for rows in ROWS]
    layers = [
        {n: tuple(x[:, :rows] for x in of) for n, of in each.items()}
        for rows, each in zip(ROWS, layers, strict=True)
    ]
    branches = [
        BranchArrays(layers[0], 2, "first question", token_ids=[5, 6, 7]),
        {"layers": layers[1], "input_tokens": 1},
    ]
    prompt = {
        "layers": {number: made(TOKENS, dtype) for number in LAYERS},
        "segments": SEGMENTS,
        "branches": branches,
        "context_tokens": CONTEXT,
    }
    return kv.Trace.write(path, prompts={"p0": PromptArrays(**(prompt | changes))}), layers


@pytest.fixture
def sound(tmp_path):
    return write(tmp_path / "t.h5")[0].path


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_turns_and_branches_are_read_as_they_were_written(tmp_path, dtype):
    trace, layers = write(tmp_path / "t.h5", dtype)
    prompt = trace.prompt()
    assert prompt.segments == [
        (0, 4, "context", "book"),
        (4, 7, "input", ""),
        (7, 9, "output", "answer"),
        (9, 10, "input", ""),
        (10, 12, "output", ""),
    ]
    assert (prompt.n_prompt, prompt.n_generated, prompt.context_tokens) == (7, 5, CONTEXT)
    first, second = prompt.branches
    assert (first.id, first.name, first.n_tokens, first.input_tokens) == ("000", "first question", 3, 2)
    assert (second.id, second.name, second.n_tokens, second.input_tokens) == ("001", "", 1, 1)
    assert first.token_ids.tolist() == [5, 6, 7] and second.token_ids is None
    assert first.position_ids.tolist() == [9, 10, 11] and second.position_ids.tolist() == [9]
    for branch, of in zip(prompt.branches, layers, strict=True):
        for number, arrays in of.items():
            found = branch.layer(number)
            for name, array in zip("qkv", arrays, strict=True):
                assert np.array_equal(found[name], array.astype(np.float32))
    with pytest.raises(TraceError, match="no layer 3"):
        first.layer(3)


def test_an_ordinary_prompt_has_neither_turns_nor_branches(tmp_path):
    trace = kv.Trace.write(tmp_path / "t.h5", {2: made(TOKENS)})
    assert trace.prompt().segments == [] and trace.prompt().branches == []
    assert trace.prompt().context_tokens == 0


def test_branches_continue_the_positions_of_their_context(tmp_path):
    trace, _ = write(tmp_path / "t.h5", position_ids=np.arange(100, 100 + TOKENS))
    assert trace.prompt().branches[0].position_ids.tolist() == [109, 110, 111]


def test_the_identity_covers_turns_and_branches(tmp_path):
    ids = [
        write(tmp_path / "t.h5", **changes)[0].trace_id
        for changes in ({}, {"segments": ()}, {"branches": ()}, {"context_tokens": CONTEXT - 1}, {})
    ]
    assert len(set(ids)) == 4 and ids[0] == ids[4]


def test_validate_and_inspect_cover_turns_and_branches(sound):
    done = kvreplay("validate", "--deep", sound)
    assert done.returncode == 0, done.stderr
    said = kvreplay("inspect", sound).stdout
    assert "turns: 5 segments, 2 of them outputs" in said
    assert "2 branches behind its first 9 tokens, 4 rows in all" in said


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"segments": [(0, "context"), (4, "answer")]}, "a segment is of kind 'answer'"),
        ({"segments": [(0, "context"), (4, "input"), (3, "output")]}, "must ascend, but 3 follows 4"),
        ({"segments": [(1, "context")]}, "it must go from 0"),
        ({"segments": [(0, "output")]}, "begin with an output"),
        ({"context_tokens": TOKENS + 1}, "context_tokens is 13"),
        ({"branches": [{"layers": {2: made(3)}, "input_tokens": 1}]}, "holds the layers 002"),
        ({"branches": [{"layers": dict.fromkeys(LAYERS, made(3))}]}, "input_tokens missing"),
        ({"branches": [{"layers": dict.fromkeys(LAYERS, made(3)), "input_tokens": 4}]}, "input_tokens is 4"),
        (
            {"branches": [{"layers": dict.fromkeys(LAYERS, made(3, np.float16)), "input_tokens": 1}]},
            "holds float16, but k of the prompt holds float32",
        ),
        ({"branches": [{"layers": {}, "input_tokens": 1}]}, "has no layers"),
    ],
)
def test_turns_and_branches_that_do_not_fit_are_never_published(tmp_path, changes, says):
    with pytest.raises(TraceError, match=says):
        write(tmp_path / "t.h5", **changes)
    assert list(tmp_path.iterdir()) == []


def damaged(sound, *changes):
    path = sound.with_name("damaged.h5")
    shutil.copy(sound, path)
    with h5py.File(path, "r+") as file:
        for change in changes:
            change(file)
    return path


def at(name, index, value):
    def change(file):
        file[name][index] = value

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (at("prompts/p0/segments/start", 1, 9), "segments/start: must ascend, but 7 follows 9"),
        (at("prompts/p0/segments/kind", 1, 7), "segments/kind: holds 7 at 1"),
        (replaced("prompts/p0/segments/kind", np.zeros(5, np.float32)), "does not hold integers"),
        (replaced("prompts/p0/segments/start", np.zeros((2, 3), np.int32)), "must be [segments + 1]"),
        (lambda file: file.__delitem__("prompts/p0/segments/kind"), "segments/kind: is missing"),
        (with_attribute("prompts/p0/segments", "names", "[" * 100_000), "names must be a JSON list"),
        (with_attribute("prompts/p0/branches", "context_tokens", 99), "context_tokens is 99"),
        (with_attribute(BRANCH, "input_tokens", -1), "input_tokens is -1"),
        (with_attribute(BRANCH, "name", "a\nb"), "name holds control characters"),
        (without_attribute(BRANCH, "input_tokens"), "input_tokens is missing"),
        (at(f"{BRANCH}/position_ids", 0, 11), "position_ids: holds 11 at 0, it must be 9"),
        (lambda file: file.__delitem__(f"{BRANCH}/layers/005"), "holds the layers 002, the prompt holds"),
        (lambda file: file.__delitem__(f"{BRANCH}/layers/005/k"), "branches/001/layers/005/k: is missing"),
        (lambda file: file.__delitem__(f"{BRANCH}/layers"), "branches/001/layers: is missing"),
        (replaced(f"{BRANCH}/layers/005/v", np.ones((KV_HEADS, 2, V_DIM), "f4")), "it must be [2, 1, 6]"),
        (replaced(f"{BRANCH}/layers/005/q", np.ones((3, 1, DIM), "f4")), "it must be [4, 1, 8]"),
        (replaced(f"{BRANCH}/layers/005/k", np.ones((KV_HEADS, 1, DIM), "f8")), "Store float32"),
        (
            replaced(f"{BRANCH}/layers/005/k", np.ones((KV_HEADS, 1, DIM), "f2")),
            "holds float16, but k of the",
        ),
        (replaced(BRANCH, np.ones(3)), "is not a group"),
        (lambda file: file.move("prompts/p0/branches/000", "prompts/p0/branches/7"), "is no branch"),
        (lambda file: file["prompts/p0/branches"].clear(), "holds no branches"),
        (lambda file: file.__setitem__(f"{BRANCH}/layers/005/k2", h5py.SoftLink("/gone")), None),
    ],
)
def test_a_damaged_file_ends_in_one_message_about_the_place(sound, change, says):
    done = kvreplay("validate", damaged(sound, change))
    if says is None:  # a name that nobody reads
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode == 3
    assert says in done.stderr and done.stderr.count("\n") == 1


def test_the_deep_check_finds_numbers_that_are_none(sound):
    done = kvreplay("validate", "--deep", damaged(sound, at(f"{BRANCH}/layers/005/k", (1, 0, 3), np.nan)))
    assert done.returncode == 3
    assert "/prompts/p0/branches/001/layers/005/k: NaN at head 1, token 0, coordinate 3" in done.stderr


@pytest.mark.parametrize("seed", range(60))
def test_damage_at_random_never_ends_in_a_crash(sound, seed):
    path = sound.with_name("damaged.h5")
    shutil.copy(sound, path)
    damage_at_random(path, random.Random(seed))
    done = kvreplay("validate", "--deep", path)
    assert done.returncode in (0, 3), f"exit {done.returncode}: {done.stderr}"
