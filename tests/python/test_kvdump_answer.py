"""The gradient of a recorded answer, and what masks of the prompt do to the answer."""

import json

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import kvrecord  # noqa: E402
from kvrecord import gradient, masked_runs  # noqa: E402
from kvrecord.answer import RECENT, SINKS, needle_masks  # noqa: E402
from kvrecord.masked_runs import Mask  # noqa: E402
from kvrecord.verify_gradient import Moved, verify_gradient  # noqa: E402
from kvtrace.dtypes import read_floats  # noqa: E402
from tiny_models import PROMPT, build, logits  # noqa: E402

pytestmark = pytest.mark.torch

T = PROMPT.shape[1]
START, ANSWER = 10, 18  # 10 tokens of a prompt, 8 of a question, 6 of an answer
NEEDLE = np.array([[4, 6], [7, 8]], dtype=np.int32)
WHERE = {"n_prompt": START, "n_generated": T - START, "answer_from": ANSWER}


def recorded(model, path, where=WHERE, **options):
    recorder = kvrecord.record(model, path, **{"gradient": 2, **options})
    with recorder, recorder.prompt("0", where):
        logits(model)
    return path


def read(path, layer, name):
    with h5py.File(path) as trace:
        return read_floats(trace[f"prompts/0/layers/{layer:03d}/{name}"])


def model_of_two_layers():
    return build("Llama", num_key_value_heads=2)


def answer_probs(model, moved=None):
    """float64 [6]: probability of each token of the answer, with {layer: [Hq, rows, Dv]} added to the
    outputs of the scored rows."""
    with Moved(model, np.arange(START, T - 1), moved or {}):
        rows = model(input_ids=PROMPT, use_cache=False).logits[0, ANSWER - 1 : -1].double().softmax(-1)
    return rows.gather(1, PROMPT[0, ANSWER:, None])[:, 0].detach().numpy()


def answer_log_prob(model):
    return np.log(answer_probs(model)).sum()


def answer_log_odds(model, moved):
    p = answer_probs(model, moved)
    return (np.log(p) - np.log1p(-p)).sum()


@pytest.mark.parametrize("labels", ["model", "recorded"])
def test_the_gradient_of_an_answer_is_how_its_log_odds_change_with_an_output_of_the_question(
    tmp_path, labels
):
    model = model_of_two_layers()
    options = {"gradient": 1} if labels == "recorded" else {}
    path = recorded(model, tmp_path / "t.h5", gradient_labels=labels, **options)
    for layer, head, row in ((0, 1, 2), (1, 3, 8)):  # rows 12 (of the question) and 18 (of the answer)
        g, step = read(path, layer, "g_answer"), 1e-2
        for channel in (0, 5):
            moved = np.zeros_like(g)
            moved[head, row, channel] = step
            change = answer_log_odds(model, {layer: moved}) - answer_log_odds(model, {layer: -moved})
            assert g[head, row, channel] == pytest.approx(change / (2 * step), rel=0.02, abs=1e-5)
            assert abs(change) > 1e-5


def test_log_odds_of_the_last_layer_change_by_that_of_the_log_probability_over_the_rest(tmp_path):
    """An output of the last layer affects its own row alone: d log p / (1 - p) is d log-odds."""
    model = model_of_two_layers()
    path = recorded(model, tmp_path / "t.h5")
    whole, answer = read(path, 1, "g_recorded"), read(path, 1, "g_answer")
    first = ANSWER - 1 - START
    assert not answer[:, :first].any() and np.abs(read(path, 0, "g_answer")[:, :first]).max() > 0
    expected = whole[:, first:] / (1 - answer_probs(model))[:, None]
    assert np.abs(answer[:, first:] - expected).max() < 2 * 2**-8 * np.abs(expected).max()


