"""Any arguments of `kvreplay.replay` work or raise one clear exception, and never crash the interpreter."""

import gc
import re
import sys
import warnings

import kvreplay
import numpy as np
import pytest
from hostile_calls import MEMORY, NUMBERS, OBJECTS, SHAPES, TENSORS, FakeDevice
from kvreplay_cli import ROOT
from kvreplay_cli import kvreplay as program
from program_beside_python import made_layer, run_python

WORDS = {"prefill": 112, "methods": ["window", "h2o"], "budgets": [32], "jobs": 2, "progress": False}
Q, K, V = TENSORS


def told(error):
    """The text of an exception, which must be one line."""
    text = str(error.value)
    assert text and "\n" not in text
    assert "std::" not in text and "Traceback" not in text and "json.exception" not in text
    return text


def refused(kind, *arrays, **words):
    with pytest.raises(kind) as error, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kvreplay.replay(*arrays, **{**WORDS, **words})
    return told(error)


def works(*arrays, **words):
    run = kvreplay.replay(*arrays, **{**WORDS, **words})
    assert len(run) > 0 and not len(run.failed)
    assert np.isfinite(run.table["rmse"].to_numpy(float)).all()
    return run


# ---- tensors

REFUSED = {
    "one head": r"q is \[160, 16\]; it must be \[heads, tokens, dim\]",
    "a number": r"q is \[\]; it must be \[heads, tokens, dim\]",
    "a batch": r"q is \[1, 4, 160, 16\]: give it without the axis of the batch",
    "two batches": r"q is \[2, 4, 160, 16\]; it must be",
    "no head": "every extent must be at least 1",
    "no token": "every extent must be at least 1",
    "no dim": "every extent must be at least 1",
    "a token": "q has 1 rows, but 160 tokens have keys: give q_pos",
    "fewer tokens": "q has 159 rows, but 160 tokens have keys: give q_pos",
    "fewer dims": "the last extents must agree",
    "three heads": "3 query heads are no multiple of 2 kv heads",
    "axes changed": "160 query heads|q has 4 rows",
    "2^40 tokens": "q has 1099511627776 rows, but 160 tokens have keys",
    "2^40 heads": "larger than any model's",
    "2^40 dims": "the last extents must agree",
    "2^60 numbers": "the last extents must agree",
    "NaN": "q holds NaN at head 1, query 53, coordinate 5",
    "infinite": "q holds -?infinity at head 1, query 53, coordinate 5",
    "largest": r"q holds 3e\+38",
    "float64": r"q holds float64; float32, float16 and bfloat16 are read: use .astype\(np.float32\)",
    "longdouble": "q holds float128",
    "int": "q holds int64",
    "uint16": "q holds uint16",
    "bool": "q holds bool",
    "complex": "q holds complex128",
    "objects": "of objects",
    "words": "q holds <U",
    "dates": r"q holds datetime64\[s\]",
    "records": "q holds .*f0",
    "swapped": "byte order of another machine",
    "masked": r"masked.*filled",
    "matrix": r"q is \[160, 16\]",
    "of records": "np.ascontiguousarray",
    "lists": r"float64.*astype\(np.float32\)",
    "ragged": "inhomogeneous",
    "bytes": r"q holds \|S3",
    "dict": "dict of objects",
    "generator": "generator of objects",
    "function": "of objects",
    "class": "of objects",
    "device": "q cannot be fetched from its device: RuntimeError: CUDA error",
    "device of other rows": "4 bytes came for 160 rows of 64",
    "converts to text": "not an array of numbers",
    "converts by raising": "not an array of numbers.*raised by foreign code",
}
WORKS = {
    "as it is",
    "smallest",
    "zero",
    "half",
    "subclass",
    "fortran",
    "backwards",
    "overlapping",
    "unaligned",
    "read only",
    "memoryview",
}
KINDS = {**SHAPES, **NUMBERS, **MEMORY, **OBJECTS}


def test_every_kind_of_tensor_has_an_expected_end():
    assert set(KINDS) == set(REFUSED) | WORKS | {"None", "text"}


