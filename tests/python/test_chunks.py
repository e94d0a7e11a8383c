"""Prompts in chunks against numpy: one method, and two of which the second follows what the first has cut."""

import kvreplay as kv
import numpy as np
import pytest
from reference import chunks
from reference.turns import Head, Method

Q_HEADS, KV_HEADS, TOKENS, PROMPT, DIM, V_DIM = 4, 2, 60, 38, 8, 6
FIRST, LATER = 12, 9

SNAPKV = ({"name": "snapkv", "window": 4, "kernel": 1}, Method("snapkv", "stream", recent=4, window=4))
H2O = ({"name": "h2o", "recent": 3}, Method("h2o", "stream", recent=3))
TOVA = ({"name": "tova"}, Method("tova", "stream"))
KNORM = ({"name": "knorm", "recent": 2}, Method("knorm", "stream", recent=2))
VNORM = ({"name": "h2o", "weight": "vnorm", "recent": 3}, Method("vnorm", "stream", recent=3))


@pytest.fixture(scope="module")
def text():
    draw = np.random.default_rng(3)
    shapes = ((Q_HEADS, TOKENS, DIM), (KV_HEADS, TOKENS, DIM), (KV_HEADS, TOKENS, V_DIM))
    q, k, v = (draw.standard_normal(shape) for shape in shapes)
    v *= np.exp(draw.standard_normal((KV_HEADS, TOKENS, 1)))
    return tuple(x.astype(np.float32) for x in (q, k, v))


def head_of(text, head):
    q, k, v = (x.astype(float) for x in text)
    group = Q_HEADS // KV_HEADS
    return Head(q[head * group : (head + 1) * group], k[head], v[head])


def check(text, entry, methods, budgets, chunk):
    run = kv.replay(*text, prefill=PROMPT, methods=entry, budgets=budgets[0], save="kept", precision="double")
    for head in range(KV_HEADS):
        expected = chunks.replay(head_of(text, head), methods, budgets, PROMPT, chunk)
        assert [kept.tolist() for kept in run.kept(kv_head=head)] == expected


@pytest.mark.parametrize("chunk", [1, 7, 19, 38])
@pytest.mark.parametrize("entry, method", [H2O, TOVA, VNORM], ids=["h2o", "tova", "h2o vnorm"])
def test_a_method_sees_each_chunk_over_what_the_last_one_left(text, entry, method, chunk):
    check(text, entry | {"prefill_chunk": chunk}, [method], [FIRST], chunk)


@pytest.mark.parametrize("chunk", [1, 7, 19])
@pytest.mark.parametrize("later", [H2O, TOVA, KNORM, SNAPKV, VNORM], ids=lambda x: "+" + x[1].rule)
@pytest.mark.parametrize("first", [SNAPKV, H2O, TOVA], ids=lambda x: x[1].rule)
def test_a_second_method_follows_what_the_first_left_of_each_chunk(text, first, later, chunk):
    every = 5 if later is SNAPKV else 1
    then = later[0] | {"budget": {"tokens": LATER}, **({"cut_every": every} if every > 1 else {})}
    entry = first[0] | {"phase": "oneshot", "prefill_chunk": chunk, "then": then}
    method = Method(later[1].rule, "stream", later[1].recent, later[1].window, every)
    check(text, entry, [first[1], method], [FIRST, LATER], chunk)
