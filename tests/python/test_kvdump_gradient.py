"""The recorded gradient of a log-likelihood at every attention output."""

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import kvrecord  # noqa: E402
from kvrecord import gradient, masked_runs  # noqa: E402
from kvrecord.attention import exact_attention  # noqa: E402
from kvrecord.blocks import LiveOutputs  # noqa: E402
from kvrecord.labels import draw, uniforms  # noqa: E402
from kvrecord.masked_runs import Mask  # noqa: E402
from kvtrace.dtypes import read_floats  # noqa: E402
from recording import refusal  # noqa: E402
from tiny_models import ARCHITECTURES, PROMPT, build, every_architecture, generate, logits  # noqa: E402

pytestmark = pytest.mark.torch

BFLOAT16 = 2.0**-8  # largest relative error of rounding to 8 bits
T = PROMPT.shape[1]
SAMPLES = 3


def recorded(model, path, run=logits, gradient=SAMPLES, **options):
    with kvrecord.record(model, path, gradient=gradient, **options):
        run(model)
    return path


def read(path, layer, name):
    with h5py.File(path) as trace:
        return read_floats(trace[f"prompts/0/layers/{layer:03d}/{name}"])


def gradients_of_whole_graph(model, ids, start, labels):
    """{layer: [losses, Hq, rows, Dv]}: gradients from one graph of the whole model, for labels [losses,
    rows]."""
    live = LiveOutputs(model)
    with live, torch.enable_grad():
        log_probs = model(input_ids=ids, use_cache=False).logits[0, start:-1].log_softmax(-1)
    losses = [log_probs.gather(1, of_rows[:, None]).sum() for of_rows in labels]
    found = [torch.autograd.grad(loss, list(live.seen.values()), retain_graph=True) for loss in losses]
    return {
        layer: torch.stack([g[i][0, start:-1].transpose(0, 1) for g in found]).numpy()
        for i, layer in enumerate(live.seen)
    }


def drawn(model, ids, start, samples=SAMPLES, seed=0):
    """[samples, rows] labels drawn in a recording of prompt "0"."""
    log_probs = logits(model, ids)[0, start:-1].log_softmax(-1)
    return draw(log_probs, uniforms(seed, "0", samples, range(start, ids.shape[1] - 1)))


