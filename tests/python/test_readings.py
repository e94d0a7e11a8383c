"""What takes careful reading: cuts at which nothing leaves, soft caps, queries, numbers of each kv head."""

import h5py
import kvreplay as kv
import numpy as np
import pytest

Q_HEADS, KV_HEADS, TOKENS, PROMPT, DIM, V_DIM = 4, 2, 90, 50, 8, 6
WIDTH = 4  # bytes of a number


@pytest.fixture(scope="module")
def text():
    draw = np.random.default_rng(11)
    shapes = ((Q_HEADS, TOKENS, DIM), (KV_HEADS, TOKENS, DIM), (KV_HEADS, TOKENS, V_DIM))
    return tuple(draw.standard_normal(shape).astype(np.float32) for shape in shapes)


def replayed(text, method, budget, prefill=PROMPT, **more):
    return kv.replay(
        *text,
        prefill=prefill,
        methods=method,
        budgets=budget,
        save="kept",
        seeds=1,
        precision="double",
        **more,
    )


def lists(run, head=0):
    return [step.tolist() for step in run.kept(kv_head=head)]


@pytest.mark.filterwarnings("ignore")
def test_tied_heads_hold_the_same_whole_pages(text):
    """Every method that selects, audited. With one kv head a tied table is that head's own."""
    one = text[0][:2], text[1][:1], text[2][:1]
    seen = 0
    for name in sorted(kv.methods()):
        entry = {"name": name, "page": 4, "evict": "page", "positions": "original"}
        try:
            tied = replayed(text, entry | {"page_heads": "tied"}, 44, audit=True)
        except kv.ConfigError:
            continue
        assert not len(tied.failed), name
        assert lists(tied, 0) == lists(tied, 1), name
        alone = [lists(replayed(one, entry | {"page_heads": heads}, 44)) for heads in ("tied", "own")]
        assert alone[0] == alone[1], name
        seen += 1
    assert seen > 20


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("heads", [1, 2])
def test_whole_pages_are_charged_once(text, heads):
    q, k, v = text
    method = {"name": "tova", "page": 4, "evict": "page", "page_heads": "tied"}
    run = replayed((q[: 2 * heads], k[:heads], v[:heads]), method, 40)
    row = run.row(kv_head=0)
    assert row["peak_bytes"] == row["resident_pages_peak"] * 4 * (DIM + V_DIM) * WIDTH
    assert row["score_bytes"] == 8 * row["peak_kept_tokens"]


@pytest.mark.parametrize("method", ["knorm", "keydiff", "h2o", {"name": "tova"}])
def test_a_cut_in_the_budget_at_every_step_attends_to_the_budget(text, method):
    entry = {"name": method} if isinstance(method, str) else method
    entry = entry | {"cut_every": 1, "cut_in_budget": True}
    run = replayed(text, entry, 20)
    assert run.row(kv_head=0)["peak_attended_tokens"] == 20
    assert {len(step) for step in lists(run)} == {19}


def test_a_cut_at_which_nothing_leaves_changes_no_score(text):
    """The first cut that evicts then finds no score of an earlier one."""
    first = []
    for alpha in (0, 1):
        method = {"name": "gkv", "window": 4, "buffer": 1, "alpha": alpha, "smooth": "sum"}
        run = replayed(text, method, PROMPT + 10)
        first.append(lists(run)[11])
    assert len(first[0]) == PROMPT + 10
    assert first[0] == first[1]


@pytest.mark.parametrize("name", ["gkv", "rkv"])
def test_votes_of_queries_are_soft_capped(text, name):
    """The votes of the last rows, with the largest query head of the group and without pooling."""
    q, k, _ = (x.astype(float) for x in text)
    cap, window, budget = 0.5, 5, 15
    logits = cap * np.tanh(4 * np.einsum("gtd,sd->gts", q[:2], k[0]) / np.sqrt(DIM) / cap)
    votes = np.zeros(PROMPT - window)
    for row in range(PROMPT - window, PROMPT):
        seen = logits[:, row, : row + 1 if name == "gkv" else PROMPT - window]
        x = seen if name == "gkv" else seen.max(axis=0, keepdims=True)
        p = np.exp(x - x.max(axis=1, keepdims=True))
        votes += (p / p.sum(axis=1, keepdims=True)).max(axis=0)[: PROMPT - window]
    best = np.argsort(-votes, kind="stable")[: budget - window]
    entry = {"name": name, "window": window, "kernel": 1, "buffer": 5}
    entry |= {"alpha": 0} if name == "gkv" else {"lambda": 1}
    run = replayed((4 * text[0], *text[1:]), entry, budget, softcap=cap)
    assert lists(run)[0] == sorted([*best, *range(PROMPT - window, PROMPT)])


