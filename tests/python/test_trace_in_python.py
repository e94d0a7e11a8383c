"""Traces in Python agree with the engine bit for bit, and are written completely or not at all."""

import ast
import json
import math
import os
import pickle
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest
from kvbase.errors import ConfigError, KvreplayError, OutputError, TraceError
from kvreplay.trace import Layer, LayerArrays, Trace
from kvreplay.trace import open as open_trace
from kvreplay_cli import ROOT, kvreplay, synth
from kvtrace.dtypes import bf16_file_type
from mutate_trace import mutations, write_trace
from wrong_traces import attention

SAMPLE = ROOT / "traces/samples/smollm2-135m.h5"
LAYER = "prompts/p0/layers/000"
TOKENS, Q_HEADS, KV_HEADS, DIM = 48, 4, 2, 8
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ROPE = {"type": "default", "theta": 1e4, "layout": "half_split"}
NAMED_MUTATIONS = 85  # the named damages precede the random ones
# Damage that only `validate --deep` detects.
OF_ENGINE = ("sha256", "whose name is damaged")


def drawn(tokens=TOKENS, dtype=np.float32, seed=0, v_dim=DIM, dim=DIM):
    draw = np.random.default_rng(seed)
    shapes = ((Q_HEADS, tokens, dim), (KV_HEADS, tokens, dim), (KV_HEADS, tokens, v_dim))
    return tuple(draw.standard_normal(shape).astype(np.float32).astype(dtype) for shape in shapes)


def five_lines(path, qkv=None, **attributes):
    """A trace as docs/formats.md shows it: contiguous, without an identity."""
    with h5py.File(path, "w") as file:
        file.attrs["kvreplay_schema"] = 1
        layer = file.create_group(LAYER)
        layer["q"], layer["k"], layer["v"] = qkv or drawn()
        layer.attrs.update({"scaling": 0.125} | attributes)
    return path


def inspected(path):
    done = kvreplay("inspect", "--json", path)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def is_sound(path):
    done = kvreplay("validate", "--deep", path)
    assert done.returncode == 0, done.stderr
    return True


def bits(array):
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def same_bits(trace, path_or_trace):
    other = path_or_trace if isinstance(path_or_trace, Trace) else Trace(path_or_trace)
    return all(
        np.array_equal(bits(trace.layer(n).raw(x)[0]), bits(other.layer(n).raw(x)[0]))
        for n in trace.layers()
        for x in "qkv"
    )


# ---- the sample


def test_the_sample_has_its_model_prompts_layers_heads_and_tokens():
    text = repr(open_trace(SAMPLE))
    for fact in (
        "SmolLM2-135M",
        "1 prompt,",
        "0 3 7 11 15 18 21 23 26 29 of 30",
        "9 query heads on 3 kv heads of 64",
        "704 tok",
    ):
        assert fact in text


def test_the_samples_arrays_are_its_bits_widened():
    layer = Trace(SAMPLE).layer(7)
    with h5py.File(SAMPLE) as file:
        for name, shape in (("q", (9, 704, 64)), ("k", (3, 704, 64)), ("v", (3, 704, 64))):
            stored = np.empty(shape, np.uint16)
            dataset = file[f"prompts/0/layers/007/{name}"]
            dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, stored, dataset.id.get_type())
            array = getattr(layer, name)
            assert array.dtype == np.float32
            assert array.shape == shape
            assert np.array_equal(array, (stored.astype(np.uint32) << 16).view(np.float32))
            raw, dtype = layer.raw(name)
            assert dtype == "bfloat16"
            assert np.array_equal(raw, stored)


def test_a_layer_of_the_sample_loads_twice_as_fast_as_by_hdf5s_conversion():
    def seconds(work):
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def converted_by_hdf5():
        with h5py.File(SAMPLE) as file:
            for name in "qkv":
                dataset = file[f"prompts/0/layers/007/{name}"]
                into = np.empty(dataset.shape, np.float32)
                dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, into)

    def read_by_the_engine():
        layer = Trace(SAMPLE).layer(7)
        assert all(getattr(layer, name) is not None for name in "qkv")

    ours = min(seconds(read_by_the_engine) for _ in range(5))
    assert ours < min(seconds(converted_by_hdf5) for _ in range(2)) / 2


# ---- facts, compared with the engine


def all_facts(trace):
    """A trace as in `inspect --json`, except for the file's size and history."""
    prompts = []
    for prompt in map(trace.prompt, trace.prompts):
        layers = [prompt.layer(number) for number in prompt.layers]
        prompts.append(
            {
                "id": prompt.id,
                "tokens": prompt.n_tokens,
                "n_prompt": prompt.n_prompt,
                "n_generated": prompt.n_generated,
                "source": prompt.source,
                "token_ids": prompt.token_ids is not None,
                "token_classes": prompt.token_classes is not None,
                "layers": list(map(layer_facts, layers)),
            }
        )
    return {
        "trace_id": trace.trace_id,
        "model": trace.model,
        "revision": trace.revision,
        "n_layers": trace.n_layers,
        "prompts": prompts,
    }


