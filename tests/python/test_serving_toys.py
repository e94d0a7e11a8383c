"""The small examples of options of serving, by hand. Scores are fixed: a key's norm is 10 minus its score."""

import json

import kvreplay as kv
import numpy as np
import pytest


def keys_of(scores):
    k = np.zeros((len(scores), len(scores[0]), 2), dtype=np.float32)
    k[:, :, 0] = 10 - np.array(scores, dtype=np.float32)
    return k


def replayed(scores, method, budget, prefill):
    """scores: of one head, or of several."""
    k = keys_of(scores if isinstance(scores[0], list) else [scores])
    v = np.arange(k.size, dtype=np.float32).reshape(k.shape)[:, :, :1]
    q, v = np.ones_like(k), np.ascontiguousarray(v)
    return kv.replay(q, k, v, prefill=prefill, methods=method, budgets=budget, save="kept")


def lists(run, **place):
    return [step.tolist() for step in run.kept(**place)]


def row(run, **place):
    return run.row(**place)


PAGES = [9, 1, 4, 4, 2, 7]
OTHER = [9, 8, 1, 1, 7, 6]  # keeps 0, 1, 4, 5
ROW_BYTES = 4 * (2 + 1)


@pytest.mark.filterwarnings("ignore")
class TestPages:
    """Six tokens in pages of two, a budget of four, no token behind the prompt."""

    def run(self, scores=PAGES, **options):
        return replayed(scores, {"name": "knorm", "page": 2, **options}, 4, len(PAGES))

    def test_whole_pages_leave_by_their_mean(self):
        """Means 5, 4 and 4.5: two pages stay, and that of the newest token is one of them."""
        run = self.run(evict="page")
        assert lists(run) == [[0, 1, 4, 5]]
        assert (row(run)["resident_pages"], row(run)["fragmentation"]) == (2, 0)

    def test_a_page_with_one_token_stays(self):
        run = self.run()
        assert lists(run) == [[0, 2, 3, 5]]
        assert (row(run)["resident_pages"], row(run)["reclaimed_bytes"]) == (3, 0)
        assert row(run)["fragmentation"] == pytest.approx(1 / 3)

    def test_tokens_that_move_to_the_front_free_a_page(self):
        run = self.run(compact=True)
        assert lists(run) == [[0, 2, 3, 5]]
        assert (row(run)["resident_pages"], row(run)["fragmentation"]) == (2, 0)
        assert row(run)["reclaimed_bytes"] == 2 * ROW_BYTES

    def test_a_page_of_a_tied_table_stays_while_any_head_needs_it(self):
        own, tied = (self.run([PAGES, OTHER], page_heads=word) for word in ("own", "tied"))
        assert lists(own, head=1) == lists(tied, head=1) == [[0, 1, 4, 5]]
        assert [row(own, head=head)["resident_pages"] for head in (0, 1)] == [3, 2]
        assert [row(tied, head=head)["resident_pages"] for head in (0, 1)] == [3, 3]


CUTS = [5, 1, 4, 2, 3, 6, 0.5]


def test_cuts_between_which_tokens_wait():
    run = replayed(CUTS, {"name": "knorm", "cut_every": 2}, 3, 4)
    assert lists(run) == [[0, 2, 3], [0, 2, 3, 4], [0, 2, 5], [0, 2, 5, 6]]
    assert row(run)["peak_attended_tokens"] == 5


def test_tokens_that_wait_inside_the_budget():
    run = replayed(CUTS, {"name": "knorm", "cut_every": 2, "cut_in_budget": True}, 3, 4)
    assert lists(run) == [[0], [0, 4], [5], [5, 6]]
    assert row(run)["peak_attended_tokens"] == 3


def test_a_prompt_that_stays():
    run = replayed([5, 1, 4, 2, 3, 6], {"name": "knorm", "phase": "stream", "keep_prompt": True}, 1, 4)
    assert lists(run) == [[0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 5]]


def test_a_budget_that_grows_with_the_text():
    """A quarter of the tokens seen, rounded up, at least 3."""
    run = replayed([1.0] * 17, "window", {"ratio_of_seen": 0.25, "floor": 3}, 8)
    assert [len(step) for step in lists(run)] == [3, 3, 3, 3, 3, 4, 4, 4, 4, 5]  # seen: 8 to 17
    assert row(run)["budget_tokens"] == 5


def test_a_prompt_in_chunks():
    """After three tokens 0 and 2 stay, after six 0 and 4, as at once."""
    scores = [5, 1, 4, 2, 9, 3]
    for method in ({"name": "knorm", "prefill_chunk": 3}, "knorm"):
        assert lists(replayed(scores, method, 2, len(scores))) == [[0, 4]]
    for chunk, peak in ((3, 5), (2, 4), (4, 4), (1, 3), (6, None), (9, None)):
        told = row(replayed(scores, {"name": "knorm", "prefill_chunk": chunk}, 2, len(scores)))
        assert f'"prefill_chunk":{chunk}' in told["given"]
        assert told["extras"] == (peak and json.dumps({"peak_attended_prompt": peak}, separators=(",", ":")))


def test_another_method_for_the_decode():
    method = {"name": "knorm", "then": {"name": "window", "budget": {"tokens": 2}}}
    run = replayed([5, 1, 4, 2], method, 2, 3)
    assert lists(run) == [[0, 2], [2, 3]]
    assert row(run)["peak_attended_tokens"] == 3
    assert row(run)["method"] == "knorm+window"
