"""`kvreplay.replay` returns the numbers of `kvreplay run` to the last bit, for any memory layout."""

from functools import cache

import kvreplay
import numpy as np
import pytest
from kvreplay_cli import ROOT
from program_beside_python import (
    FILE_COLUMNS,
    SAVED,
    check_equal_runs,
    check_same_arrays,
    check_same_rows,
    made_layer,
    replayed,
    run_program,
    run_python,
)

ROPE = {"theta": 10000.0}
PROMPT = 112
# All methods that need no file, no second pass and no output projection; seven of them need a parameter here.
PARAMETERS = {
    "block_max": {"name": "block_max", "block": 8, "sinks": 2, "recent": 4},
    "block_mean": {"name": "block_mean", "block": 8, "sinks": 2, "recent": 4},
    "clusterkv": {"name": "clusterkv", "sinks": 4, "clusters": 6},
    "skip_softmax": {"name": "skip_softmax", "lambda": 0.05, "tile": 16},
    "socket": {"name": "socket", "sinks": 4, "recent": 8},
    "vattention": {"name": "vattention", "sinks": 4, "local": 8, "top": 8},
    "dms": {"name": "dms", "threshold": -4, "window": 8},
    "random_attention": {"name": "random_attention", "recent": 16},
    "vase": {"name": "vase", "recent": 16},
    "block_eviction": {"name": "block_eviction", "page": 8, "sinks": 8, "recent": 8},
    "kernel_halving": {"name": "kernel_halving", "sinks": 2, "recent": 8},
    "pqcache": {"name": "pqcache", "sinks": 2},
    "subgen_stream": {"name": "subgen_stream", "delta_rel": 0.5},
}
NEEDS_MORE = ("external", "kvzip", "kvzip_plus", "kvcompose", "defensivekv")
BUILT_IN = [name for name in kvreplay.methods() if name not in NEEDS_MORE]
EVERY = [PARAMETERS.get(name, name) for name in BUILT_IN]
NEEDS_TOKEN_CLASSES = {"fastgen"}  # needs token classes, which arrays do not have
WITHOUT_TEXT = [entry for entry in EVERY if entry not in list(NEEDS_TOKEN_CLASSES)]
COMBINED = [
    {"name": "h2o", "row_format": ["int8", "int4", {"name": "kivi", "bits": 2, "g": 16, "R": 16}]},
    {"name": "h2o", "gqa.level": ["query"], "gqa.agg": ["mean", "max"]},
    {"name": "h2o", "variant": ["alg1", "hf_mask", "flexgen"]},
    {"name": "h2o", "recent_frac": [0.25, 0.5], "score_norm": "mean"},
    {"name": "tova", "phase": "oneshot", "gqa.level": "layer"},
    {"name": "snapkv", "window": [4, 8], "gqa.level": "query"},
    {"name": "snapkv", "window": 8, "allocator": ["ada", "pyramid", "cake"]},
    {"name": "snapkv", "window": 8, "reweight": "uniform", "row_format": {"name": "gear", "g": 16, "R": 16}},
    {"name": "streaming_llm", "positions": "cache", "order": "evict_then_attend"},
    {"name": "adakv", "scorer": {"name": "snapkv", "window": 8, "pool": "avg"}},
    {"name": "streaming_llm", "prompt": "stream", "sinks": 2},
]
NEEDLES = {"at": [0.2, 0.7], "tokens": 4}
OBSERVING = ["h2o", {"name": "snapkv", "window": 8}, "uniform", "tova"]


@pytest.fixture(scope="module")
def sample():
    return ROOT / "traces" / "samples" / "smollm2-135m.h5"


@pytest.fixture(scope="module")
def layers():
    return {3: made_layer(3), 8: made_layer(8)}


@pytest.fixture(scope="module")
def trace(layers, tmp_path_factory):
    classes = np.random.default_rng(0).integers(0, 3, 160).astype(np.uint8)
    folder = tmp_path_factory.mktemp("trace")
    return written(folder, layers, rope=ROPE, n_prompt=PROMPT, token_classes=classes)