def layer_facts(layer: Layer):
    rope = layer.rope and {name: value for name, value in layer.rope.items() if name != "inv_freq"}
    return {
        "layer": layer.number,
        "q_heads": layer.n_q_heads,
        "kv_heads": layer.n_kv_heads,
        "head_dim": layer.head_dim,
        "v_head_dim": layer.v_head_dim,
        "tokens": layer.n_tokens,
        "query_rows": layer.n_query_rows,
        "dtype": layer.dtype,
        "source_dtype": layer.source_dtype,
        "scaling": layer.scaling,
        "sliding_window": layer.sliding_window,
        "attention_chunk": layer.attention_chunk,
        "softcap": layer.softcap,
        "q_prescaled": layer.q_prescaled,
        "rope": rope,
        "rope_recorded": layer.rope_recorded,
        "rope_unknown": layer.rope_unknown,
        "kv_layer": layer.kv_layer,
        "latent": layer.latent,
        "out": layer.out is not None,
        "sinks": layer.sinks is not None,
        "q_pos": layer._facts.has_q_pos,
    }


def check_facts_like_engine(path):
    engine, ours = inspected(path), all_facts(Trace(path))
    for prompt in engine["prompts"]:
        for of_engine in ("bytes", "repeat", "lookahead", "segments", "branches"):
            del prompt[of_engine]
        for layer in prompt["layers"]:
            for of_engine in ("bytes", "repeat_rows", "repeat_in_norm", "resid_in_norm", "lookahead_rows"):
                del layer[of_engine]
    assert ours == {name: engine[name] for name in ours}
    return ours


def without_id(path):
    with h5py.File(path, "r+") as file:
        del file.attrs["trace_id"]
    return path


def test_facts_of_the_sample_equal_the_engines(tmp_path):
    check_facts_like_engine(SAMPLE)
    # Without a stored identity, both derive it from the content.
    shutil.copy(SAMPLE, tmp_path / "copy.h5")
    ours = check_facts_like_engine(without_id(tmp_path / "copy.h5"))
    assert ours["trace_id"] != Trace(SAMPLE).trace_id


@pytest.mark.parametrize(
    "words", [("--dtype", "f16"), ("--no-rope",), ("--layers", 3, "--with-out")], ids=str
)
def test_facts_of_synthetic_traces_equal_the_engines(words, tmp_path):
    trace = synth(tmp_path / "t.h5", "--tokens", 64, "--prompt", 48, *words)
    check_facts_like_engine(trace)
    check_facts_like_engine(without_id(trace))


def test_a_trace_of_five_lines_has_the_defaults(tmp_path):
    path = five_lines(tmp_path / "t.h5")
    check_facts_like_engine(path)
    layer = Trace(path).layer(0)
    assert (layer.sliding_window, layer.softcap, layer.q_prescaled) == (0, 0, False)
    assert (layer.rope, layer.rope_recorded, layer.sinks, layer.out) == (None, False, None, None)
    assert (layer.token_ids, layer.token_classes, layer.token_text) == (None, None, None)
    assert (layer.n_prompt, layer.n_generated) == (TOKENS, 0)
    assert layer.q_pos.tolist() == layer.position_ids.tolist() == list(range(TOKENS))
    assert (Trace(path).model, Trace(path).revision, Trace(path).n_layers) == ("unknown", "", 1)


def test_tokens_after_a_prompt_count_as_generated(tmp_path):
    path = five_lines(tmp_path / "t.h5")
    with h5py.File(path, "r+") as file:
        file["prompts/p0"].attrs["n_prompt"] = 40
    check_facts_like_engine(path)
    assert Trace(path).prompt().n_generated == TOKENS - 40


def test_all_facts_of_a_trace_equal_the_engines(tmp_path):
    path = five_lines(
        tmp_path / "t.h5",
        scaling=np.float32(0.3),
        sliding_window=7,
        softcap=50.0,
        q_prescaled=np.bool_(True),
        source_dtype="bfloat16",
        rope_json=json.dumps(
            {"theta": 1e6, "layout": "interleaved", "rotary_dims": 4, "attention_factor": 1.3}
        ),
    )
    with h5py.File(path, "r+") as file:
        file.attrs.update(model="Größe", revision="abc", n_layers=5)
        layer, prompt = file[LAYER], file["prompts/p0"]
        k = layer["k"][()].astype(">f4")
        del layer["k"], layer["q"]
        layer["k"] = k
        layer["q"] = drawn()[0][:, ::3].astype(np.float16)
        layer["q_pos"] = np.arange(0, TOKENS, 3)
        layer["sinks"] = np.linspace(-1, 1, Q_HEADS)
        layer.create_dataset("out", data=drawn(seed=2)[0][:, ::3], compression="gzip")
        prompt["tokens"] = np.arange(TOKENS)[::-1]
        prompt["token_class"] = (np.arange(TOKENS) % 3).astype(np.int16)
        prompt["position_ids"] = np.arange(TOKENS, dtype=np.uint8) + 5
        prompt.create_dataset("token_text", data=["é"] * TOKENS, dtype=h5py.string_dtype())
        prompt.attrs.update(n_prompt=40, n_generated=3, source="a page")
    check_facts_like_engine(path)
    layer = Trace(path).layer(0)
    assert layer.token_ids.tolist() == list(range(TOKENS))[::-1]
    assert layer.token_classes.dtype == np.uint8
    assert layer.position_ids[0] == 5
    assert layer.token_text == ["é"] * TOKENS
    assert layer.q_pos.tolist() == list(range(0, TOKENS, 3))
    assert np.array_equal(layer.sinks, np.linspace(-1, 1, Q_HEADS).astype(np.float32))
    assert np.array_equal(layer.k, drawn()[1])
    assert layer.rope["inv_freq"] == [1.0, math.pow(1e6, -0.5)]


