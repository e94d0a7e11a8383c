"""From the lists of kept.h5 to weights, coded rows and re-rotated keys, with small numbers worked out by
hand."""

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kvbase.errors import KvreplayError  # noqa: E402
from kvconfirm.attention import LogitRule, attend, bias_of  # noqa: E402
from kvconfirm.coded_rows import format_of, names_in, with_columns  # noqa: E402
from kvconfirm.kept_lists import KeptFile, Series  # noqa: E402
from kvconfirm.losses import answer_of, compare  # noqa: E402
from kvconfirm.results import Instance  # noqa: E402
from kvconfirm.rotation import Rotary, turn  # noqa: E402
from kvconfirm.row_weights import LayerRows, moves, weigh  # noqa: E402
from kvconfirm.table import spans  # noqa: E402
from kvrecord.rotary import rotate  # noqa: E402
from kvreplay.reading_back import NEVER, ReadBack  # noqa: E402

pytestmark = pytest.mark.torch


def series(lists, num=None, den=None):
    off = np.cumsum([0, *map(len, lists)])
    weights = [None if w is None else np.concatenate(w).astype(float) for w in (num, den)]
    return Series(off, np.concatenate(lists).astype(np.int64), *weights)


def write_kept(path, lists, name="kept", attributes=None, **weights):
    with h5py.File(path, "w") as file:
        group = file.create_group("cell")
        group[f"{name}_flat"] = np.concatenate([np.asarray(one, dtype=np.int32) for one in lists])
        group[f"{name}_off"] = np.cumsum([0, *map(len, lists)])
        for weight, values in weights.items():
            group[weight] = np.asarray(values, dtype=np.float32)
        group.attrs.update(attributes or {})
    return path


def lists_of(path, prefill=3, tokens=5):
    with KeptFile(path) as kept:
        return kept.lists("cell", prefill, tokens)


# --- Weights --------------------------------------------------------------------------------------


def test_a_one_shot_list_stays_and_every_later_token_joins_it():
    found = weigh(series([[0, 2]]), "oneshot", prefill=3, tokens=5)
    assert found.num.tolist() == [[1, 0, 1, 1, 0], [1, 0, 1, 1, 1]]
    assert found.den is found.num


def test_a_step_attends_to_the_list_before_it_and_to_its_own_token():
    found = weigh(series([[0, 2], [2, 3], [3, 4]]), "before", prefill=3, tokens=5)
    assert found.num.tolist() == [[1, 0, 1, 1, 0], [0, 0, 1, 1, 1]]


def test_lists_of_attended_tokens_are_used_unchanged():
    found = weigh(series([[0, 3], [1, 2]]), "attended", prefill=3, tokens=5)
    assert found.num.tolist() == [[1, 0, 0, 1, 0], [0, 1, 1, 0, 0]]


def test_weights_differ_where_the_lists_say_so_and_a_new_token_weighs_one():
    found = weigh(series([[0, 2]], [[3.0, 0.0]], [[2.0, 4.0]]), "oneshot", prefill=3, tokens=4)
    assert found.num.tolist() == [[3, 0, 0, 1]]
    assert found.den.tolist() == [[2, 0, 4, 1]]


def test_a_token_without_weight_still_has_its_place_in_the_cache():
    found = weigh(series([[0, 1, 2]], [[1.0, 0.0, 1.0]], [[1.0, 0.0, 1.0]]), "oneshot", prefill=4, tokens=5)
    assert found.num.tolist() == [[1, 0, 1, 0, 1]]
    assert found.held.tolist() == [[1, 1, 1, 0, 1]]