@pytest.mark.parametrize("name", every_architecture())
def test_the_recorded_gradient_is_that_of_the_whole_models_graph(tmp_path, name):
    model = ARCHITECTURES[name].build()
    path = recorded(model, tmp_path / "t.h5")
    labels = torch.cat([drawn(model, PROMPT, T // 2), PROMPT[:, T // 2 + 1 :]])
    expected = gradients_of_whole_graph(model, PROMPT, T // 2, labels)
    assert sorted(expected) == sorted(ARCHITECTURES[name].layers)
    for layer, g in expected.items():
        stored = np.concatenate([read(path, layer, "g"), read(path, layer, "g_recorded")[None]])
        # Besides the rounding, both float32 sums have different orders.
        assert np.all(np.abs(stored - g) <= BFLOAT16 * np.abs(g) + 1e-5 * np.abs(g).max())


def test_the_trace_records_the_rows_and_how_well_each_was_predicted(tmp_path):
    model = build("Llama", num_key_value_heads=2)
    path = recorded(model, tmp_path / "t.h5", gradient_seed=5)
    log_probs = logits(model)[0, T // 2 : -1].log_softmax(-1)
    with h5py.File(path) as trace:
        assert (trace.attrs["g_samples"], trace.attrs["g_labels"], trace.attrs["g_seed"]) == (3, "model", 5)
        layer = trace["prompts/0/layers/001"]
        assert layer["g"].shape == (SAMPLES, 4, 11, 8) and layer["g_recorded"].shape == (4, 11, 8)
        assert layer["g_rows"][...].tolist() == list(range(12, 23))
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        assert np.allclose(trace["prompts/0/g_entropy"], entropy, rtol=1e-5)
        of_next = log_probs.gather(1, PROMPT[0, T // 2 + 1 :, None])[:, 0]
        assert np.allclose(trace["prompts/0/g_logprob"], of_next, rtol=1e-5)


def test_labels_are_where_the_cumulative_probability_passes_the_number():
    log_probs = torch.tensor([[0.5, 0.0, 0.25, 0.25]]).log()
    numbers = np.array([[0.0], [0.49], [0.51], [0.74], [0.76], [0.9999]])
    assert draw(log_probs, numbers)[:, 0].tolist() == [0, 0, 2, 2, 3, 3]
    never_first = torch.tensor([[0.0, 0.5, 0.5]]).log()
    assert draw(never_first, np.array([[0.0]])).tolist() == [[1]]


def test_a_number_depends_on_seed_prompt_sample_and_row_and_on_nothing_else():
    all_of_them = uniforms(1, "a", 4, range(10, 200))
    assert np.array_equal(uniforms(1, "a", 2, [50, 60]), all_of_them[:2][:, [40, 50]])
    others = (uniforms(2, "a", 4, range(10, 200)), uniforms(1, "b", 4, range(10, 200)))
    assert not any(np.isclose(all_of_them, other).any() for other in others)
    many = uniforms(0, "a", 8, range(4000))
    assert many.min() >= 0 and many.max() < 1 and len(np.unique(many)) == many.size
    # The mean of 32,000 uniform numbers has a standard deviation of 0.0016.
    assert abs(many.mean() - 0.5) < 0.008 and abs(np.corrcoef(many)[np.triu_indices(8, 1)]).max() < 0.08


def test_over_all_labels_weighted_by_their_probability_the_gradient_is_zero():
    """One scored row: the expected gradient under the model's prediction is zero."""
    model, ids = build("Llama", num_hidden_layers=1, num_key_value_heads=2), PROMPT[:, :6]
    probs = logits(model, ids)[0, 4].softmax(-1)
    blocks = gradient.Blocks(list(model.model.layers), all_rows=False)
    total, largest = 0, 0
    for label, prob in enumerate(probs):
        taken = torch.cat([ids[:, :5], torch.tensor([[label]])], dim=1)
        scored = gradient.Scored(4, 5, 1, "recorded", 0, "0")
        ((_, g),) = gradient.Gradients(model, blocks, taken, scored).of_layers([0])
        total, largest = total + float(prob) * g[0], max(largest, float(g.abs().max()))
    assert largest > 0.01 and float(total.abs().max()) < 1e-5 * largest


def test_a_later_beginning_gives_the_later_rows_of_the_same_gradient(tmp_path):
    model = build("Llama", num_key_value_heads=2)
    early = recorded(model, tmp_path / "e.h5", gradient_from=6)
    late = recorded(model, tmp_path / "l.h5", gradient_from=15)
    for layer in (0, 1):
        for name in ("g", "g_recorded"):
            one, other = read(early, layer, name)[..., 9:, :], read(late, layer, name)
            assert np.allclose(one, other, rtol=2 * BFLOAT16, atol=1e-5 * np.abs(one).max())


def test_more_samples_hold_the_fewer_ones(tmp_path):
    model = build("Llama", num_key_value_heads=2)
    few, many = (recorded(model, tmp_path / f"{n}.h5", gradient=n) for n in (2, 4))
    assert np.array_equal(read(few, 0, "g"), read(many, 0, "g")[:2])


def test_recorded_labels_have_one_sample_from_the_recorded_tokens(tmp_path):
    path = recorded(build("Llama"), tmp_path / "t.h5", gradient=1, gradient_labels="recorded")
    assert np.array_equal(read(path, 1, "g")[0], read(path, 1, "g_recorded"))


def test_strided_queries_have_the_gradients_of_their_rows(tmp_path):
    model = build("Llama", num_key_value_heads=2)
    whole = recorded(model, tmp_path / "w.h5", gradient_from=7)
    strided = recorded(model, tmp_path / "s.h5", gradient_from=7, query_stride=5)
    with h5py.File(strided) as trace:
        assert trace["prompts/0/layers/000/g_rows"][...].tolist() == [10, 15, 20]
        assert trace["prompts/0/g_entropy"].shape == (3,)
    assert np.array_equal(read(strided, 0, "g"), read(whole, 0, "g")[:, :, 3::5])


def test_a_generation_is_scored_after_its_prompt_and_equals_a_prefill(tmp_path):
    model = build("Llama", num_key_value_heads=2)
    with kvrecord.record(model, tmp_path / "g.h5", gradient=SAMPLES):
        tokens = generate(model)[:, :-1]
    path = recorded(model, tmp_path / "p.h5", lambda m: logits(m, tokens), gradient_from=T)
    with h5py.File(tmp_path / "g.h5") as trace:
        assert trace["prompts/0/layers/000/g_rows"][...].tolist() == list(range(T, tokens.shape[1] - 1))
        assert trace["prompts/0/tokens"].shape == (tokens.shape[1],)
    assert np.array_equal(read(tmp_path / "g.h5", 0, "g"), read(path, 0, "g"))


def test_positions_of_the_recording_are_those_of_its_gradient(tmp_path):
    model, where = build("GPT2"), torch.arange(T)[None] + 9
    at_nine = recorded(
        model, tmp_path / "t.h5", lambda m: m(input_ids=PROMPT, position_ids=where, use_cache=False)
    )
    assert not np.allclose(read(at_nine, 0, "g"), read(recorded(model, tmp_path / "z.h5"), 0, "g"))
    table = model.transformer.wpe.weight.data
    table[:T] = table[9 : T + 9].clone()
    assert np.array_equal(
        read(at_nine, 0, "g_recorded"), read(recorded(model, tmp_path / "m.h5"), 0, "g_recorded")
    )


def test_a_recording_inside_inference_mode_has_its_gradient(tmp_path):
    model = build("Llama")
    with torch.inference_mode():
        path = recorded(model, tmp_path / "i.h5")
    assert np.array_equal(read(path, 0, "g"), read(recorded(model, tmp_path / "t.h5"), 0, "g"))


def test_the_model_is_unchanged_after_a_recording(tmp_path):
    model = build("Llama")
    model.lm_head.weight.requires_grad_(False)
    asking = [p.requires_grad for p in model.parameters()]
    recorded(model, tmp_path / "t.h5")
    assert [p.requires_grad for p in model.parameters()] == asking
    assert all(p.grad is None for p in model.parameters())
    assert not any("forward" in vars(m) or m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_bfloat16_approximates_the_gradient_of_float32(tmp_path):
    exact = recorded(build("Llama", num_key_value_heads=2), tmp_path / "f.h5")
    model = build("Llama", num_key_value_heads=2).to(torch.bfloat16)
    rough, g = (read(path, 0, "g_recorded") for path in (recorded(model, tmp_path / "b.h5"), exact))
    assert np.linalg.norm(rough - g) < 0.1 * np.linalg.norm(g)


class Remembers(torch.nn.Module):
    """A block that also passes its predecessor's update on, bypassing the residual stream."""

    memory = None

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, hidden_states, **kwargs):
        given = hidden_states
        out = self.block(hidden_states, **kwargs)
        more = 0 if Remembers.memory is None else Remembers.memory
        Remembers.memory = (out - given) if Remembers.memory is None else None
        return out + more


class Untracked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        raise RuntimeError("no derivative of packed weights\nat all")


def remember(model):
    model.model.layers = torch.nn.ModuleList(map(Remembers, model.model.layers))


def lose(model):
    model.model.norm.register_forward_hook(lambda module, args, out: Untracked.apply(out))


def scatter(model):
    first, second = model.model.layers
    model.model.layers = Sequence(first, second)


class Sequence(torch.nn.Module):
    """Blocks that are not in a list."""

    def __init__(self, *blocks):
        super().__init__()
        self.first, self.second = blocks

    def __iter__(self):
        return iter((self.first, self.second))

    def __getitem__(self, which):
        return [self.first, self.second][which]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (remember, "LlamaForCausalLM passes on more than the outputs of its blocks"),
        (lose, "LlamaForCausalLM: no gradient: no derivative of packed weights: leave"),
        (scatter, "LlamaForCausalLM does not keep its blocks in a list that the recorder finds"),
    ],
)
def test_a_model_without_a_usable_gradient_is_refused(tmp_path, change, says):
    model = build("Llama", num_key_value_heads=2)
    change(model)
    message = refusal(model, tmp_path, gradient=1)
    assert says in message and message.endswith("leave --with-gradient out")


def test_a_prompt_without_a_row_that_predicts_is_refused(tmp_path):
    says = refusal(build("Llama"), tmp_path, gradient=1, gradient_from=T - 1)
    assert (
        says
        == f"prompt 0: no row from {T - 1} on predicts one of its {T} tokens: --gradient-from must be "
        + ("earlier, or the prompt longer")
    )


def test_a_gradient_that_overflows_is_refused(tmp_path):
    model = build("Llama", num_key_value_heads=2)
    model.model.norm.register_forward_hook(lambda module, args, out: Overflows.apply(out))
    says = refusal(model, tmp_path, gradient=1)
    assert "holds NaN or infinity as bf16" in says and "load it in bfloat16 or float32" in says


class Overflows(torch.autograd.Function):
    """Overflows like a large gradient in float16, but only for sequences longer than the probe."""

    @staticmethod
    def forward(ctx, x):
        ctx.long = x.shape[1] > gradient.PROBE_ROWS or x.shape[1] == T - T // 2 - 1
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * float("inf") if ctx.long else g


def test_a_mask_that_hides_nothing_costs_nothing_and_one_that_hides_more_costs_more(tmp_path, monkeypatch):
    monkeypatch.setattr(masked_runs, "MASKS", (Mask(1.0, 0, 0), Mask(0.6, 1, 0), Mask(0.0, 0, 0)))
    with h5py.File(recorded(build("Llama", num_key_value_heads=2), tmp_path / "t.h5")) as trace:
        group = trace["prompts/0"]
        kl, a = group["masked_kl"][()], group["masked_a"][()]
        rows, distances = group["masked_kl_rows"][()], group["masked_distance2"][()]
    assert kl[0] == pytest.approx(0, abs=1e-7)
    assert np.abs(a[0]).max() < 1e-5
    assert 0 < kl[1] < kl[2]
    assert rows.mean(axis=1) == pytest.approx(kl, rel=1e-5, abs=1e-7)
    assert distances.shape == rows.shape
    assert distances[0].max() < 1e-10 and 0 < distances[1].mean() < distances[2].mean()


def test_products_of_a_mask_are_those_of_attention_over_visible_tokens(tmp_path, monkeypatch):
    monkeypatch.setattr(masked_runs, "MASKS", (Mask(0.0, 0, 0),))  # rows see only tokens after the prompt
    model, start = build("Llama", num_key_value_heads=2), T // 2
    path = recorded(model, tmp_path / "t.h5")
    expected = 0
    for layer in range(model.config.num_hidden_layers):
        q, k, v, g = (read(path, layer, name) for name in ("q", "k", "v", "g"))
        scaling, rows = q.shape[-1] ** -0.5, np.arange(start, T - 1)
        shown = exact_attention(q[:, rows], k[:, start:], v[:, start:], rows - start, scaling)
        errors = shown - exact_attention(q[:, rows], k, v, rows, scaling)
        expected = expected + np.einsum("shtd,htd->ts", g, errors)
    with h5py.File(path) as trace:
        found = trace["prompts/0/masked_a"][0]
    assert np.abs(found - expected).max() < 4 * BFLOAT16 * np.abs(expected).max()


def test_a_shared_mask_hides_the_same_tokens_from_every_head_and_layer():
    scored = gradient.Scored(8, 11, 1, "model", 0, "p")
    mask = Mask(0.5, 1, 2, shared=True)
    first, other = (mask.shown(scored, layer, 4, 12) for layer in (0, 3))
    assert bool((first == first[0]).all()) and bool((first == other).all())
    apart = Mask(0.5, 1, 2).shown(scored, 0, 4, 12)
    assert not bool((apart == apart[0]).all())


def test_only_scored_rows_run_again_unless_rows_interact_outside_attention():
    assert not gradient.check_chain(build("Llama", num_key_value_heads=2), [0, 1]).all_rows
    model = ARCHITECTURES["qwen3-next, one attention layer of four"].build()
    assert gradient.check_chain(model, [3]).all_rows


def test_a_larger_share_shows_all_tokens_of_a_smaller_one_and_always_sinks_and_recents():
    scored = gradient.Scored(8, 11, 1, "model", 0, "p")
    few, many = (Mask(share, 1, 2).shown(scored, 3, 4, 12) for share in (0.2, 0.7))
    assert bool((many | ~few).all())
    assert bool(few[:, [0, 6, 7, 8, 9, 10, 11]].all())
    assert 0 < int(few.sum()) < int(many.sum()) < few.numel()
