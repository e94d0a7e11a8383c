"""Presses as methods, with presses that are written here as kvpress writes its own.

tests/kvpress.sh compares the real ones.
"""

from dataclasses import dataclass, field

import kvreplay as kv
import numpy as np
import pytest
from kvbase.errors import ConfigError, KvreplayWarning

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvreplay.presses import press_method  # noqa: E402
from tiny_models import build  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::kvbase.errors.KvreplayWarning")]

IDS = torch.tensor([[(7 * i * i + 3 * i + 5) % 61 + 3 for i in range(60)]])


def of_kvpress(kind):
    kind.__module__ = "kvpress.presses"
    return kind


@of_kvpress
@dataclass
class BasePress:
    def post_init_from_model(self, model):
        pass


@of_kvpress
@dataclass
class ScorerPress(BasePress):
    compression_ratio: float = 0.0


@of_kvpress
@dataclass
class KnormPress(ScorerPress):
    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return -keys.norm(dim=-1)


@of_kvpress
@dataclass
class FirstHiddenPress(ScorerPress):
    """Reads hidden states, rotary tables and the model's own projection."""

    scale: int = 1
    sign: float = 1.0

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        cos, sin = kwargs["position_embeddings"]
        assert cos.shape[:2] == sin.shape[:2] == hidden_states.shape[:2]
        assert module.rotary_emb is not None
        queries = module.q_proj(hidden_states)[..., 0] * self.sign * self.scale
        return queries[:, None].expand(*keys.shape[:3])


@of_kvpress
@dataclass
class ObservedPress(ScorerPress):
    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        assert attentions is not None, "eager attention only"
        return attentions.sum(2).unflatten(1, (keys.shape[1], -1)).mean(2)


@of_kvpress
@dataclass
class RatioPress(ScorerPress):
    """Prefers first tokens at small ratios, and last ones at large ratios."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        order = torch.arange(keys.shape[2]).float()
        return (order if self.compression_ratio > 0.5 else -order).expand(keys.shape[:3])


@of_kvpress
@dataclass
class WrappingPress(ScorerPress):
    press: ScorerPress = field(default_factory=RatioPress)

    @property
    def compression_ratio(self):
        return self.press.compression_ratio

    @compression_ratio.setter
    def compression_ratio(self, value):
        if hasattr(self, "press"):
            self.press.compression_ratio = value

    def score(self, *inputs):
        return self.press.score(*inputs)


@of_kvpress
@dataclass
class RandomPress(ScorerPress):
    seed: int | None = None

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return torch.rand(keys.shape[:3])


@of_kvpress
@dataclass
class DividingPress(BasePress):
    """Divides a budget: it has no scores."""


@of_kvpress
@dataclass
class TrainedPress(ScorerPress):
    def post_init_from_model(self, model):
        raise RuntimeError("no weights for this model")


@pytest.fixture(scope="module")
def llama():
    return build("Llama", num_key_value_heads=2)


def live(model, methods, budgets=(16,)):
    with torch.no_grad(), kv.live(model, methods, list(budgets), save=["kept"]) as running:
        model(IDS)
    return running.run


def kept(run, method, budget=16, **place):
    return [
        set(run.kept(method, budget, layer=layer, head=head, **place)[0])
        for layer in (0, 1)
        for head in (0, 1)
    ]


def test_a_press_keeps_what_the_same_method_keeps(llama):
    run = live(llama, [KnormPress(), "knorm"])
    assert kept(run, "knorm_press") == kept(run, "knorm")
    assert run.row("knorm_press")["peak_kept_tokens"] == run.row("knorm")["peak_kept_tokens"]


def test_presses_get_hidden_states_tables_and_the_module(llama):
    before = [sorted(vars(block.self_attn)) for block in llama.model.layers]
    run = live(llama, [FirstHiddenPress(), {"name": FirstHiddenPress(), "sign": -1.0}])
    assert not len(run.failed)
    assert kept(run, "first_hidden_press") != kept(run, "first_hidden_press", params={"sign": -1.0})
    assert before == [sorted(vars(block.self_attn)) for block in llama.model.layers]
    assert not any(hasattr(block.self_attn, "rotary_emb") for block in llama.model.layers)


def test_numbers_of_an_instance_are_its_parameters(llama):
    run = live(llama, [FirstHiddenPress(scale=3), {"name": FirstHiddenPress(), "scale": [1, 2]}])
    assert sorted(run.table["given"].unique()) == ['{"scale":2}', '{"scale":3}', "{}"]


def test_probabilities_are_computed_where_a_press_asks_for_them(llama):
    run = live(llama, [ObservedPress(), {"name": "h2o", "phase": "oneshot", "recent": 0}])
    assert not len(run.failed)
    size = run.row()["n_prefill"]
    eager = build("Llama", num_key_value_heads=2)
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        seen = eager(IDS[:, :size], output_attentions=True).attentions
    for layer, p in enumerate(seen):
        best = p[0].sum(1).unflatten(0, (2, -1)).mean(1).topk(16).indices
        assert [set(run.kept("observed_press", layer=layer, head=h)[0]) for h in (0, 1)] == [
            set(one.tolist()) for one in best
        ]


@pytest.mark.parametrize("press", [RatioPress(), WrappingPress()], ids=["alone", "inside another"])
def test_budgets_replace_the_ratio(llama, press):
    run = live(llama, [press], [10, 40])
    size, name = run.row()["n_prefill"], press_method(press).facts["name"]
    assert kept(run, name, 10)[0] == set(range(size - 10, size))
    assert kept(run, name, 40)[0] == set(range(40))


def test_random_presses_repeat_and_leave_the_callers_numbers_alone(llama):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, other = (live(llama, [RandomPress(seed=1)]) for _ in range(2))
    assert torch.equal(torch.rand(3), expected)
    assert kept(one, "random_press") == kept(other, "random_press")


def test_presses_score_arrays_where_they_need_no_model(llama):
    draw = np.random.default_rng(0).standard_normal
    q, k, v = (draw((heads, 50, 8), dtype=np.float32) for heads in (4, 2, 2))
    run = kv.replay(q, k, v, prefill=40, methods=[KnormPress(), FirstHiddenPress(), "knorm"], budgets=[16])
    assert set(run.kept("knorm_press")[0]) == set(run.kept("knorm")[0])
    assert run.failed["error"].str.contains("kvreplay.live").all()
    assert run.failed["method"].unique().tolist() == ["first_hidden_press"]


@pytest.mark.parametrize(
    ("press", "why"),
    [(DividingPress(), "does not score tokens"), (RandomPress(), "give it a seed")],
    ids=["no scores", "no seed"],
)
def test_presses_that_cannot_be_methods_say_why(llama, press, why):
    with pytest.raises(ConfigError, match=why):
        kv.live(llama, [press], [16])


def test_a_trained_press_without_weights_is_refused_on_entering(llama):
    with torch.no_grad():
        before = llama(IDS).logits
    with (
        pytest.raises(ConfigError, match="no weights for this model"),
        kv.live(llama, [TrainedPress()], [16]),
    ):
        raise AssertionError("the block was entered")
    with torch.no_grad():
        assert torch.equal(before, llama(IDS).logits)


def test_warnings_of_a_run_name_the_press(llama):
    with pytest.warns(KvreplayWarning, match="of broken_press failed: ZeroDivisionError"):
        live(llama, [BrokenPress()])


@of_kvpress
@dataclass
class BrokenPress(ScorerPress):
    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return 1 / 0
