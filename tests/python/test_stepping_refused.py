"""What `kvreplay.stepping` refuses, and what its messages say."""

import json

import kvreplay as kv
import numpy as np
import pytest
from stepping_runs import (
    BUDGET,
    LATER,
    ORACLES,
    PROMPT,
    ROPE,
    begun,
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


class GivesUp(kv.Policy):
    """Keeps the newest tokens, and gives up at token 45."""

    def evict(self, tokens):
        if tokens[-1] == 45:
            raise ValueError("45 is too many")
        return tokens[: len(tokens) - self.budget]


@pytest.mark.parametrize("method", ORACLES, ids=json.dumps)
def test_a_method_that_looks_ahead_is_refused(trace, method):
    with pytest.raises(kv.ConfigError, match="looks at rows that have not arrived yet"):
        begun([trace], method)


REFUSED_ROWS = {
    "layer 3 is not replayed: known are 0": (3, lambda q, k, v: (q, k, v)),
    r"layer 0: k is \[4, 1, 8\]: it must be \[2, 1, 8\]": (0, lambda q, k, v: (q, q, v)),
    r"layer 0: v is \[2, 2, 6\]: it must be \[2, 1, 6\]": (0, lambda q, k, v: (q, k, np.repeat(v, 2, 1))),
    r"q is \[4, 8\]; it must be \[heads, rows, dim\]": (0, lambda q, k, v: (q[:, 0], k, v)),
    r"it must be \[4, R > 0, 8\]": (0, lambda q, k, v: (q[:, :0], k[:, :0], v[:, :0])),
    "layer 0: v holds .*NaN": (0, lambda q, k, v: (q, k, v * np.float32(np.nan))),
    "layer 0: q holds .*inf": (0, lambda q, k, v: (q / np.float32(0), k, v)),
}


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("says", REFUSED_ROWS)
def test_rows_that_do_not_fit_are_refused_and_change_nothing(says):
    layer, change = REFUSED_ROWS[says]
    steps, same = (begun(part(rows(), 0, PROMPT), "h2o") for _ in range(2))
    row = part(rows(), PROMPT, PROMPT + 1)
    with pytest.raises((kv.ConfigError, kv.TraceError), match=says):
        steps.step(layer, *change(*row))
    assert steps.step(0, *row).tobytes() == same.step(0, *row).tobytes()


def test_no_more_rows_arrive_than_there_is_room_for():
    steps = begun(part(rows(), 0, PROMPT), "h2o", capacity=2)
    with pytest.raises(kv.ConfigError, match="3 rows arrive, but there is room for 2 more"):
        steps.step(0, *part(rows(), PROMPT, PROMPT + 3))
    steps.step(0, *part(rows(), PROMPT, PROMPT + 2))
    with pytest.raises(kv.ConfigError, match="1 rows arrive, but there is room for 0 more"):
        steps.step(0, *part(rows(), PROMPT, PROMPT + 1))


def test_positions_that_the_cache_moves_must_ascend():
    steps = begun(part(rows(), 0, PROMPT), {"name": "h2o", "positions": "cache"}, rope=ROPE)
    row = part(rows(), PROMPT, PROMPT + 1)
    for position in (PROMPT - 1, PROMPT + LATER):
        with pytest.raises(kv.ConfigError, match=f"position {position} follows {PROMPT - 1}: positions"):
            steps.step(0, *row, position_ids=[position])
    pair = part(rows(), PROMPT, PROMPT + 2)
    with pytest.raises(kv.ConfigError, match=f"position {PROMPT} follows {PROMPT}"):
        steps.step(0, *pair, position_ids=[PROMPT, PROMPT])
    assert steps.kept(0).max() == PROMPT - 1
    with pytest.raises(kv.TraceError, match="2 positions, but 1 rows"):
        steps.step(0, *row, position_ids=[PROMPT, PROMPT + 1])


def test_a_method_that_fails_says_why_and_its_layer_takes_no_more_rows():
    steps = begun(part(rows(), 0, PROMPT), GivesUp, 2)
    run = replayed(rows(), GivesUp, 2, prefill=PROMPT)
    assert all("45 is too many" in cell.arrays["error"].decode() for cell in run.cells)
    steps.step(0, *part(rows(), PROMPT, 45))
    assert steps.kept(0).tolist() == [43, 44]
    for token in (45, 46):
        with pytest.raises(kv.ConfigError, match=r"(?s)gives_up, layer 0, kv head 0: .*45 is too many"):
            steps.step(0, *part(rows(), token, token + 1))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"capacity": 0}, "capacity is 0: it must be a whole number from 1"),
        ({"seed": -1}, "seed is -1: it must be a whole number"),
        ({"method": ["h2o", "tova"]}, "method names 2 methods: a stepwise replay has one"),
        ({"method": {"name": "h2o", "recent": [2, 4]}}, "one value for each parameter, one budget"),
        ({"budget": [8, 16]}, "one value for each parameter, one budget and one seed"),
        ({"prompt_id": "p1"}, "prompt_id names a prompt of a trace"),
    ],
)
def test_wrong_arguments_are_refused(change, says):
    given = {"method": "h2o", "budget": BUDGET, "capacity": LATER, **change}
    with pytest.raises(kv.ConfigError, match=says):
        kv.stepping(*part(rows(), 0, PROMPT), **given)


def test_a_trace_says_which_prompts_and_heads_it_has(trace):
    with pytest.raises(kv.KvreplayError, match="p7"):
        begun([trace], "h2o", prompt_id="p7")
    with pytest.raises(kv.ConfigError, match="layer 0 has no kv head 2"):
        begun([trace], "h2o").kept(0, 2)