def written(folder, layers, **facts):
    """Writes a trace of these layers, with the prompt id that arrays get; returns its path."""
    return kvreplay.Trace.write(folder / "trace.h5", layers, prompt="p0", **facts).path


@pytest.fixture(scope="module")
def every_method(trace, tmp_path_factory):
    return run_program(
        trace, tmp_path_factory.mktemp("all"),
        methods=EVERY, budget={"tokens": [40]}, seeds={"count": 2},
    )  # fmt: skip


def test_every_method_has_the_numbers_of_the_program_on_arrays(layers, every_method):
    run = replayed(
        layers=layers, prefill=PROMPT, rope=ROPE,
        methods=WITHOUT_TEXT, budgets=[40], seeds=2, save=SAVED,
    )  # fmt: skip
    assert set(run.table["method"]) == set(BUILT_IN) - NEEDS_TOKEN_CLASSES
    check_same_rows(run, every_method, FILE_COLUMNS, without=NEEDS_TOKEN_CLASSES)
    check_same_arrays(run, every_method)


@pytest.mark.parametrize("precision", ["single", "double"])
def test_formats_levels_allocators_and_variants_have_the_numbers_of_the_program(
    trace, layers, tmp_path, precision
):
    out = run_program(
        trace, tmp_path, precision=precision, methods=COMBINED, budget={"fraction_kept": [0.25, 0.5]}
    )
    words = {
        "methods": COMBINED,
        "budgets": {"fraction_kept": [0.25, 0.5]},
        "precision": precision,
        "save": SAVED,
    }
    run = replayed(trace, **words)
    check_same_rows(run, out)
    check_same_arrays(run, out)
    assert run.outputs("h2o")[1].dtype == (np.float64 if precision == "double" else np.float32)
    on_arrays = replayed(layers=layers, prefill=PROMPT, rope=ROPE, **words)
    check_same_rows(on_arrays, out, FILE_COLUMNS)
    check_same_arrays(on_arrays, out)


def test_a_fractional_budget_is_refused_with_the_correct_form(layers):
    words = {"layers": layers, "prefill": PROMPT, "methods": ["h2o"]}
    with pytest.raises(kvreplay.ConfigError, match=r'write "7%".*write {"fraction_kept": \[0\.07\]}'):
        replayed(**words, budgets=[0.07])


def test_budgets_in_tokens_and_shares_can_be_mixed_and_equal_cells_count_once(layers):
    words = {"layers": layers, "prefill": PROMPT, "methods": ["window"]}
    alone = replayed(**words, budgets=["50%"]).table
    tokens = int(alone["budget_tokens"].iloc[0])
    both = replayed(**words, budgets=[30, tokens, "50%"]).table
    assert set(zip(both["budget_tokens"], both["budget_share"], strict=True)) == {(30, ""), (tokens, "0.5")}
    assert set(alone["key"]) <= set(both["key"])


def test_byte_budgets_selected_queries_and_needles_equal_the_programs(trace, tmp_path):
    out = run_program(
        trace, tmp_path, methods=OBSERVING, budget={"bytes": [6400]},
        select={"layers": [8], "kv_heads": [1]}, seeds={"first": 7, "count": 2},
        replay={"tokens": 140, "prefill": 100, "queries": {"stride": 3}, "needles": NEEDLES},
    )  # fmt: skip
    run = replayed(
        trace, methods=OBSERVING, budgets={"bytes": [6400]}, layers=[8], kv_heads=[1], seeds=(7, 2),
        tokens=140, prefill=100, queries={"stride": 3}, needles=NEEDLES, save=SAVED,
    )  # fmt: skip
    assert set(run.table["seed"].dropna()) == {7, 8}
    check_same_rows(run, out)
    check_same_arrays(run, out)


