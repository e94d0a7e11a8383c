"""`validate --deep` on traces with one mistake names it, and is silent on correct traces."""

import warnings

import h5py
import kvreplay as kv
import numpy as np
import pytest
from kvreplay_cli import kvreplay, synth
from wrong_traces import (
    DIM,
    GROUP,
    KV_HEADS,
    Q_HEADS,
    SAMPLE,
    SCALE,
    STORED,
    TOKENS,
    attention,
    home,
    rotated,
    sample,
    write,
)

Q, K, V = sample()
OUT = attention(Q, K, V)
RIGHT_NUMBERS = {"q": Q, "k": K, "v": V, "out": OUT}
SINKS = np.linspace(6, 8, Q_HEADS)
INTERLEAVED = [head % KV_HEADS for head in range(Q_HEADS)]
STRIDED = np.arange(3, TOKENS, 4)


def deep(path):
    return kvreplay("validate", "--deep", path)


# --- Traces with the model's output `out` ------------------------------------------------------------------

# Recorded mistakes, and the messages about them.
AGAINST_OUT = {
    "a scale that is another": (
        {"scaling": 1 / DIM},
        "with scaling 0.125 = 1/sqrt(head_dim) instead of 0.015625",
    ),
    "a scale that no rule gives": (
        {"out": attention(Q, K, V, scale=0.2)},
        "with scaling 0.2 instead of 0.125",
    ),
    "queries that are scaled already": ({"q": Q * SCALE}, "the queries are scaled already"),
    "no causal mask": ({"out": attention(Q, K, V, causal=False)}, "without a causal mask"),
    "a window that is missing": (
        {"out": attention(Q, K, V, window=48)},
        "with a sliding window of 48 instead of none they agree: write sliding_window 48",
    ),
    "a window off by one": (
        {"out": attention(Q, K, V, window=33), "sliding_window": 32},
        "with a sliding window of 33 instead of 32 they agree (off by one",
    ),
    "chunks that are missing": (
        {"out": attention(Q, K, V, chunk=24)},
        "with chunks of 24 instead of none they agree: write attention_chunk 24",
    ),
    "chunks of another size": (
        {"out": attention(Q, K, V, chunk=24), "attention_chunk": 48},
        "with chunks of 24 instead of 48 they agree",
    ),
    "chunks that are none": ({"attention_chunk": 24}, "without the chunks of 24 they agree"),
    "a window that is none": ({"sliding_window": 32}, "without the sliding window of 32"),
    "a soft cap that is missing": (
        {"out": attention(Q, K, V, softcap=20.0)},
        "with a soft cap of 20 instead of none",
    ),
    "a soft cap that is none": ({"softcap": 5.0}, "without the soft cap of 5"),
    "sink logits that are missing": (
        {"out": attention(Q, K, V, sinks=SINKS)},
        "with a sink logit of 6 instead of none",
    ),
    "sink logits that are none": ({"more": {"sinks": SINKS.astype("f4")}}, "without the sink logit 6"),
    "query heads that are interleaved": (
        {"out": attention(Q, K, V, reads=INTERLEAVED)},
        "with kv head 1 = 1 % 3 instead of 1 / 3 they agree: the query heads are interleaved",
    ),
    "kv heads in another order": ({"k": K[::-1], "v": V[::-1]}, "with kv head 2 instead of 0"),
    "rotated twice": (
        {"q": rotated(Q), "k": rotated(K)},
        "with q and k rotated back they agree: they are rotated twice",
    ),
    "not rotated": ({"q": rotated(Q, -1), "k": rotated(K, -1)}, "they are not rotated yet"),
    "queries alone rotated twice": ({"q": rotated(Q)}, "q is rotated twice"),
    "keys alone not rotated": ({"k": rotated(K, -1)}, "k is not rotated yet, q is"),
    "k and v exchanged": ({"k": V, "v": K}, "with k and v exchanged"),
    "q_pos off by one": (
        {
            "q": Q[:, STRIDED],
            "out": OUT[:, STRIDED],
            "more": {"q_pos": (STRIDED - 1).astype("i4")},
        },
        "where each row sees one token more than its position says they agree: write q_pos +1",
    ),
    "rows of out shifted": ({"out": np.roll(OUT, 1, axis=1)}, "with row r-1 of q for row r of out"),
    "another layer's output": (
        {"out": np.random.default_rng(0).standard_normal(OUT.shape)},
        "None of the usual mistakes explains it",
    ),
}