OTHER = json.dumps(ROPE | {"theta": 77.0})


@pytest.mark.parametrize(
    "layer, root, theta, recorded",
    [
        ({}, {}, None, False),
        ({}, {"rope_json": OTHER}, 77.0, True),
        ({"rope_json": json.dumps(ROPE)}, {"rope_json": OTHER}, 1e4, True),
        ({"rope": "none"}, {"rope_json": OTHER}, None, True),
        ({"rotary_dims": 0}, {"rope_json": OTHER}, None, True),
        ({"rope": "none"}, {}, None, True),
        ({"rope": "post", "rotary_dims": 4}, {"rope_json": OTHER}, 77.0, True),
        ({"rope_json": '{"type": "none"}'}, {"rope_json": OTHER}, None, True),
        ({"rope_json": "null"}, {"rope_json": OTHER}, None, False),
        ({"rope_json": ""}, {"rope_json": OTHER}, None, False),
        ({}, {"rope_json": '{"type": "yarn", "inv_freq": [1, 0.5, 0.25, 1e-7]}'}, 0.0, True),
    ],
)
def test_a_layers_rope_overrides_the_roots(layer, root, theta, recorded, tmp_path):
    path = five_lines(tmp_path / "t.h5", **layer)
    with h5py.File(path, "r+") as file:
        file.attrs.update(root)
    found = Trace(path).layer(0)
    assert (found.rope and found.rope["theta"], found.rope_recorded) == (theta, recorded)
    check_facts_like_engine(path)


BAD_ROPES = [
    {"theta": 1e4, "rotary_dims": 3},
    {"theta": 1e4, "rotary_dims": 10},
    {"theta": 1e4, "rotary_dims": "4"},
    {"theta": -1},
    {"theta": True},
    {"theta": 1e4, "layout": "pairs"},
    {"theta": 1e4, "layout": 7},
    {"theta": 1e4, "attention_factor": 0},
    {"type": "yarn", "theta": 1e4},
    {"inv_freq": [1, 0.5]},
    {"inv_freq": [1, 0.5, 0.2, -0.1]},
    {"inv_freq": [1, 0.5, 0.2, None]},
    [1, 2],
]


@pytest.mark.parametrize("rope", BAD_ROPES, ids=str)
def test_a_rope_that_cannot_be_is_refused_in_the_engines_words(rope, tmp_path):
    path = five_lines(tmp_path / "t.h5", rope_json=json.dumps(rope))
    with pytest.raises(TraceError) as error:
        Trace(path).layer(0)
    assert str(error.value) in kvreplay("inspect", path).stderr


def test_gradients_count_for_the_identity_as_in_the_engine(tmp_path):
    path = five_lines(tmp_path / "t.h5")
    plain = Trace(path).trace_id
    with h5py.File(path, "r+") as file:
        file[LAYER]["g"] = np.ones((1, Q_HEADS, 2, DIM), np.float32)
        file[LAYER]["g_rows"] = [3, 9]
    assert check_facts_like_engine(path)["trace_id"] != plain


@pytest.mark.parametrize("width", [None, 6])
def test_texts_of_any_width_are_read_and_bytes_that_are_no_text_refused(width, tmp_path):
    path = five_lines(tmp_path / "t.h5")
    texts = ["é", "longer", "", *["x"] * (TOKENS - 3)]
    as_bytes = [text.encode() for text in texts]
    with h5py.File(path, "r+") as file:
        stored = h5py.string_dtype("utf-8", width)
        file["prompts/p0"].create_dataset("token_text", data=as_bytes, dtype=stored)
    assert Trace(path).prompt().token_text == texts
    with h5py.File(path, "r+") as file:
        file["prompts/p0/token_text"][1] = b"\xff"
    with pytest.raises(TraceError, match="p0/token_text: holds what is not UTF-8 text"):
        Trace(path).prompt().token_text  # noqa: B018


def test_a_layer_is_read_beside_a_damaged_one(tmp_path):
    path = five_lines(tmp_path / "t.h5")
    with h5py.File(path, "r+") as file:
        file.copy(LAYER, file, "prompts/p0/layers/001")
        del file["prompts/p0/layers/001/v"]
    assert np.array_equal(Trace(path).layer(0).k, drawn()[1])
    with pytest.raises(TraceError, match=r"layers/001/v: is missing"):
        Trace(path).layer(1)


def test_repeated_rotary_dims_must_agree(tmp_path):
    rope = json.dumps({"theta": 1e4, "rotary_dims": 4})
    path = five_lines(tmp_path / "t.h5", rope_json=rope, rotary_dims=6)
    with pytest.raises(TraceError, match="attribute rotary_dims is 6") as error:
        Trace(path).layer(0)
    assert str(error.value) in kvreplay("inspect", path).stderr


def index_of(path, target):
    with h5py.File(path, "w") as file:
        file.attrs["kvreplay_schema"] = 1
        file[LAYER] = h5py.ExternalLink(target, LAYER)
    return path