def test_the_real_sample_has_the_numbers_of_the_program_as_a_file_and_as_arrays(tmp_path, sample):
    methods = ["h2o", "snapkv", {"name": "balancekv", "sinks": 4, "recent": 16}, "streaming_llm"]
    select = {"layers": [0, 15]}
    out = run_program(
        sample, tmp_path, methods=methods, budget={"tokens": [96]}, select=select, seeds={"count": 2}
    )
    words = {"methods": methods, "budgets": 96, "seeds": 2, "save": SAVED}
    check_same_rows(replayed(sample, layers=[0, 15], **words), out)
    trace = kvreplay.open(sample)
    taken = {
        number: {name: getattr(trace.layer(number), name) for name in ("q", "k", "v", "scaling", "rope")}
        for number in (0, 15)
    }
    run = replayed(
        layers=taken, prefill=640, n_layers=trace.n_layers, position_ids=trace.prompt().position_ids, **words
    )
    # The file holds bfloat16, which `layer.q` widens: sizes in bytes are for float32.
    sizes = {n for n in run.cells[0].row if "bytes" in n} | {"prompt", "bytes_ratio"}
    renamed = {"0": "p0"}
    for row in (cell.row for cell in run.cells):
        assert row["prompt"] == "p0"
        row["prompt"] = next(there for there, here in renamed.items() if here == row["prompt"])
    check_same_rows(run, out, FILE_COLUMNS | sizes)


FACTS = {
    "sliding window": {"sliding_window": 24},
    "chunks": {"attention_chunk": 24},
    "soft cap": {"softcap": 5.0},
    "sinks": {"sinks": np.float32([0.5, -1.0, 2.0, 0.0])},
    "scaling": {"scaling": 0.4},
    "prescaled queries": {"scaling": 1.0, "q_prescaled": True},
    "a part that is rotated": {"rope": {"theta": 5e4, "rotary_dims": 8, "layout": "interleaved"}},
    "no rotation": {"rope": "none"},
}


@pytest.mark.parametrize("facts", FACTS.values(), ids=FACTS)
def test_facts_of_a_layer_act_as_in_a_file(tmp_path, facts):
    q, k, v = made_layer(11)
    path = written(tmp_path, {0: {"q": q, "k": k, "v": v, **facts}}, n_prompt=PROMPT)
    out = run_program(path, tmp_path, methods=OBSERVING, budget={"tokens": [32]}, seeds={"count": 1})
    words = {"methods": OBSERVING, "budgets": 32, "seeds": 1, "save": SAVED}
    for run, ignored in (
        (replayed(path, **words), frozenset()),
        (replayed(q, k, v, prefill=PROMPT, **facts, **words), FILE_COLUMNS),
        (replayed(layers={0: {"q": q, "k": k, "v": v, **facts}}, prefill=PROMPT, **words), FILE_COLUMNS),
    ):
        check_same_rows(run, out, ignored)
        check_same_arrays(run, out)


def test_facts_of_a_layer_are_not_lost():
    arrays = made_layer(11)
    words = {"prefill": PROMPT, "methods": ["h2o"], "budgets": 32}
    errors = {
        name: replayed(*arrays, **facts, **words).table["rel_err_out_mean"][0]
        for name, facts in FACTS.items()
    }
    plain = replayed(*arrays, **words).table["rel_err_out_mean"][0]
    for name in ("sliding window", "chunks", "soft cap", "sinks", "scaling", "prescaled queries"):
        assert errors[name] != plain, name