def test_a_layers_window_hides_what_a_one_shot_list_would_show():
    found = weigh(series([[0, 2]]), "oneshot", prefill=3, tokens=5, window=2)
    assert found.num.tolist() == [[0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]


def test_a_layers_chunk_hides_what_a_one_shot_list_would_show():
    found = weigh(series([[0, 2]]), "oneshot", prefill=3, tokens=6, chunk=4)
    assert found.num.tolist() == [[1, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 1]]


def test_the_j_th_attended_token_moves_to_position_j():
    shown = np.array([[1, 0, 0, 1, 1, 0], [1, 0, 0, 0, 1, 1]], dtype=bool)
    moved = moves(shown, prefill=4, positions=np.arange(6))
    # Row 4 sees tokens 0, 3, 4 at places 0, 1, 2, its own place being 2: token 0 is 4 back and should be 2
    # back.
    assert moved.tolist() == [[2, 0, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0]]


# --- The file -------------------------------------------------------------------------------------


def test_the_file_states_how_its_lists_are_read(tmp_path):
    assert lists_of(write_kept(tmp_path / "a.h5", [[0, 1]], attributes={"oneshot": 1})).kind == "oneshot"
    assert lists_of(write_kept(tmp_path / "b.h5", [[0], [3], [4]])).kind == "before"
    assert lists_of(write_kept(tmp_path / "c.h5", [[0], [1]], name="attended")).kind == "attended"
    after = lists_of(write_kept(tmp_path / "d.h5", [[0], [3], [4]], attributes={"attends": 1}))
    assert after.kind == "attended"
    assert [after.series[0].list(i).tolist() for i in range(2)] == [[3], [4]]


def test_as_many_series_as_query_heads_that_choose_for_themselves(tmp_path):
    found = lists_of(write_kept(tmp_path / "a.h5", [[0], [1], [2]], attributes={"oneshot": 1}))
    assert [one.tokens.tolist() for one in found.series] == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("lists", "attributes", "message"),
    [
        ([[0], [3]], {}, "2 lists, 3 are needed: steps are missing"),
        ([[0], [4], [4]], {}, "list 1 holds token 4, which comes later"),
        ([[3]], {"oneshot": 1}, "list 0 holds token 3, which comes later"),
        ([[0], [1], [2]], {"partial": 1}, "use --select own"),
    ],
)
def test_lists_that_cannot_be_followed_are_refused(tmp_path, lists, attributes, message):
    with pytest.raises(KvreplayError, match=message):
        lists_of(write_kept(tmp_path / "kept.h5", lists, attributes=attributes))


def test_a_cell_that_is_not_in_the_file_is_named(tmp_path):
    write_kept(tmp_path / "kept.h5", [[0]])
    with (
        KeptFile(tmp_path / "kept.h5") as kept,
        pytest.raises(KvreplayError, match=r"/other: not in the file"),
    ):
        kept.lists("other", 3, 5)


def test_weights_of_another_length_are_refused(tmp_path):
    write_kept(tmp_path / "kept.h5", [[0, 1]], attributes={"oneshot": 1}, num=[1.0], den=[1.0])
    with pytest.raises(KvreplayError, match="num and den are not as long"):
        lists_of(tmp_path / "kept.h5")


# --- Attention ------------------------------------------------------------------------------------