def test_an_index_of_links_is_read_as_one_trace(tmp_path):
    (tmp_path / "p0").mkdir()
    five_lines(tmp_path / "p0/000.h5")
    with h5py.File(tmp_path / "p0/000.h5", "r+") as file:
        file.attrs["rope_json"] = OTHER  # attribute of the linked file, since the index has none
    index = index_of(tmp_path / "index.h5", "p0/000.h5")
    check_facts_like_engine(index)
    assert Trace(index).layer(0).rope["theta"] == 77.0
    assert Trace(tmp_path).path == index
    assert same_bits(Trace(index), tmp_path / "p0/000.h5")
    assert isinstance(Trace(index).layer(0).raw("k")[0], np.memmap)


@pytest.mark.parametrize(
    "target, words",
    [("gone.h5", "is missing"), ("/t.h5", "not relative"), ("../t.h5", "leaves the file's folder")],
)
def test_links_that_lead_nowhere_or_outside_are_refused_as_by_the_engine(target, words, tmp_path):
    (tmp_path / "here").mkdir()
    five_lines(tmp_path / "t.h5")
    index = index_of(tmp_path / "here/index.h5", target)
    with pytest.raises(TraceError, match=words):
        Trace(index).layer(0)
    assert words in kvreplay("inspect", index).stderr


def test_links_in_a_circle_are_refused(tmp_path):
    path = five_lines(tmp_path / "t.h5")
    with h5py.File(path, "r+") as file:
        del file[f"{LAYER}/k"]
        file[f"{LAYER}/k"] = h5py.SoftLink(f"/{LAYER}/k")
    with pytest.raises(TraceError, match="more than 16 links lead to it, or they form a loop"):
        Trace(path).layer(0)


# ---- storage of numbers


def replaced(path, name, array, file_type=None, **options):
    with h5py.File(path, "r+") as file:
        del file[f"{LAYER}/{name}"]
        if file_type is None:
            return file.create_dataset(f"{LAYER}/{name}", data=array, **options) and path
        space = h5py.h5s.create_simple(array.shape)
        made = h5py.h5d.create(file[LAYER].id, name.encode(), file_type, space)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, array, mtype=file_type)
    return path


K = drawn(dtype=BFLOAT16)[1]
STORED = {
    "float32": ("float32", lambda path: replaced(path, "k", K.astype("<f4"))),
    "float32 big endian": ("float32", lambda path: replaced(path, "k", K.astype(">f4"))),
    "float16": ("float16", lambda path: replaced(path, "k", K.astype("<f2"))),
    "float16 big endian": ("float16", lambda path: replaced(path, "k", K.astype(">f2"))),
    "bfloat16": ("bfloat16", lambda path: replaced(path, "k", bits(K), bf16_file_type())),
    "bfloat16 as bits": ("bfloat16", lambda path: replaced(path, "k", bits(K))),
    "bfloat16 as bits big endian": ("bfloat16", lambda path: replaced(path, "k", bits(K).astype(">u2"))),
    "chunks and gzip": ("float32", lambda path: replaced(path, "k", K.astype("<f4"), compression="gzip")),
}
MAPPED = {"float32", "float16", "bfloat16", "bfloat16 as bits"}


@pytest.mark.parametrize("case", STORED)
def test_numbers_are_read_as_stored(case, tmp_path):
    dtype, store = STORED[case]
    path = store(five_lines(tmp_path / "t.h5", source_dtype="bfloat16"))
    layer = Trace(path).layer(0)
    raw, name = layer.raw("k")
    expected = K.astype(np.float16) if dtype == "float16" else K.astype(np.float32)
    assert name == dtype == layer.dtype
    assert layer.k.dtype == expected.dtype
    assert np.array_equal(layer.k, expected)
    assert np.array_equal(bits(raw), bits(K if dtype == "bfloat16" else expected))
    assert raw.dtype.isnative
    assert not raw.flags.writeable
    assert not layer.k.flags.writeable
    assert isinstance(raw, np.memmap) == (case in MAPPED)
    check_facts_like_engine(path)


def test_a_memory_map_finds_its_numbers_after_a_user_block(tmp_path):
    path = five_lines(tmp_path / "plain.h5")
    with h5py.File(tmp_path / "t.h5", "w", userblock_size=1024) as file, h5py.File(path) as plain:
        file.attrs.update(plain.attrs)
        plain.copy("prompts", file)
    raw, _ = Trace(tmp_path / "t.h5").layer(0).raw("v")
    assert isinstance(raw, np.memmap)
    assert np.array_equal(raw, drawn()[2])


# ---- closing the file


@pytest.mark.parametrize("locking", [True, False])
def test_a_file_opened_by_another_process_can_be_read(locking, tmp_path):
    path = five_lines(tmp_path / "t.h5")
    with h5py.File(path, "r", locking=locking):
        assert np.array_equal(Trace(path).layer(0).q, drawn()[0])


def open_files():
    return [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.exists()]


def test_nothing_stays_open_but_within_a_with_block(tmp_path):
    path = five_lines(tmp_path / "t.h5")
    trace = open_trace(path)
    trace.layer(0).q  # noqa: B018
    assert str(path) not in open_files()
    with trace:
        trace.layer(0).q  # noqa: B018
        assert str(path) in open_files()
    assert str(path) not in open_files()


