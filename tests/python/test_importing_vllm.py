"""Imports saves of vLLM's connector, in every order of axes that vLLM had, with queries of their own."""

import json
import re

import ml_dtypes
import numpy as np
import pytest
from front_door import import_verb
from kvbase.errors import TraceError
from kvreplay.importing import import_file
from kvreplay.trace import LayerArrays, Trace
from kvreplay_cli import ROOT
from safetensors.numpy import save_file
from serving_dumps import vllm_save

LAYERS, TOKENS, Q_HEADS, KV_HEADS, DIM = 3, 16, 4, 2, 8
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FACTS = {"head_dim": DIM, "n_prompt": 12, "rope": {"theta": 1e4}}
SHAPES = ("2BNHD", "B2NHD", "BHNC")
PAGE = (ROOT / "docs/bring_your_own_numbers.md").read_text()


def numbers(dtype=np.float16):
    """q, k, v [layers, tokens, heads, dim]."""
    draw = np.random.default_rng(5).standard_normal
    return tuple(draw((LAYERS, TOKENS, n, DIM)).astype(dtype) for n in (Q_HEADS, KV_HEADS, KV_HEADS))


def queries_in(path, q, named=False):
    """A file of queries: one stack, or an array for each layer."""
    flat = q.reshape(*q.shape[:2], -1)
    save_file({f"layers.{at}.q": each for at, each in enumerate(flat)} if named else {"q": flat}, path)
    return path


def heads_first(array):
    return np.ascontiguousarray(array.transpose(1, 0, 2))


def expected(path, q, k, v, layers=range(LAYERS)):
    given = {n: LayerArrays(*(heads_first(x[n]) for x in (q, k, v)), rope=FACTS["rope"]) for n in layers}
    return Trace.write(path, given, n_prompt=FACTS["n_prompt"])


@pytest.mark.parametrize("blocks", SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=lambda dtype: np.dtype(dtype).name)
def test_every_shape_of_a_save_is_the_same_trace(blocks, dtype, tmp_path):
    q, k, v = numbers(dtype)
    save = vllm_save(tmp_path, k, v, blocks)
    trace = import_file(
        save, tmp_path / "t.h5", sidecar=FACTS, queries=queries_in(tmp_path / "q.safetensors", q)
    )
    assert trace.trace_id == expected(tmp_path / "known.h5", q, k, v).trace_id


@pytest.mark.parametrize("blocks", SHAPES[1:])
def test_shapes_with_heads_need_no_number_of_heads(blocks, tmp_path):
    q, k, v = numbers()
    save = vllm_save(tmp_path, k, v, blocks)
    trace = import_file(save, tmp_path / "t.h5", queries=queries_in(tmp_path / "q.safetensors", q))
    assert np.array_equal(trace.layer(2).v, heads_first(v[2]).astype(np.float32))


def test_a_save_is_its_folder_its_files_or_the_only_one_in_a_storage(tmp_path):
    q, k, v = numbers()
    save = vllm_save(tmp_path / "saves", k, v, "B2NHD")
    query = queries_in(tmp_path / "q.safetensors", q, named=True)
    ids = {
        import_file(source, tmp_path / "t.h5", sidecar=FACTS, queries=query).trace_id
        for source in (save, tmp_path / "saves", sorted(save.glob("*"))[::-1])
    }
    assert ids == {expected(tmp_path / "known.h5", q, k, v).trace_id}


def test_layers_without_queries_are_left_out(tmp_path):
    q, k, v = numbers()
    save = vllm_save(tmp_path, k, v, "BHNC")
    save_file({"layers.2.q": q[2].reshape(TOKENS, -1)}, tmp_path / "q.safetensors")
    trace = import_file(save, tmp_path / "t.h5", sidecar=FACTS, queries=tmp_path / "q.safetensors")
    assert trace.trace_id == expected(tmp_path / "known.h5", q, k, v, [2]).trace_id


def test_queries_of_the_last_tokens_say_where_they_begin(tmp_path):
    q, k, v = numbers()
    save = vllm_save(tmp_path, k, v, "BHNC")
    query = queries_in(tmp_path / "q.safetensors", q[:, 10:])
    trace = import_file(save, tmp_path / "t.h5", sidecar=FACTS | {"q_from": 10}, queries=query)
    assert trace.layer(0).q_pos.tolist() == list(range(10, TOKENS))


# ---- what cannot be rebuilt


def saved(folder, **files):
    """Files of a save, by the name of the layer with _ for its points."""
    (folder / "save").mkdir(parents=True)
    for name, array in files.items():
        save_file({"kv_cache": array}, folder / f"save/{name.replace('_', '.')}.safetensors")
    return folder / "save"