def test_strided_queries_and_positions_act_as_in_a_file(tmp_path):
    rows = np.sort(np.random.default_rng(5).choice(160, 90, replace=False)).astype(np.int32)
    q, k, v = made_layer(12, query_rows=90)
    positions = np.arange(160, dtype=np.int32) + 17
    methods = ["streaming_llm", {"name": "window", "positions": "cache"}, "uniform", "knorm"]
    path = written(
        tmp_path, {0: {"q": q, "k": k, "v": v, "q_pos": rows}},
        n_prompt=PROMPT, rope=ROPE, position_ids=positions,
    )  # fmt: skip
    out = run_program(path, tmp_path, methods=methods, budget={"tokens": [32]}, seeds={"count": 1})
    words = {"methods": methods, "budgets": 32, "seeds": 1, "save": SAVED}
    run = replayed(q, k, v, prefill=PROMPT, q_pos=rows, position_ids=positions, rope=ROPE, **words)
    check_same_rows(run, out, FILE_COLUMNS)
    check_same_arrays(run, out)
    check_same_rows(replayed(path, **words), out)


@pytest.mark.parametrize(
    "heads,kv_heads", [(1, 1), (8, 8), (8, 1), (9, 3)], ids=["one", "no groups", "one kv head", "groups of 3"]
)
def test_groups_of_any_size_have_the_numbers_of_the_program(tmp_path, heads, kv_heads):
    arrays = made_layer(13, heads=heads, kv_heads=kv_heads)
    path = written(tmp_path, {0: arrays}, n_prompt=PROMPT)
    out = run_program(path, tmp_path, methods=OBSERVING, budget={"tokens": [32]}, seeds={"count": 1})
    run = replayed(*arrays, prefill=PROMPT, methods=OBSERVING, budgets=32, seeds=1, save=SAVED)
    assert set(run.table["kv_head"]) == set(range(kv_heads))
    check_same_rows(run, out, FILE_COLUMNS)
    check_same_arrays(run, out)


def test_prompts_of_different_lengths_have_the_numbers_of_the_program(tmp_path):
    path = tmp_path / "prompts.h5"
    kvreplay.Trace.write(
        path,
        prompts={
            "short": {"layers": {0: made_layer(1, tokens=90), 2: made_layer(2, tokens=90)}, "n_prompt": 60},
            "a long one": {"layers": {2: made_layer(3, tokens=150)}, "n_prompt": 120},
        },
    )
    out = run_program(path, tmp_path, methods=OBSERVING, budget={"fraction_kept": [0.3]}, seeds={"count": 1})
    run = replayed(path, methods=OBSERVING, budgets={"fraction_kept": [0.3]}, seeds=1, save=SAVED)
    assert set(run.table["prompt"]) == {"short", "a long one"}
    check_same_rows(run, out)
    check_same_arrays(run, out)
    words = {"budgets": {"fraction_kept": [0.3]}, "seeds": 1, "save": SAVED}
    one = replayed(path, methods=OBSERVING, prompts=["a long one"], **words)
    assert [c.row["key"] for c in one.cells] == [
        c.row["key"] for c in run.cells if c.row["prompt"] == "a long one"
    ]


# ---- types and memory


def halves(kind, arrays):
    """The arrays in a two-byte type of one of the libraries that have it."""
    if kind == "numpy float16":
        return [x.astype(np.float16) for x in arrays]
    if kind == "ml_dtypes bfloat16":
        dtypes = pytest.importorskip("ml_dtypes")
        return [x.astype(dtypes.bfloat16) for x in arrays]
    jnp = pytest.importorskip("jax.numpy")
    return [jnp.asarray(x, jnp.bfloat16 if kind == "jax bfloat16" else jnp.float16) for x in arrays]


@pytest.mark.parametrize("kind", ["numpy float16", "ml_dtypes bfloat16", "jax bfloat16", "jax float16"])
def test_two_byte_types_have_the_numbers_of_the_program(tmp_path, kind):
    arrays = halves(kind, made_layer(21))
    path = written(tmp_path, {0: arrays}, n_prompt=PROMPT)
    out = run_program(path, tmp_path, methods=OBSERVING, budget={"tokens": [32]}, seeds={"count": 1})
    run = replayed(*arrays, prefill=PROMPT, methods=OBSERVING, budgets=32, seeds=1, save=SAVED)
    check_same_rows(run, out, FILE_COLUMNS)
    check_same_arrays(run, out)