def test_an_open_trace_is_read_in_a_forked_process(tmp_path):
    with open_trace(five_lines(tmp_path / "t.h5")) as trace:
        layer = trace.layer(0)
        assert np.array_equal(layer.q, drawn()[0])
        child = os.fork()
        if child == 0:
            os._exit(0 if np.array_equal(layer.k, drawn()[1]) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert np.array_equal(layer.v, drawn()[2])


def test_traces_and_layers_are_pickled_by_their_path(tmp_path):
    path = five_lines(tmp_path / "t.h5")
    layer = Trace(path).layer(0)
    layer.q  # noqa: B018
    text = pickle.dumps(layer)
    assert len(text) < 500
    assert np.array_equal(pickle.loads(text).k, layer.k)
    assert pickle.loads(pickle.dumps(layer.prompt)).n_prompt == TOKENS


# ---- refusals


def read_all(path):
    with open_trace(path) as trace:
        all_facts(trace)
        for prompt in map(trace.prompt, trace.prompts):
            assert prompt.position_ids is not None
            for layer in map(prompt.layer, prompt.layers):
                for name in ("q", "k", "v", "out", "sinks", "q_pos"):
                    getattr(layer, name)


def outcome(path):
    """Exit code 0 or 3 of a child process: a damaged file may crash the reading process."""
    child = os.fork()
    if child == 0:
        try:
            read_all(path)
            os._exit(0)
        except TraceError as error:
            os._exit(3 if "\n" not in str(error) and "/" in str(error) else 4)
        except BaseException:
            os._exit(5)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def check_outcome_like_engine(named, tmp_path):
    write_trace(tmp_path / "sound.h5")
    differing = {}
    for name, damage in named:
        folder = tmp_path / "damaged"
        folder.mkdir()
        shutil.copy(tmp_path / "sound.h5", folder / "damaged.h5")
        damage(folder / "damaged.h5")
        ours, engine = outcome(folder / "damaged.h5"), kvreplay("validate", "--deep", folder / "damaged.h5")
        # Exit code 2: without its first bytes the program reads the file as a configuration.
        same = ours == engine.returncode or (ours, engine.returncode) == (3, 2)
        if not same and not (ours == 0 and any(word in engine.stderr for word in OF_ENGINE)):
            differing[name] = (ours, engine.returncode, engine.stderr)
        shutil.rmtree(folder)
    return differing


@pytest.mark.long
def test_python_refuses_exactly_the_traces_that_the_engine_refuses(tmp_path):
    assert check_outcome_like_engine(mutations(NAMED_MUTATIONS), tmp_path) == {}


@pytest.mark.slow
def test_randomly_damaged_traces_end_as_in_the_engine(tmp_path):
    # One seed damages a dataset that readers ignore; only --deep reads it.
    assert len(check_outcome_like_engine(mutations(1000)[NAMED_MUTATIONS:], tmp_path)) <= 1


def test_a_chunk_that_was_never_written_is_no_zeros(tmp_path):
    path = five_lines(tmp_path / "t.h5")
    with h5py.File(path, "r+") as file:
        del file[f"{LAYER}/k"]
        k = file[LAYER].create_dataset("k", (KV_HEADS, TOKENS, DIM), np.float32, chunks=(1, 16, DIM))
        k[0] = 1
    with pytest.raises(
        TraceError, match=r"t\.h5: /prompts/p0/layers/000/k: .* in 6 chunks, but 3 were written"
    ):
        Trace(path).layer(0)


def test_extents_that_the_file_cannot_hold_are_refused(tmp_path):
    path = five_lines(tmp_path / "t.h5")
    there, claimed = (struct.pack("<3Q", KV_HEADS, tokens, DIM) for tokens in (TOKENS, 2**30))
    content = path.read_bytes()
    assert there in content
    path.write_bytes(content.replace(there, claimed))
    # HDF5 detects it itself from version 2.0 on.
    with pytest.raises(TraceError, match=r"/layers/000/k: (declares .* but the file holds only|is damaged)"):
        Trace(path).layer(0)
    assert "but the file holds only" in kvreplay("inspect", path).stderr


@pytest.mark.parametrize(
    "number, name", [(np.nan, "NaN"), (np.inf, "infinity"), (-(2.0**40), "-1.1e.12")], ids=str
)
def test_a_number_that_cannot_be_replayed_is_named(number, name, tmp_path):
    q, k, v = drawn()
    k[1, 5, 3] = number
    path = five_lines(tmp_path / "t.h5", (q, k, v))
    with pytest.raises(TraceError, match=rf"/layers/000/k: {name} at head 1, token 5, coordinate 3"):
        Trace(path).layer(0).k  # noqa: B018
    assert Trace(path).layer(0).raw("k")[0][1, 5, 3] == pytest.approx(number, nan_ok=True)


@pytest.mark.parametrize(
    "ask, words",
    [
        (lambda t: t.layer(3), "prompt p0 holds no layer 3. It holds 0"),
        (lambda t: t.layer(0, "p9"), "holds no prompt p9. It holds p0"),
        (lambda t: t.layer(0).raw("x"), "q, k, v, out, not x"),
        (lambda t: Trace("gone.h5").layers(), "gone.h5: no such file"),
        (lambda t: Trace("a\0b"), "no such file"),
        (lambda t: Trace("t.h5.part"), "unfinished dump"),
        (lambda t: open_trace(ROOT / "README.md"), "not an HDF5 file"),
        (lambda t: open_trace(ROOT / "docs"), "is a folder"),
    ],
)
def test_missing_parts_are_named_with_the_available_ones(ask, words, tmp_path):
    with pytest.raises(TraceError) as error:
        ask(Trace(five_lines(tmp_path / "t.h5")))
    assert words in str(error.value)
    assert isinstance(error.value, ValueError)
    assert isinstance(error.value, KvreplayError)


# The rooms and packages that a room of the package may import; the importer builds on the trace.
ROOMS = {
    "importing": {"importing", "trace", "kvtrace", "kvbase"},
}


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_of_traces_import_only_what_lies_below_them(room):
    package = ROOT / "apps/kvreplay"
    files = sorted((package / room).glob("*.py"))
    assert files
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("kv")):
                target = (node.module or "").split(".")[0] if node.level != 1 else room
                assert target in ROOMS[room], f"{path.name} imports {target}"


