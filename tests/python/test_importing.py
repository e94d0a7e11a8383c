"""Imports traces from other programs: equal numbers in any format give equal traces."""

import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from front_door import import_verb
from kvbase.errors import ConfigError, TraceError
from kvreplay.importing import import_file
from kvreplay.importing.formats import FORMATS
from kvreplay.importing.sidecar import Sidecar
from kvreplay.trace import LayerArrays, Trace
from kvreplay_cli import ROOT, kvreplay, replayed
from safetensors.numpy import save_file

LAYERS, TOKENS, CHUNK, Q_HEADS, KV_HEADS, DIM = 3, 32, 16, 4, 2, 8
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ROPE = {"type": "default", "theta": 1e4, "layout": "half_split", "rotary_dims": DIM}
FACTS = {"scaling": 0.3, "rope": ROPE, "n_prompt": 24, "model": "mine", "token_ids": list(range(TOKENS))}
HEADS = FACTS | {"head_dim": DIM}


def layers_of(dtype):
    draw = np.random.default_rng(4)
    shapes = {"q": (Q_HEADS, TOKENS, DIM), "k": (KV_HEADS, TOKENS, DIM), "v": (KV_HEADS, TOKENS, DIM)}

    def layer():
        return {
            name: draw.standard_normal(shape).astype(np.float32).astype(dtype)
            for name, shape in shapes.items()
        }

    return {number: layer() for number in range(LAYERS)}


def named(layers):
    return {
        f"layers.{number}.{name}": array for number, layer in layers.items() for name, array in layer.items()
    }


def sidecar_of(path, facts):
    path.with_suffix(".json").write_text(json.dumps(facts))
    return path


def lmcache_arrays(layers):
    """Arrays as returned by the SDK's contexts: kv [2, L, T, Hkv * D] and queries [1, L, T, Hq * D]."""
    flat = [
        np.stack([layer[name].transpose(1, 0, 2).reshape(TOKENS, -1) for layer in layers.values()])
        for name in "kvq"
    ]
    return np.stack(flat[:2]), flat[2][None]