def test_two_byte_types_are_charged_two_bytes():
    arrays = made_layer(21)
    words = {"prefill": PROMPT, "methods": ["exact"]}
    wide = replayed(*arrays, **words).table["full_bytes"][0]
    half = replayed(*(x.astype(np.float16) for x in arrays), **words).table["full_bytes"][0]
    assert wide == 2 * half == 160 * (16 + 24) * 4


def test_arrays_of_different_types_may_be_mixed():
    q, k, v = made_layer(22)
    half = k.astype(np.float16)
    words = {"prefill": PROMPT, "methods": OBSERVING, "budgets": 32, "seeds": 1}
    mixed = replayed(q, half, v, **words)
    widened = replayed(q, half.astype(np.float32), v, **words)
    assert list(mixed.table["rel_err_out_mean"]) == list(widened.table["rel_err_out_mean"])


def spread(array):
    """A view of these numbers as every other element of a larger array."""
    wide = np.full([2 * n for n in array.shape], np.nan, array.dtype)
    wide[1::2, ::2, 1::2] = array
    return wide[1::2, ::2, 1::2]


def backwards(array):
    """A view of these numbers stored in reverse order: all strides are negative."""
    return np.ascontiguousarray(array[::-1, ::-1, ::-1])[::-1, ::-1, ::-1]


def tokens_first(array):
    """A view [heads, tokens, dim] of numbers stored as [tokens, heads, dim], as in models."""
    return np.ascontiguousarray(array.transpose(1, 0, 2)).transpose(1, 0, 2)


def read_only(array):
    copy = array.copy()
    copy.flags.writeable = False
    return copy