ROUNDED = ("a scale that is another", "query heads that are interleaved", "rotated twice")


def slug(words):
    """The id of the prompt with this mistake."""
    return words.strip("[]").replace(" ", "_")


def lines_of(done, path, mistake, severity):
    """The messages about the prompt with this mistake."""
    start = f"kvreplay: {severity}: {path}: /prompts/{slug(mistake)}/"
    return [line for line in done.stderr.splitlines() if line.startswith(start)]


@pytest.fixture(scope="module")
def against_out(tmp_path_factory):
    path = tmp_path_factory.mktemp("against") / "t.h5"
    for mistake, (changes, _) in AGAINST_OUT.items():
        write(path, slug(mistake), **(RIGHT_NUMBERS | changes))
    for mistake in ROUNDED:
        for dtype in ("float16", "bfloat16"):
            write(path, slug(f"{dtype} {mistake}"), dtype=dtype, **(RIGHT_NUMBERS | AGAINST_OUT[mistake][0]))
    return path, deep(path)


@pytest.mark.parametrize("mistake", AGAINST_OUT)
def test_recorded_output_that_disagrees_is_explained(against_out, mistake):
    path, done = against_out
    [line] = lines_of(done, path, mistake, "error")
    assert done.returncode == 3
    assert f"/{home(slug(mistake))}/out: head " in line
    assert AGAINST_OUT[mistake][1] in line
    assert done.stdout == ""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mistake", ROUNDED)
def test_rounded_numbers_hide_no_mistake(against_out, mistake, dtype):
    path, done = against_out
    [line] = lines_of(done, path, f"{dtype} {mistake}", "error")
    assert AGAINST_OUT[mistake][1] in line


def test_a_disagreement_is_reported_with_head_row_expected_and_found(tmp_path):
    out = OUT.copy()
    out[4, TOKENS - 1, 7] += 3
    done = deep(write(tmp_path / "t.h5", **(RIGHT_NUMBERS | {"out": out})))
    assert f"/out: head 4, row {TOKENS - 1}: attention over q, k and v gives" in done.stderr
    assert f"at coordinate 7, recorded is {out[4, TOKENS - 1, 7]:.4g}" in done.stderr
    assert "1 of 9 heads disagree" in done.stderr


# Correct traces: rounded numbers and facts of every kind, with the model's output.
RIGHT = {
    "as it is": {},
    "a window": {"out": attention(Q, K, V, window=48), "sliding_window": 48},
    "chunks": {"out": attention(Q, K, V, chunk=24), "attention_chunk": 24},
    "a soft cap": {"out": attention(Q, K, V, softcap=20.0), "softcap": 20.0},
    "sink logits": {"out": attention(Q, K, V, sinks=SINKS), "more": {"sinks": SINKS.astype("f4")}},
    "strided queries": {
        "q": Q[:, STRIDED],
        "out": OUT[:, STRIDED],
        "more": {"q_pos": STRIDED.astype("i4")},
    },
    "scaled queries": {"q": Q * SCALE, "scaling": 1.0, "q_prescaled": 1},
}


def test_right_traces_pass_without_a_word(tmp_path):
    for kind, changes in RIGHT.items():
        for dtype in STORED:
            path = write(tmp_path / "t.h5", slug(f"{dtype} {kind}"), dtype=dtype, **(RIGHT_NUMBERS | changes))
    done = deep(path)
    assert (done.returncode, done.stderr) == (0, "")


# --- Traces without `out` ----------------------------------------------------------------------------------