@pytest.mark.parametrize("certainty", [20.0, 60.0])
def test_a_model_that_is_certain_of_a_token_has_a_gradient_of_its_log_odds(certainty):
    """Two tokens of logits c and 0: the log-odds of the first are c, whatever c is."""
    stream = torch.tensor([[[1.0, 0.0]]], requires_grad=True)
    head = gradient.Head.__new__(gradient.Head)
    head.given, head.linear = stream, torch.nn.Linear(2, 2, bias=False)
    head.linear.weight.data = torch.tensor([[certainty, 0.0], [0.0, 0.0]])
    before = stream * 1
    head.seen = before, None
    logits = head.linear(before)[0]
    label = torch.tensor([0])
    for graph in (None, logits.log_softmax(-1)):
        head.graph, head.log_probs = graph, logits.detach().log_softmax(-1)
        assert head.odds_gradient(label).tolist() == [[certainty, 0.0]]


def test_the_trace_says_how_probable_the_answer_is_and_whether_the_model_would_say_it(tmp_path):
    model = model_of_two_layers()
    path = recorded(model, tmp_path / "t.h5")
    with h5py.File(path) as trace:
        told = trace["prompts/0"].attrs
        assert told["answer_log_prob"] == pytest.approx(answer_log_prob(model), rel=1e-5)
        assert told["answer_exact"] == 0
    # Tokens that the model says after the first 18 are an answer that it would say.
    ids = PROMPT[:, :ANSWER]
    for _ in range(T - ANSWER):
        ids = torch.cat([ids, model(input_ids=ids).logits[:, -1:].argmax(-1)], 1)
    recorder = kvrecord.record(model, tmp_path / "said.h5", gradient=1)
    with recorder, recorder.prompt("0", WHERE):
        logits(model, ids)
    with h5py.File(tmp_path / "said.h5") as trace:
        assert trace["prompts/0"].attrs["answer_exact"] == 1


def test_drawn_samples_and_masks_do_not_depend_on_whether_there_is_an_answer(tmp_path):
    model = model_of_two_layers()
    where = {name: WHERE[name] for name in ("n_prompt", "n_generated")}
    with_answer = recorded(model, tmp_path / "a.h5", {**WHERE, "needle_tokens": NEEDLE})
    without = recorded(model, tmp_path / "b.h5", where)
    for name in ("g", "g_recorded"):
        assert np.array_equal(read(with_answer, 1, name), read(without, 1, name))
    with h5py.File(with_answer) as one, h5py.File(without) as other:
        one, other = one["prompts/0"], other["prompts/0"]
        for name in ("masked_kl", "masked_kl_rows", "masked_a", "masked_distance2"):
            assert np.array_equal(one[name], other[name])
        assert one.attrs["masked_runs"] == other.attrs["masked_runs"]
        assert not any(name.startswith("answer") for name in (*other, *other.attrs))
        assert "g_answer" not in other["layers/000"]


def masks_of(path):
    with h5py.File(path) as trace:
        group = trace["prompts/0"]
        told = json.loads(group.attrs["answer_masked_runs"])
        return [group[f"answer_masked_{name}"][()] for name in ("logprob", "a", "exact")] + [told]


def test_a_mask_changes_the_answer_by_what_the_model_says_without_those_tokens(tmp_path, monkeypatch):
    monkeypatch.setattr(masked_runs, "MASKS", (Mask(1.0, 0, 0), Mask(0.0, 0, 0)))
    model = model_of_two_layers()
    change, a, exact, told = masks_of(recorded(model, tmp_path / "t.h5"))
    assert len(told) == len(change) == len(a) == len(exact) == 2
    assert change[0] == pytest.approx(0, abs=1e-4) and a[0] == pytest.approx(0, abs=1e-4)
    seen = torch.ones(T, T, dtype=torch.bool).tril()
    seen[START:, :START] = False
    masked = model(input_ids=PROMPT, attention_mask=seen[None, None], use_cache=False).logits
    rows = masked[0, ANSWER - 1 : -1].double().log_softmax(-1)
    expected = rows.gather(1, PROMPT[0, ANSWER:, None]).sum().item() - answer_log_prob(model)
    assert abs(expected) > 1e-3
    assert change[1] == pytest.approx(expected, rel=1e-3)


