"""Identity of Python methods: two methods with different decisions have different keys."""

import functools

import kvreplay
import numpy as np
import pytest
from kvreplay.own_methods import hosted


def votes(prompt):
    return prompt.attention().sum(axis=(0, 1))


def constant(value, prompt):
    return np.full(prompt.size, value)


def given(value):
    def scores(prompt):
        return np.full(prompt.size, np.sum(value))

    return scores


def made(evicted):
    class Made(kvreplay.Policy):
        def evict(self, tokens):
            return tokens[:evicted]

    return Made


class First(kvreplay.Policy):
    def evict(self, tokens):
        return tokens[:1]


class Second(kvreplay.Policy):
    def evict(self, tokens):
        return tokens[1:2]


def derived(base):
    class Derived(base):
        pass

    return Derived


def identity(method):
    return hosted(method).facts["identity"]


PAIRS = {
    "windows": [kvreplay.scorer(votes, window=n) for n in (4, 16)],
    "windows that stay": [kvreplay.scorer(votes, window=4, window_stays=stays) for stays in (True, False)],
    "enclosed numbers": [made(n) for n in (1, 2)],
    "inherited text": [derived(base) for base in (First, Second)],
    "arguments": [kvreplay.scorer(functools.partial(constant, n), name="constant") for n in (1, -1)],
    "enclosed arrays": [kvreplay.scorer(given([np.full(5000, n)])) for n in (0.0, 1.0)],
}


@pytest.mark.parametrize("pair", PAIRS, ids=PAIRS)
def test_methods_with_other_decisions_have_other_identities(pair):
    one, other = PAIRS[pair]
    assert identity(one) != identity(other)


def test_methods_made_alike_have_one_identity():
    assert identity(made(1)) == identity(made(1))
    assert identity(derived(First)) == identity(derived(First))
    assert identity(kvreplay.scorer(given(3))) == identity(kvreplay.scorer(given(3)))


def test_arrays_with_other_numbers_are_another_trace():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 64, 8), np.float32) for n in (4, 2, 2))
    words = {"prefill": 48, "methods": ["h2o"], "budgets": [16]}
    names = {kvreplay.replay(q, keys, v, **words).table["trace_id"].iloc[0] for keys in (k, k.copy(), 2 * k)}
    assert len(names) == 2


def test_facts_in_a_trace_may_not_be_passed_again():
    for fact in ({"scaling": 0.5}, {"sliding_window": 8}, {"position_ids": [0, 1]}, {"rope": "none"}):
        with pytest.raises(kvreplay.ConfigError, match=f"{next(iter(fact))} describes arrays"):
            kvreplay.replay(kvreplay.sample(), methods=["h2o"], budgets=[64], **fact)


def test_layers_of_a_trace_keep_its_prompt_length():
    layer = kvreplay.open(kvreplay.sample()).layer(7)
    words = {"methods": ["h2o"], "budgets": [64]}
    by_layer = kvreplay.replay(layers={7: layer}, **words)
    by_trace = kvreplay.replay(kvreplay.sample(), layers=[7], **words)
    assert [cell.row["key"] for cell in by_layer.cells] == [cell.row["key"] for cell in by_trace.cells]
    with pytest.raises(kvreplay.ConfigError, match="changes their numbers"):
        kvreplay.replay(layers={0: layer}, **words)


def test_evict_must_return_tokens_and_not_rows():
    class Rows(kvreplay.Policy):
        def evict(self, tokens):
            return tokens[None, : len(tokens) - self.budget]

    with pytest.warns(UserWarning, match="3 of 3 cells of rows failed: ValueError: evict"):
        run = kvreplay.replay(kvreplay.sample(), methods=[Rows], budgets=[64], layers=[7])
    assert "\n" in run.failed["error"].iloc[0]
