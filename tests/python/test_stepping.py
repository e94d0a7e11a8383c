"""`kvreplay.stepping`: rows that arrive one by one give what a replay of the complete rows gives."""

import json
from concurrent.futures import ThreadPoolExecutor

import kvreplay as kv
import numpy as np
import pytest
from kvreplay_cli import formats_of_heads
from stepping_runs import (
    ALL,
    BUDGET,
    DIM,
    FACTS,
    KIVI,
    KV_HEADS,
    LATER,
    LAYERS,
    METHODS,
    PROMPT,
    Q_HEADS,
    ROPE,
    SNAPKV,
    UNION,
    V_DIM,
    WIDE_ROPE,
    Stepped,
    begun,
    expect_equal,
    part,
    replayed,
    rows,
    write_trace,
)


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("stepping") / "t.h5"
    write_trace(path)
    return path


# --- Every method ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS, ids=json.dumps)
def test_steps_give_what_a_replay_of_all_rows_gives(trace, method):
    run = replayed([trace], method)
    assert [cell.row["status"] for cell in run.cells] == ["ok"] * len(LAYERS) * KV_HEADS
    expect_equal(run, Stepped(begun([trace], method)))


def wide(layer=0):
    """Rows that fit the blocks of every format."""
    return rows(layer, dim=32, v_dim=32)


@pytest.mark.parametrize("row_format", formats_of_heads())
def test_every_row_format_codes_rows_as_they_arrive(row_format):
    method = {"name": "exact", "row_format": row_format}
    run = replayed(wide(), method, None, prefill=PROMPT, rope=WIDE_ROPE)
    steps = begun(part(wide(), 0, PROMPT), method, None, rope=WIDE_ROPE)
    expect_equal(run, Stepped(steps, layers=(0,), source=wide))


@pytest.mark.parametrize("facts", FACTS.values(), ids=FACTS)
@pytest.mark.parametrize(
    "method", ["h2o", "tova", "window", "knorm", "exact", "topk_oracle",
               {"name": "h2o", "row_format": "int8"}, {"name": "h2o", "positions": "cache"}], ids=json.dumps,
)  # fmt: skip
def test_facts_of_a_layer_hold_for_rows_that_arrive(method, facts):
    prompt, positions = dict(facts), facts.get("position_ids")
    if positions is not None:
        prompt["position_ids"] = positions[:PROMPT]
    run = replayed(rows(), method, prefill=PROMPT, rope=ROPE, **facts)
    steps = begun(part(rows(), 0, PROMPT), method, capacity=3 * LATER, rope=ROPE, **prompt)
    expect_equal(run, Stepped(steps, layers=(0,), positions=positions))


@pytest.mark.parametrize(
    "method", ["h2o", "exact", {"name": "h2o", "row_format": KIVI}, {**SNAPKV, "gqa.level": "layer"}, UNION],
    ids=json.dumps,
)  # fmt: skip
def test_rows_in_chunks_give_the_same_bits_as_rows_one_by_one(method):
    one, three = (
        Stepped(begun(part(rows(), 0, PROMPT), method, rope=ROPE), layers=(0,), size=size) for size in (1, 3)
    )
    assert one.out[0].tobytes() == three.out[0].tobytes()
    assert [one.steps.kept(0, head).tolist() for head in (0, 1)] == [
        three.steps.kept(0, head).tolist() for head in (0, 1)
    ]


def test_an_exact_cache_gives_attention_over_all_rows_and_the_own_one():
    q, k, v = rows()
    out = begun(part((q, k, v), 0, PROMPT), "exact", None).step(0, *part((q, k, v), PROMPT, PROMPT + 1))
    for head in range(Q_HEADS):
        logits = k[head // 2, : PROMPT + 1].astype(float) @ q[head, PROMPT] / DIM**0.5
        p = np.exp(logits - logits.max())
        assert np.allclose(out[head, 0], p @ v[head // 2, : PROMPT + 1] / p.sum(), atol=1e-6)


def test_bytes_and_tokens_are_those_of_the_present_moment():
    steps = begun(part(rows(), 0, PROMPT), "window", 8)
    row_bytes = 4 * (DIM + V_DIM)
    assert (
        steps.kept(0, 1).tolist() == [*range(PROMPT - 8, PROMPT)] and steps.bytes == KV_HEADS * 8 * row_bytes
    )
    everything = begun(part(rows(), 0, PROMPT), "exact", None)
    everything.step(0, *part(rows(), PROMPT, PROMPT + 2))
    assert everything.kept(0).tolist() == [*range(PROMPT + 2)]
    assert everything.bytes == KV_HEADS * (PROMPT + 2) * row_bytes


def test_the_rows_that_a_trace_holds_behind_its_prompt_are_not_read(trace):
    steps = begun([trace], "h2o")
    q, k, v = part(rows(1), PROMPT, PROMPT + 1)
    other = begun(part(rows(1), 0, PROMPT), "h2o", rope=ROPE)
    assert steps.step(1, q, k, 9 * v).tobytes() == other.step(0, q, k, 9 * v).tobytes()


def test_a_share_of_the_bytes_is_a_share_of_the_prompt():
    run = replayed(rows(), "knorm", "25%", prefill=PROMPT)
    expect_equal(run, Stepped(begun(part(rows(), 0, PROMPT), "knorm", "25%"), layers=(0,)))
    with pytest.raises(kv.ConfigError, match="at the peak or over the steps needs all rows"):
        begun(part(rows(), 0, PROMPT), "knorm", {"share_of_cache": [0.25], "of": "mean"})


def test_layers_may_be_stepped_by_threads():
    layers = {layer: part(rows(layer), 0, PROMPT) for layer in range(6)}
    make = lambda: kv.stepping(layers=layers, method="h2o", budget=BUDGET, capacity=LATER)  # noqa: E731
    one, several = make(), make()

    def run(steps, layer):
        return [steps.step(layer, *part(rows(layer), t, t + 1)).tobytes() for t in range(PROMPT, ALL)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda layer: run(several, layer), layers)) == [
            run(one, layer) for layer in layers
        ]


@kv.scorer
def newest_values(prompt):
    """Large values first, then the newest."""
    return np.abs(prompt.values).sum(axis=(0, 2)) + np.arange(prompt.size)


class Newest(kv.Policy):
    """Keeps the newest tokens."""

    def evict(self, tokens):
        return tokens[: len(tokens) - self.budget]


@pytest.mark.parametrize("method", [newest_values, Newest])
def test_own_methods_step_as_they_are_replayed(method):
    run = replayed(rows(), method, prefill=PROMPT)
    expect_equal(run, Stepped(begun(part(rows(), 0, PROMPT), method), layers=(0,)))


# --- Heads of several layers that cut together ----------------------------------------------------


def test_a_layer_waits_for_the_others_where_their_heads_cut_together(trace):
    steps = begun([trace], {**UNION, "buffer": 1})
    steps.step(0, *part(rows(0), PROMPT, PROMPT + 1))
    assert len(steps.kept(0)) == BUDGET + 1
    with pytest.raises(kv.ConfigError, match="layer 0 waits for a cut that the heads of all layers make"):
        steps.step(0, *part(rows(0), PROMPT + 1, PROMPT + 2))
    steps.step(1, *part(rows(1), PROMPT, PROMPT + 1))
    assert len(steps.kept(0)) == len(steps.kept(1)) == BUDGET
    steps.step(0, *part(rows(0), PROMPT + 1, PROMPT + 2))
    with pytest.raises(kv.ConfigError, match="select all layers"):
        begun([trace], UNION, layers=[1])