def chunks_of(array, axis):
    return np.split(array, TOKENS // CHUNK, axis=axis)


# ---- every format, from layers in a folder


def by_safetensors(layers, folder):
    save_file(named(layers), folder / "dump.safetensors")
    return import_file(sidecar_of(folder / "dump.safetensors", FACTS), folder / "t.h5")


def by_safetensors_of_layers(layers, folder):
    files = []
    for number, layer in layers.items():
        files.append(folder / f"layer{number}.safetensors")
        save_file({f"layers.{number:03d}.{name}": array for name, array in layer.items()}, files[-1])
    return import_file(files[::-1], folder / "t.h5", sidecar=FACTS)


def by_npz(layers, folder):
    np.savez(folder / "dump.npz", **named(layers))
    return import_file(sidecar_of(folder / "dump.npz", FACTS), folder / "t.h5")


def by_npz_of_bits(layers, folder):
    whole = {
        name: array.view(np.uint16) if array.dtype == BFLOAT16 else array
        for name, array in named(layers).items()
    }
    np.savez_compressed(folder / "dump.npz", **whole)
    return import_file(folder / "dump.npz", folder / "t.h5", sidecar=FACTS | {"dtype": "bfloat16"})


def by_lmcache(layers, folder):
    kv, q = lmcache_arrays(layers)
    save_file({"kv": kv, "q": q}, folder / "prompt.safetensors")
    return import_file(folder / "prompt.safetensors", folder / "t.h5", sidecar=HEADS)


def by_lmcache_chunks(layers, folder):
    kv, q = lmcache_arrays(layers)
    parts = {"kv": chunks_of(kv, 2), "q": chunks_of(q[0], 1)}
    files = {name: [folder / f"{name}{i}.npy" for i in range(len(parts[name]))] for name in parts}
    for name, paths in files.items():
        for path, part in zip(paths, parts[name], strict=True):
            np.save(path, part)
    facts = FACTS | {"n_kv_heads": KV_HEADS}
    return import_file(files["kv"], folder / "t.h5", queries=files["q"], sidecar=facts)


def by_lmcache_folder(layers, folder):
    kv, q = lmcache_arrays(layers)
    (folder / "chunks").mkdir()
    for i, (part, question) in enumerate(zip(chunks_of(kv, 2), chunks_of(q, 2), strict=True), start=9):
        np.savez(folder / f"chunks/kv{i}.npz", kv=part)
        np.savez(folder / f"chunks/q{i}.npz", q=question)
    return import_file(folder / "chunks", folder / "t.h5", sidecar=HEADS)


def by_lmcache_heads_apart(layers, folder):
    kv, q = lmcache_arrays(layers)
    kv = kv.reshape(2, LAYERS, TOKENS, KV_HEADS, DIM)
    apart = {f"layers.{i}.q": q[0, i].reshape(TOKENS, Q_HEADS, DIM) for i in range(LAYERS)}
    np.savez(folder / "kv.npz", kv=kv)
    save_file(apart, folder / "q.safetensors")
    return import_file(folder / "kv.npz", folder / "t.h5", queries=folder / "q.safetensors", sidecar=FACTS)


WAYS = [
    by_safetensors, by_safetensors_of_layers, by_npz, by_npz_of_bits, by_lmcache, by_lmcache_chunks,
    by_lmcache_folder, by_lmcache_heads_apart,
]  # fmt: skip


def expected(layers, path):
    given = {number: LayerArrays(**layer, scaling=0.3) for number, layer in layers.items()}
    return Trace.write(path, given, rope=ROPE, n_prompt=24, model="mine", token_ids=range(TOKENS))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("way", WAYS)
def test_the_same_numbers_by_every_format_are_the_same_trace(way, dtype, tmp_path):
    layers = layers_of(dtype)
    trace, known = way(layers, tmp_path), expected(layers, tmp_path / "known.h5")
    assert trace.trace_id == known.trace_id
    for number, layer in layers.items():
        for name, array in layer.items():
            raw, kind = trace.layer(number).raw(name)
            assert kind == np.dtype(dtype).name
            assert raw.tobytes() == array.tobytes()
    done = kvreplay("validate", "--deep", trace.path)
    assert done.returncode == 0, done.stderr


def test_an_imported_trace_replays(tmp_path):
    trace = by_safetensors(layers_of(np.float32), tmp_path)
    rows = replayed(trace.path, tmp_path / "out", "--method", "h2o", "--budget", 8)
    assert len(rows) == LAYERS * KV_HEADS
    assert {row["model"] for row in rows} == {"mine"}


@pytest.mark.torch
def test_tensors_that_torch_saved_are_read(tmp_path):
    torch = pytest.importorskip("torch")
    layers = layers_of(BFLOAT16)
    kv, q = (torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) for x in lmcache_arrays(layers))
    # Token ids continue after the last whole chunk.
    saved = {"kv": kv, "q": q, "model_name": "mine", "tokens": list(range(TOKENS + 5))}
    torch.save(saved, tmp_path / "kv.pt")
    facts = {name: value for name, value in HEADS.items() if name not in ("model", "token_ids")}
    trace = import_file(tmp_path / "kv.pt", tmp_path / "t.h5", sidecar=facts)
    assert trace.trace_id == expected(layers, tmp_path / "known.h5").trace_id


# ---- the sidecar


def imported(tmp_path, facts, layers=None, **more):
    np.savez(tmp_path / "dump.npz", **named(layers or layers_of(np.float32)), **more)
    return import_file(tmp_path / "dump.npz", tmp_path / "t.h5", sidecar=facts)


@pytest.mark.parametrize(
    "said", [[0.1, 0.2, 0.3], {"0": 0.1, "1": 0.2, "2": 0.3}], ids=["a list", "by number"]
)
def test_a_fact_holds_for_all_layers_or_is_a_list_by_layer(said, tmp_path):
    ropes = [{"theta": 10.0}, "none", None]
    trace = imported(tmp_path, {"scaling": said, "sliding_window": 4, "rope": ropes})
    layers = [trace.layer(number) for number in range(LAYERS)]
    assert [layer.scaling for layer in layers] == [0.1, 0.2, 0.3]
    assert [layer.sliding_window for layer in layers] == [4, 4, 4]
    assert [layer.rope and layer.rope["theta"] for layer in layers] == [10.0, None, None]
    assert [layer.rope_recorded for layer in layers] == [True, True, False]


def test_layers_with_numbers_keep_them(tmp_path):
    layers = layers_of(np.float32)
    trace = imported(tmp_path, {"scaling": {"5": 0.5, "7": 0.7}, "n_layers": 9}, {5: layers[0], 7: layers[1]})
    assert trace.layers() == [5, 7]
    assert (trace.layer(5).scaling, trace.layer(7).scaling, trace.n_layers) == (0.5, 0.7, 9)