def test_errors_carry_the_exit_codes_of_the_program():
    assert [error.exit_code for error in (ConfigError, OutputError, TraceError)] == [2, 2, 3]


# ---- writing


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=str)
@pytest.mark.parametrize("compress", [False, True])
def test_written_arrays_come_back_bit_for_bit(dtype, compress, tmp_path):
    given = {3: drawn(dtype=dtype), 11: drawn(dtype=dtype, seed=1, v_dim=6)}
    trace = Trace.write(tmp_path / "t.h5", given, compress=compress)
    assert trace.layers() == [3, 11]
    assert trace.n_layers == 12
    for number, arrays in given.items():
        for name, array in zip("qkv", arrays, strict=True):
            raw, stored = trace.layer(number).raw(name)
            assert stored == np.dtype(dtype).name
            assert np.array_equal(bits(raw), bits(array))
    assert trace.layer(3).scaling == 1 / math.sqrt(DIM)
    assert is_sound(trace.path)
    check_facts_like_engine(trace.path)
    assert [p.name for p in tmp_path.iterdir()] == ["t.h5"]


def test_views_and_other_orders_of_memory_are_written_as_their_values(tmp_path):
    q, k, v = drawn()
    odd = (np.asfortranarray(q), np.repeat(k, 2, axis=1)[:, ::2], v[:, ::-1].astype(">f4"))
    trace = Trace.write(tmp_path / "t.h5", {0: odd})
    assert same_bits(trace, Trace.write(tmp_path / "u.h5", {0: (q, k, v[:, ::-1])}))