def test_the_first_order_of_a_mask_is_the_product_of_the_gradient_with_its_errors(tmp_path, monkeypatch):
    monkeypatch.setattr(masked_runs, "MASKS", (Mask(0.0, 0, 0),))
    model = model_of_two_layers()
    path = recorded(model, tmp_path / "t.h5")
    expected, rows = 0.0, np.arange(START, T - 1)
    for layer in (0, 1):
        q, k, v, g = (read(path, layer, name) for name in ("q", "k", "v", "g_answer"))
        for h in range(len(q)):
            keys, values = k[h // 2], v[h // 2]
            for at, t in enumerate(rows):
                weights = np.exp((keys[: t + 1] @ q[h, t]) * q.shape[-1] ** -0.5)
                out = weights @ values[: t + 1] / weights.sum()
                shown = weights[START:] @ values[START : t + 1] / weights[START:].sum()
                expected += g[h, at] @ (shown - out)
    _, (found,), _, _ = masks_of(path)
    assert found == pytest.approx(expected, rel=0.02, abs=1e-4)


def scored_with(needles, start=100):
    return gradient.Scored(start, start + 20, 1, "model", 3, "p", start + 10, needles)


def test_a_needle_is_hidden_alone_and_as_many_other_tokens_are_hidden_by_another_mask():
    needle, others = needle_masks(scored_with(((40, 43), (42, 45))))
    assert needle.tokens == (40, 41, 42, 43, 44) and len(others.tokens) == 5
    shown = needle.shown(None, 7, 2, 120)
    assert shown.shape == (2, 120)
    assert np.flatnonzero(~shown[0].numpy()).tolist() == np.flatnonzero(~shown[1].numpy()).tolist()
    assert np.flatnonzero(~shown[0].numpy()).tolist() == [40, 41, 42, 43, 44]
    assert not set(others.tokens) & set(needle.tokens)
    assert min(others.tokens) >= SINKS and max(others.tokens) < 100 - RECENT
    assert needle_masks(scored_with(((40, 43), (42, 45))))[1] == others
    assert len(needle_masks(scored_with(((4, 60),)))[1].tokens) == 8  # tokens 60 to 67 are left
    assert needle_masks(scored_with(())) == ()


def test_needles_add_two_masks_of_the_answer_alone(tmp_path):
    model = model_of_two_layers()
    path = recorded(model, tmp_path / "t.h5", {**WHERE, "needle_tokens": NEEDLE})
    change, a, exact, told = masks_of(path)
    assert len(change) == len(a) == len(exact) == 9
    assert told[7:] == [{"hides": "needle", "tokens": 3}, {"hides": "others", "tokens": 0}]
    assert change[7] != 0 and change[8] == pytest.approx(
        0, abs=1e-4
    )  # 10 tokens leave none to the other mask
    with h5py.File(path) as trace:
        assert trace["prompts/0/masked_kl"].shape == (7,)


def test_recorded_labels_have_the_answers_masks_and_no_other(tmp_path):
    path = recorded(model_of_two_layers(), tmp_path / "t.h5", gradient=1, gradient_labels="recorded")
    assert len(masks_of(path)[0]) == 7
    assert np.array_equal(read(path, 0, "g")[0], read(path, 0, "g_recorded"))
    with h5py.File(path) as trace:
        assert "masked_kl" not in trace["prompts/0"]


def test_an_answer_right_behind_the_prompt_has_no_gradient_and_the_recorder_says_so(tmp_path):
    where = {**WHERE, "answer_from": START}
    said = []
    recorder = kvrecord.record(model_of_two_layers(), tmp_path / "t.h5", gradient=1)
    recorder.warn = said.append
    with recorder, recorder.prompt("0", where):
        logits(recorder.model)
    with h5py.File(tmp_path / "t.h5") as trace:
        assert "g_answer" not in trace["prompts/0/layers/000"]
        assert "answer_log_prob" not in trace["prompts/0"].attrs
    assert len(said) == 1 and "no scored row predicts the first token of its answer" in said[0]


def test_verify_compares_the_answers_gradient_with_finite_differences(tmp_path):
    model = model_of_two_layers()
    path = recorded(model, tmp_path / "t.h5")
    (check,) = (check for check in verify_gradient(model, path) if "the answer" in str(check))
    assert check.ok
    with h5py.File(path, "a") as trace:
        for layer in ("000", "001"):
            data = trace[f"prompts/0/layers/{layer}"]
            stored = data["g_recorded"][()]
            data["g_answer"][...] = stored
    (check,) = (check for check in verify_gradient(model, path) if "the answer" in str(check))
    assert not check.ok