def test_data_besides_q_k_and_v_is_read(tmp_path):
    layers = layers_of(np.float32)
    layers[1]["q"] = layers[1]["q"][:, ::2]
    layers[1]["q_pos"] = np.arange(0, TOKENS, 2)
    layers[1]["sinks"] = np.arange(Q_HEADS, dtype=np.float32)
    layers[1]["out"] = layers[1]["q"] + 1
    trace = imported(tmp_path, {}, layers, token_ids=np.arange(TOKENS), position_ids=np.arange(TOKENS) + 3)
    layer = trace.layer(1)
    assert layer.q_pos.tolist() == list(range(0, TOKENS, 2))
    assert layer.sinks.tolist() == list(range(Q_HEADS))
    assert np.array_equal(layer.out, layers[1]["out"])
    assert layer.token_ids.tolist() == list(range(TOKENS))
    assert layer.position_ids[0] == 3


def test_queries_of_the_last_tokens_alone_say_where_they_begin(tmp_path):
    kv, q = lmcache_arrays(layers_of(np.float32))
    np.savez(tmp_path / "kv.npz", kv=kv, q=q[:, :, 20:])
    trace = import_file(tmp_path / "kv.npz", tmp_path / "t.h5", sidecar=HEADS | {"q_from": 20})
    assert trace.layer(0).q_pos.tolist() == list(range(20, TOKENS))


def test_chunks_of_chosen_layers_are_numbered_by_the_sidecar(tmp_path):
    kv, q = lmcache_arrays(layers_of(np.float32))
    np.savez(tmp_path / "kv.npz", kv=kv, q=q)
    trace = import_file(tmp_path / "kv.npz", tmp_path / "t.h5", sidecar=HEADS | {"layers": [20, 10, 0]})
    assert trace.layers() == [0, 10, 20]
    assert np.array_equal(trace.layer(20).k, layers_of(np.float32)[0]["k"])


BAD_SIDECARS = {
    "an unknown key": ({"scalling": 1}, 'dump.json: "scalling" is unknown; did you mean "scaling"?'),
    "too short a list": ({"scaling": [0.1, 0.2]}, '"scaling" has 2 entries for 3 layers'),
    "a layer that is not there": ({"scaling": {"9": 0.1}}, '"scaling" names layer 9'),
    "scaling in words": ({"scaling": "1/8"}, '"scaling" is "1/8", it must be a number'),
    "a list of words": ({"scaling": [0.1, "x", 0.1]}, '"scaling" is "x", it must be a number'),
    "half a token": ({"n_prompt": 1.5}, '"n_prompt" is 1.5, it must be a whole number'),
    "rope in words": ({"rope": "yes"}, '"rope" is "yes", it must be an object'),
    "an unknown dtype": ({"dtype": "fp8"}, '"dtype" is "fp8". Write "bfloat16"'),
    "a list": ([1], "is not a JSON object"),
}


@pytest.mark.parametrize("case", BAD_SIDECARS)
def test_a_sidecar_with_invalid_entries_is_refused(case, tmp_path):
    said, words = BAD_SIDECARS[case]
    np.savez(tmp_path / "dump.npz", **named(layers_of(np.float32)))
    sidecar_of(tmp_path / "dump.npz", said)
    with pytest.raises(ConfigError) as error:
        import_file(tmp_path / "dump.npz", tmp_path / "t.h5")
    assert words in str(error.value)
    assert not (tmp_path / "t.h5").exists()


# ---- refused sources