MHA = Q[::GROUP]  # equally many query heads and kv heads
SUSPICIOUS = {
    "tokens before heads": (
        {"q": MHA.swapaxes(0, 1), "k": K.swapaxes(0, 1), "v": V.swapaxes(0, 1)},
        "/k: has 160 heads of 3 tokens. Axes are [heads, tokens, dim]: transpose",
    ),
    "a misspelt attribute": (
        {"sliding_windw": 32},
        "attribute sliding_windw is not read (did you mean sliding_window?)",
    ),
    "another program's word": ({"attn_logit_softcapping": 30.0}, "(did you mean softcap?)"),
    "a misspelt dataset": (
        {"more": {"sink": np.zeros(9, "f4")}},
        "dataset sink is not read (did you mean sinks?)",
    ),
    "a scale that was forgotten": (
        {"scaling": 1.0},
        "attribute scaling is 1, far from 1/sqrt(head_dim) = 0.125",
    ),
    "kv heads that were repeated": (
        {"k": np.repeat(K, GROUP, axis=0), "v": np.repeat(V, GROUP, axis=0)},
        "/k: only 3 of 9 kv heads differ",
    ),
    "queries that are keys": ({"q": K}, "/q: holds the numbers of k. Write the queries"),
    "values that are keys": ({"v": K}, "/v: holds the numbers of k. Write the values"),
    "norms that are worlds apart": ({"q": Q * 2000}, "in the root mean square, keys 2.06: a factor of 2e+03"),
    "attention that is uniform": ({"q": Q / 1000}, "attention is uniform in every row"),
    "attention on one token": ({"q": Q * 100}, "attention is on one token alone in most rows"),
    "keys that are not rotated": ({"k": rotated(K, -1)}, "/k: keys look not rotated"),
    "queries that are rotated twice": ({"q": rotated(Q)}, "/q: queries look rotated twice"),
    "keys in the other layout": (
        {"k": rotated(rotated(K, -1)[..., np.arange(DIM).reshape(2, -1).T.ravel()], interleaved=True)},
        "/k: keys look rotated in the other layout",
    ),
}


@pytest.fixture(scope="module")
def suspicious(tmp_path_factory):
    path = tmp_path_factory.mktemp("suspicious") / "t.h5"
    for mistake, (changes, _) in SUSPICIOUS.items():
        write(path, slug(mistake), **({"q": Q, "k": K, "v": V} | changes))
    return path, deep(path)


@pytest.mark.parametrize("mistake", SUSPICIOUS)
def test_suspicious_input_gives_a_warning(suspicious, mistake):
    path, done = suspicious
    lines = lines_of(done, path, mistake, "warning")
    assert any(SUSPICIOUS[mistake][1] in line for line in lines), lines
    assert (done.returncode, done.stdout) == (0, f"{path}: a sound trace, every number read\n")


def test_a_warning_common_to_all_layers_appears_once(tmp_path):
    path = write(tmp_path / "t.h5", q=Q, k=K, v=K)
    with h5py.File(path, "a") as f:
        f.copy(f[home("p0")], f["prompts/p0/layers"], name="001")
    told = [line for line in deep(path).stderr.splitlines() if "holds the numbers of k" in line]
    assert len(told) == 1
    assert told[0].endswith("(in 2 layers)")


SYNTHETIC = [
    (),
    ("--no-rope", "--clusters", 0),
    ("--duplicates", 3, "--key-norm", 30, "--with-out", "--dtype", "bf16"),
    ("--sinks", 4, "--sink-strength", 20, "--query-norm", 2, "--with-out"),
]


@pytest.mark.parametrize("words", SYNTHETIC)
def test_synthetic_traces_pass_without_a_word(tmp_path, words):
    done = deep(synth(tmp_path / "t.h5", "--tokens", 200, "--prompt", 100, *words))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_sample_passes_without_a_word():
    done = deep(SAMPLE)
    assert (done.returncode, done.stderr) == (0, "")


# --- Warnings in Python ------------------------------------------------------------------------------------


def test_arrays_whose_kv_heads_repeat_are_replayed_with_a_warning():
    q, k, v = (x.astype(np.float32) for x in (Q, K, V))
    repeated = (np.repeat(x, GROUP, axis=0) for x in (k, v))
    with pytest.warns(kv.KvreplayWarning, match="only 3 of 9 kv heads differ"):
        kv.replay(q, *repeated, prefill=TOKENS - 4, methods=["exact"])
    with warnings.catch_warnings(action="error"):
        kv.replay(q, k, v, prefill=TOKENS - 4, methods=["exact"])


def test_arrays_with_more_heads_than_tokens_are_replayed_with_a_warning():
    arrays = (x.swapaxes(0, 1).astype(np.float32) for x in (MHA, K, V))
    with pytest.warns(kv.KvreplayWarning, match="has 160 heads of 3 tokens"):
        kv.replay(*arrays, prefill=2, methods=["exact"])