@pytest.mark.parametrize(
    ("entry", "numbers"),
    [
        ({"name": "snapkv", "window": 6}, 6 * 2 * DIM),
        ({"name": "expected_attention"}, 2 * (DIM + DIM * (DIM + 1) // 2)),
        ({"name": "knorm"}, 0),
    ],
    ids=lambda x: x["name"] if isinstance(x, dict) else str(x),
)
def test_who_keeps_queries_for_later_cuts_is_charged(text, entry, numbers):
    """From the first decode step on; with chunks from the prompt's end."""
    rope = {"theta": 10000.0}
    plain = replayed(text, entry, 20, rope=rope).row(kv_head=0)
    again = replayed(text, entry | {"cut_every": 4}, 20, rope=rope).row(kv_head=0)
    chunks = replayed(text, entry | {"prefill_chunk": 10}, 20, rope=rope).row(kv_head=0)
    assert again["sketch_bytes"] == numbers * WIDTH
    assert again["prompt_bytes"] == plain["prompt_bytes"]
    assert chunks["prompt_bytes"] == plain["prompt_bytes"] + numbers * WIDTH
    assert chunks["final_bytes"] == plain["final_bytes"]


@pytest.mark.filterwarnings("ignore")
def test_each_kv_head_of_a_tied_table_reads_its_own_numbers(text, tmp_path):
    file = tmp_path / "u.h5"
    draw = np.random.default_rng(2)
    with h5py.File(file, "w") as out:
        for head in range(KV_HEADS):
            cuts = 1 + (TOKENS - PROMPT) // 8
            out[f"p0/000/{head}/u"] = draw.random(cuts * TOKENS)
    entry = {
        "name": "random_attention",
        "keep_prompt": False,
        "buffer": 8,
        "recent": 4,
        "uniforms": str(file),
    }
    own = replayed(text, entry, 20)
    tied = replayed(text, entry | {"page": 4, "page_heads": "tied"}, 20)
    for head in range(KV_HEADS):
        assert lists(tied, head) == lists(own, head)
    assert lists(own, 0) != lists(own, 1)
    with pytest.raises(kv.ConfigError, match="leave out uniforms and calibration"):
        replayed(text, {"name": "knorm", "then": entry}, 20)


def test_a_second_method_with_a_smaller_budget_cuts_when_it_is_due(text):
    for then in ({"name": "tova", "cut_every": 5}, {"name": "rkv", "buffer": 5, "window": 2}):
        run = replayed(text, {"name": "knorm", "then": then | {"budget": {"tokens": 10}}}, 30)
        assert [len(step) for step in lists(run)[:12]] == [30, 31, 32, 33, 34, 10, 11, 12, 13, 14, 10, 11]


def test_the_whole_prompt_may_be_handed_over(text):
    for first, budget in (("exact", None), ("knorm", PROMPT)):
        entry = {"name": first, "then": {"name": "vase", "recent": 1, "buffer": 5, "budget": {"tokens": 12}}}
        steps = [len(step) for step in lists(replayed(text, entry, budget))[:7]]
        assert steps == [PROMPT, PROMPT + 1, PROMPT + 2, PROMPT + 3, PROMPT + 4, 12, 13]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"name": "gkv", "buffer": 4, "cut_every": 3}, "both are given: remove one"),
        ({"name": "random_attention", "prefill_chunk": 8}, "write keep_prompt: false"),
        ({"name": "snapkv", "phase": "stream"}, "must be oneshot"),
        ({"name": "knorm", "phase": "stream", "then": "tova"}, "cuts the prompt once: leave out phase"),
        ({"name": "knorm", "then": {"name": "tova", "phase": "oneshot"}}, "then streams: leave out phase"),
        ({"name": "knorm", "then": {"name": "tova", "then": "knorm"}}, "leave out the then inside it"),
        (
            {"name": "knorm", "then": {"name": "tova", "budget": {"tokens": [5, 6]}}},
            "takes one number of tokens",
        ),
        ({"name": "knorm", "then": {"name": "tova", "recent": 30}}, "then tova: recent 30 exceeds"),
        ({"name": "chunkkv", "then": "tova"}, "for all kv heads of a layer"),
        ({"name": "finch", "then": "tova"}, "recorded positions: add"),
        ({"name": "gkv", "protect_ends": 0.1}, "no sinks and recent tokens"),
        ({"name": "paged_eviction", "cut_every": 4}, "own rule: leave out cut_every"),
    ],
)
def test_what_does_not_go_together_is_refused(text, entry, says):
    with pytest.raises(kv.ConfigError, match=says):
        replayed(text, entry, 20)


def test_small_pages_bring_a_warning(text):
    with pytest.warns(UserWarning, match="engines store pages of 8 to 128 tokens"):
        replayed(text, {"name": "tova", "page": 4}, 20)


def test_a_window_larger_than_a_growing_budget_keeps_the_newest(text):
    run = replayed(text, {"name": "snapkv", "window": 32, "cut_every": 1}, {"ratio_of_seen": 0.1, "floor": 6})
    assert lists(run)[0] == list(range(PROMPT - 6, PROMPT))