def truncated(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def written(path, content):
    path.write_bytes(content)
    return path


def saved(folder, arrays, suffix=".npz"):
    path = folder / f"dump{suffix}"
    save_file(arrays, path) if suffix == ".safetensors" else np.savez(path, **arrays)
    return path


def changed(**arrays):
    whole = named(layers_of(np.float32)) | {name.replace("_", "."): array for name, array in arrays.items()}
    return {name: array for name, array in whole.items() if array is not None}


ONES = np.ones((KV_HEADS, TOKENS, DIM), np.float32)
KV, QUERY = lmcache_arrays(layers_of(np.float32))
BAD = {
    "no q": (lambda f: saved(f, changed(layers_1_q=None)), "layers.1.q is missing. A layer needs q, k and v"),
    "two axes": (lambda f: saved(f, changed(layers_1_k=ONES[0])), "layer 1: k: has shape [32, 8]"),
    "NaN": (lambda f: saved(f, changed(layers_2_v=ONES * np.nan)), "layer 2: v: NaN at head 0, token 0"),
    "float64": (lambda f: saved(f, changed(layers_0_v=ONES.astype(float))), "layer 0: v holds float64"),
    "unknown bits": (lambda f: saved(f, changed(layers_0_v=ONES.astype(np.uint16))), "v holds uint16"),
    "objects": (lambda f: saved(f, changed(layers_0_v=np.array([{}]))), "layers.0.v cannot be read"),
    "a strange name": (lambda f: saved(f, changed(layers_0_w=ONES)), "holds layers.0.w. Names are"),
    "no layers": (lambda f: saved(f, {"token_ids": np.arange(3)}), "holds no layers"),
    "half an npz": (lambda f: truncated(saved(f, changed())), "is not an npz file, or is truncated"),
    "half a safetensors": (lambda f: truncated(saved(f, changed(), ".safetensors")), "as a .safetensors"),
    "an empty file": (lambda f: written(f / "x.safetensors", b""), "as a .safetensors"),
    "no such file": (lambda f: f / "gone.npz", "gone.npz: no such file"),
    "an unknown suffix": (lambda f: written(f / "x.bin", b"xxxxxxxx"), "has no known format"),
    "an empty folder": (lambda f: (f / "empty").mkdir() or f / "empty", "holds no chunks"),
    "chunks without queries": (lambda f: saved(f, {"kv": KV}), "holds no queries"),
    "chunks of one tensor": (lambda f: saved(f, {"kv": KV[:1], "q": QUERY}), "the latent of an MLA model"),
    "three tensors": (lambda f: saved(f, {"kv": KV[[0, 1, 1]], "q": QUERY}), "its axis 0 must be 2"),
    "chunks of three axes": (lambda f: saved(f, {"kv": KV[0], "q": QUERY}), "it must be [2, layers, tokens"),
    "queries of fewer layers": (lambda f: saved(f, {"kv": KV, "q": QUERY[0, :2]}), "queries have 2 layers"),
    "queries of fewer tokens": (lambda f: saved(f, {"kv": KV, "q": QUERY[:, :, 1:]}), "queries have 31 rows"),
    "queries of another width": (lambda f: saved(f, {"kv": KV, "q": QUERY[..., 1:]}), "q has 31 numbers"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_source_that_is_no_trace_is_refused_by_name(case, tmp_path, capsys):
    make, words = BAD[case]
    source = make(tmp_path)
    (tmp_path / "facts.json").write_text(json.dumps({"head_dim": DIM}))
    code = import_verb.main(
        [str(source), "-o", str(tmp_path / "t.h5"), "--sidecar", str(tmp_path / "facts.json")]
    )
    message = capsys.readouterr().err
    assert code == 3, message
    assert words in message
    assert message.count("\n") == 1
    assert not list(tmp_path.glob("t.h5*"))


def test_a_missing_number_of_heads_is_requested(tmp_path):
    with pytest.raises(TraceError, match=r'kv has 16 numbers per token.* Write "head_dim" or "n_kv_heads"'):
        import_file(saved(tmp_path, {"kv": KV, "q": QUERY}), tmp_path / "t.h5", sidecar={})


LATER = {"layers": KV[:, :2, CHUNK:], "type": KV[:, :, CHUNK:].astype(np.float16)}


@pytest.mark.parametrize("other", ["layers", "type"])
def test_chunks_that_do_not_continue_each_other_are_refused(other, tmp_path):
    paths = [tmp_path / "kv0.npy", tmp_path / "kv1.npy"]
    np.save(paths[0], KV[:, :, :CHUNK])
    np.save(paths[1], LATER[other])
    with pytest.raises(TraceError, match=r"kv1\.npy: has shape .* which does not continue"):
        import_file(paths, tmp_path / "t.h5", queries=paths, sidecar=HEADS)


@pytest.mark.parametrize("magic", [b"nsgg", b"ggsn", b"qsgg", b"ggsq"])
def test_state_files_of_llama_cpp_are_refused_with_the_reason(magic, tmp_path):
    (tmp_path / "state.bin").write_bytes(magic + bytes(100))
    with pytest.raises(
        TraceError, match=r"no queries, so nothing can be replayed\. Record the model with kvreplay record"
    ):
        import_file(tmp_path / "state.bin", tmp_path / "t.h5")


@pytest.mark.parametrize("package", ["safetensors", "ml_dtypes"])
def test_a_package_that_is_missing_is_named_with_its_installation(package, tmp_path, monkeypatch):
    save_file(named(layers_of(BFLOAT16)), tmp_path / "dump.safetensors")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(TraceError, match=rf"needs the package {package}, .*pip install 'kvreplay\[import\]'"):
        import_file(tmp_path / "dump.safetensors", tmp_path / "t.h5")


def test_a_pickle_is_not_executed(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    (tmp_path / "x.npy").write_bytes(__import__("pickle").dumps(Evil()))
    with pytest.raises(TraceError, match=r"x\.npy: cannot be read as a \.npy file"):
        import_file(tmp_path / "x.npy", tmp_path / "t.h5", format="lmcache")
    assert not (tmp_path / "executed").exists()


# ---- the page


PAGE = (ROOT / "docs/bring_your_own_numbers.md").read_text()


def test_the_python_of_the_page_runs_unchanged(tmp_path, monkeypatch):
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 3
    for block in blocks:
        exec(block.replace("import kvreplay as kv\n", "import kvreplay.trace as kv\n"), names)
    assert (names["layer"].q.shape, names["layer"].k.shape) == ((9, 704, 64), (3, 704, 64))
    assert names["mine"].layer(7).n_prompt == 384
    assert Trace("more.h5").layers() == [3, 7]
    for trace in ("mine.h5", "more.h5"):
        assert kvreplay("validate", "--deep", trace).returncode == 0


def test_the_imports_of_the_page_make_traces(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kv, q = lmcache_arrays(layers_of(np.float32))
    save_file(named(layers_of(np.float32)), "dump.safetensors")
    save_file({"kv": kv, "q": q}, "prompt.safetensors")
    facts = json.loads(re.search(r"```json\n(.*?)```", PAGE, re.S)[1]) | {"n_prompt": 24}
    Path("dump.json").write_text(json.dumps(facts))
    Path("facts.json").write_text(json.dumps(facts | {"head_dim": DIM}))
    # Dumps of FlashInfer and vLLM have tests of their own.
    commands = re.findall(
        r"^kvreplay import (.*)$", PAGE.partition("## Import a dump of FlashInfer")[0], re.M
    )
    assert len(commands) == 2
    identities = set()
    for words in commands:
        assert import_verb.main([*words.split(), "--force"]) == 0
        identities.add(Trace("mine.h5").trace_id)
    assert len(identities) == 1


def test_every_key_of_a_sidecar_is_documented():
    keys = [field.name for field in fields(Sidecar) if field.name != "path"]
    table = PAGE.partition("| key | meaning | default |")[2].partition("The command prints")[0]
    assert sorted(re.findall(r"`(\w+)`", re.sub(r"\|[^|]*\|[^|]*\|$", "", table, flags=re.M))) == sorted(keys)


# ---- the command


def command(*words):
    path = os.pathsep.join(str(ROOT / folder) for folder in ("lib/python", "apps", "traces"))
    return subprocess.run(
        [sys.executable, "-m", "kvreplay", "import", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )


def test_the_command_prints_the_trace_and_its_assumptions(tmp_path, capsys):
    source = saved(tmp_path, changed())
    out = Path(tmp_path / "new/folder/t.h5")
    done = command(source, "-o", out)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{out}\n"
    for words in (
        "scaling: not given, assumed to be 0.353553 = 1/sqrt(8)",
        "rope: not given",
        "n_prompt: not given",
    ):
        assert words in done.stderr
    sidecar_of(source, FACTS)
    assert import_verb.main([str(source), "-o", str(tmp_path / "u.h5")]) == 0
    said = capsys.readouterr().err
    assert "not given" not in said
    assert "3 query heads" not in said
    assert "4 query heads on 2 kv heads of 8, 32 tokens, float32" in said


def ended(*words):
    """Runs the command in this process and returns its exit code."""
    try:
        return import_verb.main([str(word) for word in words])
    except SystemExit as end:  # raised by the parser
        return end.code


def test_the_command_ends_as_the_program_does(tmp_path, capsys):
    source, out = saved(tmp_path, changed()), tmp_path / "t.h5"
    assert ended() == 2
    assert ended(source, "-o", out, "--format", "gguf") == 2
    assert ended(source, "-o", out, "--sidecar", tmp_path / "gone.json") == 2
    assert ended(tmp_path / "gone.npz", "-o", out) == 3
    assert ended(source, "-o", source / "t.h5") == 2
    assert ended(source, "-o", out) == 0
    capsys.readouterr()
    again = command(source, "-o", out)
    assert (again.returncode, "use --force" in again.stderr) == (2, True)
    assert (ended(source, "-o", out), "use --force" in capsys.readouterr().err) == (2, True)
    assert ended(source, "-o", out, "--force") == 0


def test_a_format_that_is_not_known_is_named_with_those_that_are(capsys):
    assert import_verb.main(["x.npz", "-o", "t.h5", "--format", "gguf"]) == 2
    message = capsys.readouterr().err
    known = "llama.cpp, flashinfer, vllm, lmcache, safetensors, npz"
    assert f"format gguf is not known. Known are {known}" in message


def test_help_names_every_format(capsys):
    with pytest.raises(SystemExit):
        import_verb.main(["--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in (*(known.name for known in FORMATS), "--queries"))