def test_all_arguments_are_written(tmp_path):
    q, k, v = drawn()
    strided = {
        "q": q[:, ::3],
        "k": k,
        "v": v,
        "scaling": 0.3,
        "sliding_window": 9,
        "softcap": 30.0,
        "q_prescaled": True,
        "rope": {"theta": 77.0, "layout": "interleaved", "rotary_dims": 4},
        "sinks": np.arange(Q_HEADS, dtype=np.float32),
        "q_pos": range(0, TOKENS, 3),
    }
    strided["out"] = attention(
        strided["q"],
        k,
        v,
        0.3,
        window=9,
        softcap=30.0,
        sinks=strided["sinks"],
        tokens=np.arange(0, TOKENS, 3),
    ).astype(np.float32)
    trace = Trace.write(
        tmp_path / "t.h5",
        {0: (q, k, v), 1: strided, 2: LayerArrays(q, k, v, rope="none")},
        prompt="page 1",
        n_prompt=40,
        n_generated=5,
        n_layers=8,
        model="Größe",
        revision="abc",
        rope=ROPE,
        token_ids=range(TOKENS),
        token_classes=[0, 1, 2] * (TOKENS // 3),
        token_text=["é"] * TOKENS,
        position_ids=np.arange(TOKENS) + 7,
        source="a page",
    )
    assert is_sound(trace.path)
    facts = check_facts_like_engine(trace.path)
    assert (facts["model"], facts["revision"], facts["n_layers"]) == ("Größe", "abc", 8)
    first, layer, last = map(trace.layer, (0, 1, 2))
    assert (first.rope["theta"], layer.rope["theta"], last.rope, last.rope_recorded) == (
        1e4,
        77.0,
        None,
        True,
    )
    assert (layer.scaling, layer.sliding_window, layer.softcap, layer.q_prescaled) == (0.3, 9, 30.0, True)
    assert layer.q_pos.tolist() == list(range(0, TOKENS, 3))
    assert layer.sinks.tolist() == list(range(Q_HEADS))
    assert np.array_equal(layer.out, strided["out"])
    assert (layer.n_prompt, layer.n_generated, layer.prompt.source) == (40, 5, "a page")
    assert layer.token_ids.tolist() == list(range(TOKENS))
    assert layer.token_classes.tolist() == [0, 1, 2] * (TOKENS // 3)
    assert layer.token_text == ["é"] * TOKENS
    assert layer.position_ids[0] == 7


def test_a_trace_is_named_by_its_content_facts_included(tmp_path):
    def identity(**changed):
        layer = dict(zip("qkv", drawn(), strict=True)) | changed
        trace = Trace.write(tmp_path / "t.h5", {0: layer}, rope=ROPE, n_prompt=40)
        assert trace.trace_id == inspected(trace.path)["trace_id"]
        return trace.trace_id

    plain = identity()
    assert identity() == plain
    changes = (
        {"scaling": 0.5},
        {"sliding_window": 4},
        {"attention_chunk": 4},
        {"softcap": 9.0},
        {"rope": "none"},
        {"q_prescaled": True},
        {"k": drawn(seed=3)[1]},
        {"sinks": np.ones(Q_HEADS, np.float32)},
    )
    assert len({identity(**change) for change in changes} | {plain}) == len(changes) + 1
    # A file's stored identity equals the one that the engine derives when none is stored.
    identity()
    assert inspected(without_id(tmp_path / "t.h5"))["trace_id"] == plain


def test_layers_of_a_trace_are_written_as_they_are(tmp_path):
    sample = Trace(SAMPLE)
    layers = {number: sample.layer(number) for number in (0, 7)}
    copy = Trace.write(
        tmp_path / "t.h5", layers, n_layers=30, n_prompt=layers[0].n_prompt, model=sample.model
    )
    assert same_bits(copy, sample)
    assert np.array_equal(copy.layer(0).out, sample.layer(0).out)
    for number in layers:
        assert layer_facts(copy.layer(number)) == layer_facts(sample.layer(number))
        assert copy.layer(number).rope == sample.layer(number).rope
    assert is_sound(copy.path)


def test_a_layers_sinks_window_and_strided_queries_go_with_it(tmp_path):
    q, k, v = drawn(dtype=BFLOAT16)
    given = LayerArrays(
        q[:, ::4],
        k,
        v,
        scaling=0.3,
        sliding_window=9,
        softcap=30.0,
        q_prescaled=True,
        rope="none",
        sinks=np.arange(Q_HEADS, dtype=np.float32),
        q_pos=range(0, TOKENS, 4),
        source_dtype="float32",
    )
    first = Trace.write(tmp_path / "t.h5", {2: given}, n_prompt=40)
    copy = Trace.write(tmp_path / "u.h5", {2: first.layer(2)}, n_prompt=40)
    assert copy.trace_id == first.trace_id
    assert layer_facts(copy.layer(2)) == layer_facts(first.layer(2))
    assert copy.layer(2).sinks.tolist() == list(range(Q_HEADS))
    assert copy.layer(2).q_pos.tolist() == list(range(0, TOKENS, 4))
    assert copy.layer(2).n_generated == TOKENS - 40


def test_several_prompts_are_written_into_one_trace(tmp_path):
    prompts = {
        "a": {"layers": {0: drawn()}, "n_prompt": 30},
        "b": {"layers": {0: drawn(tokens=20, seed=1)}, "token_ids": range(20)},
    }
    trace = Trace.write(tmp_path / "t.h5", prompts=prompts)
    assert trace.prompts == ["a", "b"]
    assert [trace.prompt(p).n_tokens for p in trace.prompts] == [TOKENS, 20]
    assert trace.layer(0).n_prompt == 30
    assert np.array_equal(trace.layer(0, "b").k, drawn(tokens=20, seed=1)[1])
    assert is_sound(trace.path)


def test_layers_are_requested_one_at_a_time(tmp_path):
    asked = []

    class Lazy(dict):
        def __getitem__(self, number):
            asked.append(number)
            return drawn(seed=number)

    trace = Trace.write(tmp_path / "t.h5", Lazy.fromkeys([2, 0, 1]))
    assert asked == [0, 1, 2]
    assert np.array_equal(trace.layer(2).v, drawn(seed=2)[2])


@pytest.mark.torch
def test_tensors_of_torch_are_taken_bit_for_bit(tmp_path):
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        tensors = [torch.from_numpy(x).to(dtype).requires_grad_() for x in drawn()]
        trace = Trace.write(tmp_path / "t.h5", {0: tensors}, token_ids=torch.arange(TOKENS))
        for name, tensor in zip("qkv", tensors, strict=True):
            expected = tensor.detach().view(torch.int32 if dtype == torch.float32 else torch.int16).numpy()
            assert np.array_equal(bits(trace.layer(0).raw(name)[0]), bits(expected))


Q, KEYS, V = drawn()
NAN = KEYS.copy()
NAN[1, 2, 3] = np.nan
REFUSED = {
    "two arrays": ({0: (Q, KEYS)}, {}, "layer 0: is a tuple of 2, it must be (q, k, v)"),
    "no arrays": ({0: 5}, {}, "layer 0: is a int, it must be a LayerArrays or a mapping"),
    "an unknown name": ({0: {"q": Q, "k": KEYS, "v": V, "scale": 1}}, {}, "layer 0: scale means nothing"),
    "no k": ({0: {"q": Q, "v": V}}, {}, "layer 0: k missing"),
    "no q": ({0: (None, KEYS, V)}, {}, "q holds object"),
    "two axes": ({0: (Q[0], KEYS, V)}, {}, "q: has shape [48, 8], it must have 3 axes"),
    "heads that do not divide": ({0: (Q[:3], KEYS, V)}, {}, "q: has 3 heads, which is not a multiple"),
    "other tokens in v": ({0: (Q, KEYS, V[:, 1:])}, {}, "v: has shape [2, 47, 8], its axis 1 must be 48"),
    "other heads in v": ({0: (Q, KEYS, V[:1])}, {}, "v: has shape [1, 48, 8], its axis 0 must be 2"),
    "other width of q": ({0: (Q[..., 1:], KEYS, V)}, {}, "q: has shape [4, 48, 7], its axis 2 must be 8"),
    "no tokens": ({0: (Q[:, :0], KEYS[:, :0], V[:, :0])}, {}, "0 tokens, it must be from 1"),
    "strided without q_pos": ({0: (Q[:, ::2], KEYS, V)}, {}, "q: has 24 rows for 48 tokens: say with q_pos"),
    "float64": ({0: (Q, KEYS.astype(float), V)}, {}, "layer 0: k holds float64. Give float32, float16"),
    "integers": ({0: (Q, KEYS, V.astype(int))}, {}, "layer 0: v holds int64"),
    "NaN": ({0: (Q, NAN, V)}, {}, "k: NaN at head 1, token 2, coordinate 3"),
    "NaN in bfloat16": ({0: (Q, NAN.astype(BFLOAT16), V)}, {}, "k: NaN at head 1, token 2, coordinate 3"),
    "infinity in float16": ({0: (Q, np.full_like(KEYS, np.inf, np.float16), V)}, {}, "infinity at head 0"),
    "NaN in out": ({0: LayerArrays(Q, KEYS, V, out=Q * np.nan)}, {}, "out: NaN at head 0, query 0"),
    "out of another shape": ({0: LayerArrays(Q, KEYS, V, out=V)}, {}, "out: has shape [2, 48, 8], it must"),
    "too few sinks": ({0: LayerArrays(Q, KEYS, V, sinks=V[0, 0, :3])}, {}, "sinks: must be 4 finite numbers"),
    "q_pos that falls": ({0: LayerArrays(Q, KEYS, V, q_pos=range(47, -1, -1))}, {}, "q_pos: must ascend"),
    "scaling 0": ({0: LayerArrays(Q, KEYS, V, scaling=0)}, {}, "scaling is 0, it must be from 1e-12"),
    "a negative window": ({0: LayerArrays(Q, KEYS, V, sliding_window=-1)}, {}, "sliding_window is -1"),
    "a negative chunk": ({0: LayerArrays(Q, KEYS, V, attention_chunk=-1)}, {}, "attention_chunk is -1"),
    "a window and chunks": (
        {0: LayerArrays(Q, KEYS, V, sliding_window=4, attention_chunk=5)},
        {},
        "sliding_window 4 and attention_chunk 5 exclude each other",
    ),
    "rope without theta": ({0: (Q, KEYS, V)}, {"rope": {"type": "yarn"}}, 'rope: needs "inv_freq"'),
    "rope of a word": ({0: (Q, KEYS, V)}, {"rope": "yes"}, "rope is 'yes', it must be a mapping"),
    "layers of other lengths": ({0: (Q, KEYS, V), 1: drawn(tokens=40)}, {}, "layer 1: k has 40 tokens, but"),
    "a layer below 0": ({-1: (Q, KEYS, V)}, {}, "the number of a layer is -1, it must be a whole number"),
    "n_layers too small": ({5: (Q, KEYS, V)}, {"n_layers": 3}, "n_layers is 3, but the file holds layer 5"),
    "n_prompt too large": ({0: (Q, KEYS, V)}, {"n_prompt": 49}, "n_prompt is 49, it must be a whole number"),
    "too few tokens": ({0: (Q, KEYS, V)}, {"token_ids": range(9)}, "tokens: has shape [9] and type int64"),
    "classes beyond 2": ({0: (Q, KEYS, V)}, {"token_classes": [3] * 48}, "token_class: holds 3 at 0"),
    "too little text": ({0: (Q, KEYS, V)}, {"token_text": ["x"]}, "token_text must be 48 strings"),
    "a layer in words": ({"x": (Q, KEYS, V)}, {}, "the number of a layer is 'x'"),
    "n_prompt in words": ({0: (Q, KEYS, V)}, {"n_prompt": "9"}, "n_prompt is '9', it must be a whole number"),
    "n_generated below 0": ({0: (Q, KEYS, V)}, {"n_generated": -1}, "n_generated is -1, it must be"),
    "scaling in words": ({0: LayerArrays(Q, KEYS, V, scaling="x")}, {}, "scaling is 'x', it must be"),
    "half a window": ({0: LayerArrays(Q, KEYS, V, sliding_window=1.5)}, {}, "sliding_window is 1.5"),
    "rope of objects": ({0: (Q, KEYS, V)}, {"rope": {"theta": Q.__class__}}, "rope holds what JSON does not"),
    "n_layers in words": ({0: (Q, KEYS, V)}, {"n_layers": "x"}, "attribute n_layers is not a number"),
    "a prompt with a slash": ({0: (Q, KEYS, V)}, {"prompt": "a/b"}, "an id is a name without slashes"),
    "no layers": ({}, {}, "has no layers"),
    "nothing": (None, {}, "give either layers"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_an_invalid_trace_is_refused_and_no_file_is_left(case, tmp_path):
    layers, words, expected = REFUSED[case]
    path = tmp_path / "t.h5"
    five_lines(path)
    before = path.read_bytes()
    with pytest.raises(TraceError) as error:
        Trace.write(path, layers, **words)
    assert expected in str(error.value)
    assert str(tmp_path) in str(error.value)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["t.h5"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"file/t\.h5\.part: cannot write"):
        Trace.write(tmp_path / "file/t.h5", {0: drawn()})


def test_writing_needs_no_torch(tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None; import numpy as np; from kvreplay.trace import Trace;"
        "x = np.ones((1, 2, 4), np.float32); print(Trace.write(sys.argv[1], {0: (x, x, x)}))"
    )
    path = os.pathsep.join(str(ROOT / folder) for folder in ("lib/python", "apps", "traces"))
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(tmp_path) / "t.h5")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "1 query heads" in done.stdout