def numbers(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float()


def rows_of(num, den=None, **more):
    num = torch.tensor(num, dtype=torch.float32)[None]
    return LayerRows(num, num if den is None else torch.tensor(den, dtype=torch.float32)[None], **more)


def test_the_estimator_is_the_sum_over_weighted_rows():
    q, k, v = numbers(2, 1, 4), numbers(1, 3, 4, seed=1), numbers(1, 3, 2, seed=2)
    num, den = [2.0, 0.0, 1.0], [1.0, 3.0, 1.0]
    out = attend(q, k, v, rows_of([num], [den]), LogitRule(0.5))
    for head in range(2):
        e = [float((0.5 * (q[head, 0] @ key)).exp()) for key in k[0]]
        top = sum(n * x * value for n, x, value in zip(num, e, v[0], strict=True))
        expected = top / sum(d * x for d, x in zip(den, e, strict=True))
        assert torch.allclose(out[head, 0], expected, atol=1e-6)


def test_equal_weights_are_a_bias_on_the_logits():
    q, k, v = numbers(2, 1, 4), numbers(1, 3, 4, seed=1), numbers(1, 3, 2, seed=2)
    rows = rows_of([[2.0, 0.0, 0.25]])
    assert rows.plain
    biased = (q @ k[0].T * 0.5 + bias_of(rows.num)[0]).softmax(-1) @ v[0]
    assert torch.allclose(attend(q, k, v, rows, LogitRule(0.5)), biased, atol=1e-6)


def test_a_sink_takes_mass_and_gives_no_value_and_a_soft_cap_bends_the_logits():
    q, k, v = numbers(1, 1, 4), numbers(1, 3, 4, seed=1), numbers(1, 3, 2, seed=2)
    rule = LogitRule(0.5, softcap=0.7, sinks=torch.tensor([0.3]))
    e = (0.7 * torch.tanh(q[0] @ k[0].T * 0.5 / 0.7)).exp()
    expected = e @ v[0] / (e.sum() + np.exp(0.3))
    assert torch.allclose(attend(q, k, v, rows_of([[1.0, 1, 1]]), rule)[0], expected, atol=1e-6)


@pytest.mark.parametrize("series", [2, 4])
def test_query_heads_of_a_group_read_their_own_kv_head(series):
    q, k, v = numbers(4, 2, 4), numbers(2, 3, 4, seed=1), numbers(2, 3, 2, seed=2)
    num = torch.ones(series, 2, 3)
    out = attend(q, k, v, LayerRows(num, num), LogitRule(1.0))
    for head in range(4):
        assert torch.allclose(out[head], (q[head] @ k[head // 2].T).softmax(-1) @ v[head // 2], atol=1e-6)


def test_a_turned_key_is_the_key_of_another_position():
    rotary = Rotary(torch.tensor([1.0, 0.25], dtype=torch.float64), "half_split")
    key = numbers(1, 4)
    expected = rotate(key.double().numpy(), 3 * rotary.inv_freq.numpy(), "half_split")
    assert np.allclose(turn(key, torch.tensor([3]), rotary), expected, atol=1e-6)
    q, v = numbers(1, 1, 4, seed=1), numbers(1, 2, 2, seed=2)
    k = numbers(1, 2, 4, seed=3)
    moved = torch.tensor([[[3, 0]]], dtype=torch.int32)
    out = attend(q, k, v, rows_of([[1.0, 1]], moved=moved), LogitRule(1.0), rotary)
    there = torch.stack(
        [
            torch.from_numpy(
                rotate(k[0, 0].double().numpy(), 3 * rotary.inv_freq.numpy(), "half_split")
            ).float(),
            k[0, 1],
        ]
    )
    assert torch.allclose(out[0], (q[0] @ there.T).softmax(-1) @ v[0], atol=1e-6)


# --- Row formats ----------------------------------------------------------------------------------


def test_each_state_of_a_token_is_a_column_of_the_rows_that_read_it_so():
    """Token 0 is coded; token 1's key is coded from row 1 and its value from row 2; 2 never; 3 is not
    held."""
    k, v = numbers(1, 4, 4, seed=1), numbers(1, 4, 2, seed=2)
    since = np.array([0, 1, NEVER, 0]), np.array([0, 2, NEVER, 0])
    back = ReadBack(k[0].numpy() + 9, v[0].numpy() + 5, *since)
    num = [[1.0, 2, 1, 0], [1, 2, 1, 0], [1, 2, 0, 0]]
    rows, keys, values = with_columns(rows_of(num), k, v, [back])
    assert rows.plain and keys.shape == (1, 5, 4) and values.shape == (1, 5, 2)
    q = numbers(2, 3, 4)
    coded = {0: (True, True), 1: (False, False), 2: (False, False)}, {1: (True, False)}, {1: (True, True)}
    out = attend(q, keys, values, rows, LogitRule(0.5))
    states = {}
    for row in range(3):
        states |= coded[row]
        own_k, own_v = k[0].clone(), v[0].clone()
        for token, (key, value) in states.items():
            own_k[token] += 9 * key
            own_v[token] += 5 * value
        one = rows_of([num[row]])
        expected = attend(q[:, row : row + 1], own_k[None], own_v[None], one, LogitRule(0.5))
        assert torch.allclose(out[:, row], expected[:, 0], atol=1e-5)


def test_series_with_fewer_columns_are_padded_with_unused_ones():
    k, v = numbers(2, 3, 4, seed=1), numbers(2, 3, 2, seed=2)
    num = torch.tensor([[[1.0, 1, 1]], [[0, 0, 1]]])
    back = [ReadBack(x.numpy(), y.numpy(), *(np.full(3, NEVER),) * 2) for x, y in zip(k, v, strict=True)]
    rows, keys, values = with_columns(LayerRows(num, num), k, v, back)
    assert rows.num.tolist() == [[[1, 1, 1]], [[1, 0, 0]]]
    q = numbers(2, 1, 4)
    out = attend(q, keys, values, rows, LogitRule(0.5))
    assert torch.allclose(out, attend(q, k, v, LayerRows(num, num), LogitRule(0.5)), atol=1e-6)


def test_formats_of_keys_and_values_are_named():
    assert names_in(format_of({})) == {"source"}
    assert names_in(format_of({"row_format": "int8"})) == {"int8"}
    apart = {"key": "fp8_e4m3", "value": {"name": "int4", "group": 32}}
    assert names_in(format_of({"row_format": apart})) == {"fp8_e4m3", "int4"}
    assert names_in(format_of({"row_format": {"value": "int8"}})) == {"source", "int8"}


def test_a_message_names_an_instance_and_cuts_the_formats_of_many_heads():
    facts = {"trace_id": "t", "model": "m", "prompt": "a", "method": "h2o", "budget_tokens": "64", "seed": ""}
    one, many = (
        Instance(**facts, given=given, params="{}", n_prefill=4, n_tokens=9) for given in ("{x}", "x" * 999)
    )
    assert one.name == "h2o {x} B=64"
    assert many.name == f"h2o {'x' * 400}… B=64"


# --- Losses ---------------------------------------------------------------------------------------


def test_losses_are_nats_a_token_by_distance_from_the_prompt():
    full = torch.zeros(40, 2)
    worse = full.clone()
    worse[20:, 0] = np.log(3.0)  # probabilities 3/4 and 1/4 from row 20 on
    losses = compare(full, worse, torch.ones(39, dtype=torch.int64))
    ranges = {(first, last): means for first, last, means in losses.ranges()}
    assert list(ranges) == [(0, 39), (0, 16), (16, 39)]
    whole = ranges[0, 39]
    assert whole["loss_full"] == pytest.approx(np.log(2))
    assert whole["loss_increase"] == pytest.approx(19 / 39 * np.log(2))
    assert whole["kl_mean"] == pytest.approx(19 / 39 * 0.5 * np.log(4 / 3))
    assert ranges[0, 16]["loss_increase"] == 0 and ranges[0, 16]["kl_mean"] == 0


def test_agreement_counts_equal_first_choices():
    full = torch.tensor([[2.0, 1, 0], [0, 1, 2], [1, 2, 0], [0, 0, 1]])
    other = torch.tensor([[9.0, 1, 0], [3, 1, 2], [1, 2, 0], [1, 0, 0]])
    _, _, means = compare(full, other, torch.zeros(3, dtype=torch.int64)).ranges()[0]
    assert means["top1_agreement"] == pytest.approx(2 / 3)
    assert means["n_rows"] == 3


def test_an_answer_is_exact_where_all_its_tokens_rank_first():
    logits = torch.tensor([[9.0, 0, 0], [0, 5, 1], [0, 1, 5], [0, 0, 0]])
    right = answer_of(logits, torch.tensor([2, 1, 2]), first=1)
    assert (right.exact, right.rank) == (True, 1)
    wrong = answer_of(logits, torch.tensor([2, 1, 0]), first=1)
    assert (wrong.exact, wrong.rank) == (False, 3)
    assert wrong.log_probability == pytest.approx(float(logits[1:3].log_softmax(-1)[[0, 1], [1, 0]].sum()))


def test_spans_name_neighbours_together():
    assert spans(range(30)) == "0-29"
    assert spans([0, 1, 2, 7, 9, 10]) == "0-2,7,9-10"