ONES = np.ones((TOKENS, KV_HEADS, 2 * DIM), np.float16)
Q, K, V = numbers()
BAD = {
    "no queries": (
        lambda folder: vllm_save(folder, K, V, "BHNC"),
        None,
        "holds no queries, like every save of vLLM's connector: give their files with --queries",
    ),
    "several prompts": (
        lambda folder: [vllm_save(folder, K, V, "BHNC", range(n)) for n in (16, 32)] and folder,
        Q,
        "holds saves of 2 prompts, a folder each: import one folder at a time, here",
    ),
    "MLA": (
        lambda folder: vllm_save(folder, K, V, "mla"),
        Q,
        "kv_cache has shape [16, 16]: the latent of an MLA model, not its keys and values. Record the model",
    ),
    "8 bits": (
        lambda folder: vllm_save(folder, K.astype(np.uint8), V.astype(np.uint8), "2BNHD"),
        Q,
        "kv_cache holds uint8. Give float32, float16 or bfloat16 numbers. An 8-bit cache cannot be read",
    ),
    "no heads": (
        lambda folder: vllm_save(folder, K, V, "2BNHD"),
        Q,
        'kv has 16 numbers per token, but not the number of heads. Write "head_dim" or "n_kv_heads"',
    ),
    "one axis": (
        lambda folder: saved(folder, layers_0=np.ones(3, np.float16)),
        Q[:1],
        "kv_cache has shape [3], it must be [2, tokens, heads * head_dim], [tokens, 2, heads, head_dim]",
    ),
    "no number": (
        lambda folder: saved(folder, attn=ONES),
        Q[:1],
        "attn.safetensors: has a name with 0 numbers: it must have that of its layer",
    ),
    "two numbers": (
        lambda folder: saved(folder, layers_0_attn_1=ONES),
        Q[:1],
        "has a name with 2 numbers",
    ),
    "a layer twice": (
        lambda folder: saved(folder, a_0=ONES, b_0=ONES),
        Q[:1],
        "b.0.safetensors: is layer 0, as a.0.safetensors is: remove one of them",
    ),
    "fewer layers of queries": (
        lambda folder: vllm_save(folder, K, V, "BHNC"),
        Q[:2],
        "queries have 2 layers, kv has 3",
    ),
    "more tokens of queries": (
        lambda folder: vllm_save(folder, K[:, :8], V[:, :8], "BHNC"),
        Q,
        "queries have 16 rows, kv has 8 tokens. Give queries of the same tokens",
    ),
    "queries of another width": (
        lambda folder: vllm_save(folder, K, V, "BHNC"),
        Q[..., 1:],
        "q has 28 numbers per token, which is not a multiple of head_dim 8",
    ),
    "a file that is not there": (lambda folder: vllm_save(folder, K, V, "BHNC") / "x", Q, "no such file"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_save_that_is_no_trace_is_refused_with_the_reason(case, tmp_path, capsys):
    make, query, words = BAD[case]
    source = make(tmp_path / "saves")
    how = [] if query is None else ["--queries", queries_in(tmp_path / "q.safetensors", query)]
    assert import_verb.main([source, "-o", tmp_path / "t.h5", *how]) == 3
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1
    assert not list(tmp_path.glob("t.h5*"))


def test_queries_of_a_layer_that_the_save_lacks_are_named(tmp_path):
    save = vllm_save(tmp_path, K, V, "BHNC")
    save_file({"layers.7.q": Q[0].reshape(TOKENS, -1)}, tmp_path / "q.safetensors")
    with pytest.raises(TraceError, match="holds queries of layer 7, which the save does not hold"):
        import_file(save, tmp_path / "t.h5", queries=tmp_path / "q.safetensors")


def test_the_command_of_the_page_makes_a_trace(tmp_path, monkeypatch):
    section = PAGE.partition("## Import a save of vLLM")[2].partition("\n## ")[0]
    (command,) = re.findall(r"^kvreplay import (.*)$", section, re.M)
    monkeypatch.chdir(tmp_path)
    vllm_save(tmp_path / "x", K, V, "2BNHD").rename(tmp_path / "x/save")
    (tmp_path / command.split()[0]).parent.mkdir()
    (tmp_path / "x/save").rename(tmp_path / command.split()[0])
    queries_in(tmp_path / "q.safetensors", Q)
    (tmp_path / "facts.json").write_text(json.dumps(FACTS))
    assert import_verb.main(command.split()) == 0
    assert Trace("mine.h5").trace_id == expected(tmp_path / "known.h5", Q, K, V).trace_id