LIES = {
    "fortran": np.asfortranarray,
    "spread": spread,
    "backwards": backwards,
    "tokens first": tokens_first,
    "read only": read_only,
    "jax": lambda x: pytest.importorskip("jax.numpy").asarray(x),
    "a fetching object of a trace": None,
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("lie", LIES, ids=LIES)
def test_memory_layout_changes_no_bit(lie, dtype, tmp_path):
    arrays = made_layer(23, dtype=dtype)
    words = {"prefill": PROMPT, "methods": OBSERVING, "budgets": [16, 48], "seeds": 1, "save": SAVED}
    plain = replayed(*arrays, **words)
    if LIES[lie] is None:
        layer = kvreplay.open(written(tmp_path, {0: arrays})).layer(0)
        check_equal_runs(replayed(layers={0: layer}, **words), plain, {"key", "model", "trace_id"})
    else:
        check_equal_runs(replayed(*(LIES[lie](x) for x in arrays), **words), plain)


def test_a_cell_is_found_by_the_label_of_its_method():
    words = {"prefill": PROMPT, "budgets": [40], "save": SAVED}
    wide, narrow = ({"name": "snapkv", "window": window} for window in (24, 8))
    both, alone = (replayed(*made_layer(25), methods=m, **words) for m in ([wide, narrow], [narrow]))
    by_label, its_own = both.kept("snapkv window=8", head=1), alone.kept("snapkv", head=1)
    assert np.array_equal(by_label[0], its_own[0])
    assert not np.array_equal(by_label[0], both.kept("snapkv", head=1)[0])  # the first method of that name


def test_heads_that_share_their_memory_are_read_as_heads():
    q, k, v = made_layer(24, heads=4, kv_heads=1)
    words = {"prefill": PROMPT, "methods": OBSERVING, "budgets": 32, "seeds": 1, "save": SAVED}
    shared = [np.broadcast_to(x, (2, *x.shape[1:])) for x in (k, v)]
    check_equal_runs(replayed(q, *shared, **words), replayed(q, *(x.copy() for x in shared), **words))


@pytest.fixture(scope="module")
def of_many(layers):
    """Replays many methods with a number of threads."""
    words = {
        "layers": layers, "prefill": PROMPT, "rope": ROPE, "methods": [*WITHOUT_TEXT[:14], *COMBINED],
        "budgets": [40], "seeds": 2, "save": SAVED,
    }  # fmt: skip
    return cache(lambda jobs: replayed(**words, jobs=jobs))


@pytest.mark.parametrize("jobs", [1, 3, 4])
def test_threads_change_no_bit(of_many, jobs):
    check_equal_runs(of_many(jobs), of_many(2))


def test_an_audit_changes_no_bit(layers):
    words = {
        "layers": layers,
        "prefill": PROMPT,
        "methods": OBSERVING,
        "budgets": [40],
        "seeds": 1,
        "save": SAVED,
    }
    audited, plain = replayed(**words, audit=True), replayed(**words)
    for a, b in zip(audited.cells, plain.cells, strict=True):
        assert np.array_equal(a.arrays["kept_flat"], b.arrays["kept_flat"])


def test_unsaved_arrays_are_replayed_on_request(layers):
    words = {"layers": layers, "prefill": PROMPT, "methods": OBSERVING, "budgets": [40, 64], "seeds": 2}
    saved, later = replayed(**words, save=SAVED), replayed(**words)
    for place in ({"method": "h2o", "budget": 64, "layer": 8, "head": 1}, {"method": "uniform", "seed": 1}):
        for a, b in zip(saved.kept(**place), later.kept(**place), strict=True):
            assert np.array_equal(a, b)
        assert np.array_equal(saved.outputs(**place)[1], later.outputs(**place)[1])
        errors = saved.row_errors(**place), later.row_errors(**place)
        assert all(np.array_equal(errors[0][name], errors[1][name]) for name in errors[0])


def test_the_read_tokens_of_query_time_methods_are_reported(layers):
    words = {"layers": layers, "prefill": PROMPT, "methods": ["topk_oracle"], "budgets": 40}
    read = replayed(**words).kept("topk_oracle", 40, layer=3, head=1)
    assert len(read) == 160 - PROMPT
    for row, tokens in zip(range(PROMPT, 160), read, strict=True):
        assert len(tokens) in (40, 41) and tokens[-1] <= row


def test_saved_results_are_read_as_those_of_the_program(layers, trace, tmp_path):
    from kvanalysis import load

    run = replayed(trace, methods=OBSERVING, budgets=[40], seeds=1)
    out = run_program(
        trace, tmp_path, methods=OBSERVING, budget={"tokens": [40]}, seeds={"count": 1}, save=[]
    )
    run.save(tmp_path / "here")
    ours, theirs = load(tmp_path / "here"), load(out)
    columns = [name for name in theirs.columns if name not in {"select_s", "attend_s", "params", "given"}]
    order = {"by": "key", "ignore_index": True}
    here, there = ours[columns].sort_values(**order), theirs[columns].sort_values(**order)
    assert here.equals(there), columns


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tensors_of_torch_have_the_numbers_of_numpy(dtype, tmp_path):
    torch = pytest.importorskip("torch")
    tensors = [torch.from_numpy(x).to(getattr(torch, dtype)) for x in made_layer(25)]
    words = {"prefill": PROMPT, "methods": OBSERVING, "budgets": 32, "seeds": 1, "save": SAVED}
    path = written(tmp_path, {0: tensors}, n_prompt=PROMPT)
    plain = replayed(path, **words)
    shuffled = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in tensors]
    grown = [x.clone().requires_grad_() for x in tensors]
    for given in (tensors, shuffled, grown):
        check_equal_runs(replayed(*given, **words), plain, FILE_COLUMNS)


def test_unused_libraries_are_not_imported():
    heavy = ["numpy", "pandas", "h5py", "torch", "matplotlib"]
    code = f"import sys, kvreplay; print([m for m in {heavy} if m in sys.modules])"
    assert run_python(code).stdout.strip() == "[]"