@pytest.mark.parametrize("kind", REFUSED)
def test_queries_that_cannot_be_replayed_are_refused_in_one_line(kind):
    text = refused(kvreplay.TraceError, KINDS[kind](Q), K, V)
    assert re.search(REFUSED[kind], text), text


@pytest.mark.parametrize(
    "kind", sorted(set(REFUSED) - {"a token", "fewer tokens", "three heads", "axes changed"})
)
@pytest.mark.parametrize("which", ["k", "v"])
def test_keys_and_values_that_cannot_be_replayed_are_refused_in_one_line(kind, which):
    arrays = {"q": Q, "k": K, "v": V}
    arrays[which] = KINDS[kind](arrays[which])
    if which == "v" and kind == "fewer dims":
        works(**arrays)  # values may have another width
    else:
        refused(kvreplay.TraceError, **arrays)


@pytest.mark.parametrize("kind", sorted(WORKS))
def test_tensors_that_can_be_replayed_are(kind):
    works(KINDS[kind](Q), KINDS[kind](K), KINDS[kind](V))


def test_values_that_are_all_zero_have_no_relative_error_in_the_program_either(tmp_path):
    zero = np.zeros_like(V)
    run = works(Q, K, zero, save="curves")
    assert list(run.table["rows_skipped"]) == [2 * 48] * 4
    assert run.table[["rel_err_out_mean", "rel_err_out_p95"]].isna().all(axis=None)
    assert (run.row_errors()["rel_err"] == -1).all()
    path = kvreplay.Trace.write(tmp_path / "zero.h5", {0: (Q, K, zero)}, n_prompt=112).path
    done = program("run", path, "--method", "window,h2o", "--budget", 32, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("given", [(None, K, V), (Q, None, V), (Q, K, None), (Q,), (), (None, None, V)])
def test_tensors_that_are_missing_are_named(given):
    told = refused(kvreplay.ConfigError, *given)
    assert "give q, k, v, or layers=" in told
    if given and given[0] is not None:
        missing = [name for name, at in (("k", 1), ("v", 2)) if len(given) <= at or given[at] is None]
        assert told.startswith(" and ".join(missing) + " missing: ")


def test_a_trace_name_together_with_tensors_is_refused():
    assert "q names a trace" in refused(kvreplay.ConfigError, "trace.h5", K, V)


@pytest.mark.parametrize("shape", [(1, 1 << 40, 16), (1 << 16, 160, 16), (1, 160, 1 << 17)])
def test_huge_tensors_that_fit_each_other_are_refused_at_once(shape):
    big = np.broadcast_to(np.float32(1), shape)
    assert "larger than any model's" in refused(kvreplay.TraceError, big, big, big)


def test_tensors_that_no_memory_holds_end_in_an_exception():
    """2^29 tokens pass every check of shapes, but a process with 2 GB cannot hold one such head."""
    code = """
import resource, kvreplay, numpy as np
big = np.broadcast_to(np.float32(1), (1, 1 << 29, 16))
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
try:
    kvreplay.replay(big, big, big, prefill=100, methods=["window"], budgets=[32], jobs=2, progress=False)
except (MemoryError, kvreplay.KvreplayError) as error:
    print(type(error).__name__, error)
small = [np.ones((1, 160, 16), np.float32)] * 3
print(len(kvreplay.replay(*small, prefill=100, methods=["window"], budgets=[32], progress=False)))
"""
    done = run_python(code, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) == 2 and done.stdout.endswith("1\n"), done.stdout


def test_layers_that_do_not_fit_each_other_are_named():
    longer = made_layer(2, tokens=170)
    text = refused(kvreplay.TraceError, layers={0: (Q, K, V), 4: longer})
    assert "layer 4" in text and "170" in text and "160" in text
    assert "layer 4: k" in refused(kvreplay.TraceError, layers={0: (Q, K, V), 4: (Q, K.astype(int), V)})


@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_nan_is_found_anywhere(where):
    for head, row, coordinate in ((0, 0, 0), (1, 159, 15), (1, 120, 3)):
        arrays = {"q": Q.copy(), "k": K.copy(), "v": V.copy()}
        arrays[where][head, row, coordinate] = np.nan
        text = refused(kvreplay.TraceError, **arrays)
        assert f"{where} holds NaN at head {head}" in text and f"{row}, coordinate {coordinate}" in text


# ---- keyword arguments

NAN = float("nan")
MACHINE = {"hbm_bytes": 8e10, "hbm_bw": 3e12, "link_bw": 5e10, "weights_bytes": 1e9}
ARGUMENTS = [
    ("prefill", [-1, 0, 160, 161, 1.5, "112", None, 2**70, True, NAN, [112]], "prefill"),
    ("tokens", [0, -1, 112, 161, "x", 1.5, 2**70], "prefill|tokens"),
    (
        "budgets",
        [
            0,
            -1,
            NAN,
            float("inf"),
            "x%",
            "-5%",
            "5",
            "..%",
            "",
            "0%",
            [],
            None,
            [[1]],
            1.5,
            -0.1,
            0.0,
            b"x",
            True,
            2**70,
            1e300,
            {},
            {"bogus": 1},
            {"tokens": "x"},
            {"bytes": 0},
            object(),
        ],
        "budget",
    ),
    ("budgets", ["200%", 1e300, 0.1, [64, "10"]], "budgets"),
    (
        "methods",
        [[], None, 3, object(), b"h2o", {}, {"nam": "h2o"}, {"name": 3}, [["h2o"]], [None]],
        "method",
    ),
    ("methods", ["h2oo"], "did you mean h2o"),
    ("methods", ["snapvk", {"name": "snapvk"}], "did you mean snapkv"),
    ("methods", [{"name": "snapkv", "windov": 3}], "did you mean window"),
    (
        "methods",
        [
            {"name": "h2o", "recent_frac": NAN},
            {"name": "h2o", "recent_frac": "x"},
            {"name": "h2o", "recent_frac": 7},
            {"name": "h2o", "recent_frac": object()},
            {"name": "h2o", "recent_frac": []},
        ],
        "recent_frac",
    ),
    ("methods", [{"name": "snapkv", "window": 2**70}], "window"),
    ("methods", [["h2o", "h2o"]], "listed twice"),
    ("methods", ["", "\0", "\udcff", "x" * 100000], "method"),
    ("methods", [{"name": "external", "kept": "x.h5"}, "external"], "external|kept"),
    ("seeds", [-1, 0, 1.5, "x", (1,), (1, 2, 3), (-1, 2), {"count": -1}, 2**70, True, (2**32, 1)], "seeds"),
    ("layers", [3, [0], "0"], "layers="),
    ("kv_heads", [[5], [-1], [], ["x"], [0, 0], [1.5]], "head"),
    ("prompts", [["x"], [], [3]], "prompt"),
    ("queries", ["x", {"last": 0}, {"stride": 0}, {"stride": -1}, {"x": 1}, [], 3, {"last": NAN}], "queries"),
    ("prompt", ["x", 3], "prompt"),
    (
        "needles",
        [
            {},
            {"at": [2], "tokens": 4},
            {"at": "x", "tokens": 4},
            3,
            {"at": [0.5], "tokens": -1},
            {"at": [NAN], "tokens": 4},
            "recorded",
            "x",
        ],
        "needles",
    ),
    ("recall_k", [0, -1, "x", [], [4, 4], 1.5, {}], "recall_k"),
    ("tier", [{}, {"hot": 0}, {"hot": 4, "policy": "x"}, {"hot": 4, "request": {"top": 0}}, 3, "x"], "tier"),
    ("machine", [{}, {"hbm_bytes": 1}, 3, MACHINE | {"batch": 0}, MACHINE | {"x": 1}], "machine"),
    ("metrics", ["x", [], 3, [3]], "metric"),
    ("save", ["x", ["kept", 3], 3], "save"),
    ("scaling", [0, NAN, -1, "x", float("inf"), [1], 1e-30, 10**400], "scaling"),
    ("sliding_window", [-1, 1.5, "x", 2**70], "sliding_window"),
    ("attention_chunk", [-1, 1.5, "x", 2**70], "attention_chunk"),
    ("softcap", [-1, NAN, "x"], "softcap"),
    ("q_prescaled", ["x", 3], "q_prescaled"),
    ("model", [3, None, b"x"], "model"),
    ("n_layers", [-1, 0, 2**70, "x", 1.5, True], "n_layers"),
    ("jobs", [0, -1, 10**9, 1.5, "x", 2**70, True], "jobs"),
    ("device", ["gpu", "", 3], "device"),
    ("precision", ["half", "", 3], "precision"),
    ("audit", ["yes", 3], "audit"),
]
OF_TENSORS = [
    ("sinks", [[1], "x", [NAN] * 4, [[1] * 4], 3, [None] * 4, [1e39] * 4, object()], "sink"),
    (
        "q_pos",
        [range(159), [0] * 160, [-1] * 160, "x", [1.5] * 160, [2**40] * 160, np.arange(160)[::-1], [[1]]],
        "q_pos",
    ),
    ("position_ids", [range(3), [-5] * 160, [2**40] * 160, "x", [1.5] * 160, [[1]]], "position_ids"),
    (
        "rope",
        [
            {},
            {"theta": -1},
            {"theta": "x"},
            "bogus",
            3,
            {"theta": 1e4, "rotary_dims": 7},
            {"bogus": 1},
            [],
            {"theta": 1e4, "rotary_dims": 64},
            {"inv_freq": [1, 2]},
            {"theta": NAN},
            {"theta": 1e4, "layout": "x"},
        ],
        "rope",
    ),
]


def short(value):
    """A value as part of a test's name, equal in each process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))[:30]


def each(table):
    return [
        pytest.param(name, value, message, id=f"{name}={short(value)}")
        for name, values, message in table
        for value in values
    ]


@pytest.mark.parametrize("name,value,message", each(ARGUMENTS))
def test_an_invalid_argument_is_named_with_its_remedy(name, value, message):
    text = refused(kvreplay.ConfigError, Q, K, V, **{name: value})
    assert re.search(message, text), text
    assert not re.search(r"(?<!kv)replay\.", text) and "command line" not in text, (
        "these words belong to the configuration"
    )


@pytest.mark.parametrize("name,value,message", each(OF_TENSORS))
def test_an_invalid_fact_of_the_tensors_is_named(name, value, message):
    assert message in refused(kvreplay.TraceError, Q, K, V, **{name: value})


def test_all_mistakes_are_reported_together():
    with pytest.raises(kvreplay.ConfigError) as wrong:
        kvreplay.replay(Q, K, V, prefill=-1, seeds=-1, methods=["h2oo"], jobs=0)
    parts = ("prefill is -1", 'unknown method "h2oo"', "seeds is -1", "jobs is 0")
    for line, part in zip(str(wrong.value).splitlines(), parts, strict=True):
        assert line.startswith(part)


def test_wrong_argument_types_raise_a_type_error():
    with pytest.raises(TypeError, match="bogus"):
        kvreplay.replay(Q, K, V, bogus=3, **WORDS)
    with pytest.raises(TypeError, match="methods"):
        kvreplay.replay(Q, K, V)
    with pytest.raises(TypeError):
        kvreplay.replay(Q, K, V, 112, ["h2o"])


def test_a_missing_device_is_a_device_error():
    assert "no device cuda" in refused(kvreplay.DeviceError, Q, K, V, device="cuda:0")


@pytest.mark.parametrize(
    "layers",
    [
        {},
        {0: 1},
        {0: (Q, K)},
        {0: {"q": Q, "k": K}},
        {0: {"q": Q, "k": K, "v": V, "w": V}},
        {"a": TENSORS},
        {-1: TENSORS},
        {2**70: TENSORS},
        {0.5: TENSORS},
        {True: TENSORS},
        {None: TENSORS},
    ],
    ids=lambda layers: str({k: type(v).__name__ for k, v in layers.items()}),
)
def test_invalid_layers_are_refused(layers):
    assert "layer" in refused(kvreplay.ConfigError, layers=layers)


@pytest.mark.parametrize(
    "layers", ["0", b"0", {}, ["x"], [0.5], [[0]], 3.5, object(), [99], 99, [True]], ids=short
)
def test_invalid_layers_of_a_trace_are_refused(layers):
    sample = ROOT / "traces" / "samples" / "smollm2-135m.h5"
    assert "layer" in refused(kvreplay.ConfigError, sample, layers=layers)


@pytest.mark.parametrize(
    "path", ["nothing.h5", "", "/", "/dev/null", __file__, "\udcff.h5", "a\0b", "x" * 5000]
)
def test_an_invalid_trace_is_named(path):
    refused(kvreplay.TraceError, path, prefill=None)


def test_a_name_with_a_zero_byte_opens_no_other_file(tmp_path):
    path = kvreplay.Trace.write(tmp_path / "t.h5", {0: TENSORS}, n_prompt=112).path
    assert "zero byte" in refused(kvreplay.TraceError, f"{path}\0x", prefill=None)


def test_a_trace_whose_name_is_not_utf8_is_replayed(tmp_path):
    path = kvreplay.Trace.write(tmp_path / "t.h5", {0: TENSORS}, n_prompt=112).path
    odd = path.rename(tmp_path / "t\udcff.h5")
    works(odd, prefill=None)


# ---- torch


@pytest.mark.torch
def test_tensors_of_torch_that_cannot_be_read_are_refused_in_one_line():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x) for x in TENSORS)
    for odd, message in (
        (q.to("meta"), "cannot be fetched from its device"),
        (q.to(torch.float64), "float64"),
        (q.to(torch.int32), "int32"),
        (q.to(torch.complex64), "complex64"),
        (q.to_sparse(), "not an array of numbers"),
        (q[0], r"it must be [heads, tokens, dim]"),
        (torch.where(q == q.max(), torch.nan, q), "holds NaN"),
    ):
        assert message in refused(kvreplay.TraceError, odd, k, v)
    for fine in (q.clone().requires_grad_(), (q.clone().requires_grad_() * 1), torch.nn.Parameter(q.clone())):
        works(fine, k, v)
    works(torch.expand_copy(q, q.shape), k.flip(1), v.conj())


# ---- the interpreter


def test_refused_calls_keep_no_array_alive():
    held = np.ones((2, 160, 32), np.float32)
    counted = sys.getrefcount(held)
    for words in ({"prefill": -1}, {"methods": []}, {"sinks": [1]}, {"jobs": 0}):
        with pytest.raises(kvreplay.KvreplayError):
            kvreplay.replay(Q, K, held, **{**WORDS, **words})
    with pytest.raises(kvreplay.TraceError):
        kvreplay.replay(held[:1], K, held, **WORDS)
    with pytest.raises(kvreplay.TraceError):
        kvreplay.replay(FakeDevice(), K, held, **WORDS)
    works(Q, K, held)
    gc.collect()
    assert sys.getrefcount(held) == counted


def test_an_array_that_is_resized_while_it_is_replayed_is_protected():
    q, k, v = (x.copy() for x in TENSORS)

    @kvreplay.scorer
    def resizing(prompt):
        with pytest.raises(ValueError, match="resize"):
            k.resize((1, 1, 1))
        return prompt.positions

    works(q, k, v, methods=[resizing])


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_five_hundred_random_hostile_calls_end_in_a_documented_exception_or_a_run(seed):
    code = "import sys; from hostile_calls import main; sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))"
    done = run_python(code, seed, 500, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    ended = eval(done.stdout)
    assert sum(ended.values()) == 500
    assert min(ended[name] for name in ("a run", "ConfigError", "TraceError")) > 30, ended


@pytest.mark.parametrize(
    "budgets,why",
    [
        ([16, 64.5], "64.5 is no number of tokens."),
        ([16, -0.5], "-0.5 is no number of tokens."),
        ([16, 0.0], "must be at least 1"),
        (
            ["250%"],
            'budgets is "250%" and must be a share of the full cache\'s bytes, above 0 and at most "100%"',
        ),
        (["0%"], 'budgets is "0%" and must be a share'),
    ],
)
def test_a_budget_that_is_neither_tokens_nor_a_share_is_reported(budgets, why):
    told = refused(kvreplay.ConfigError, Q, K, V, prefill=112, methods=["h2o"], budgets=budgets)
    assert why in told
