"""Live replays: equal to replays of what they save, and harmless to the model and its caller."""

import threading
import time

import kvreplay as kv
import numpy as np
import pytest
from kvbase.errors import ConfigError, KvreplayError, KvreplayWarning

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from live_runs import CALLS, compare, differences, equal_arrays, generation, padded_batch, prompt_alone  # noqa: E402
from tiny_models import ARCHITECTURES, LATENT_SIZES, build  # noqa: E402

pytestmark = pytest.mark.torch

IDS = torch.tensor([[(7 * i * i + 3 * i + 5) % 61 + 3 for i in range(90)]])


class Oldest(kv.Policy):
    """A policy in Python."""

    def evict(self, tokens):
        return tokens[: len(tokens) - self.budget]


@kv.scorer(window=8)
def votes(prompt):
    return prompt.attention(last=8).sum(axis=(0, 1))


FEW = ["snapkv", {"name": "h2o", "row_format": "int8"}, "uniform", "streaming_llm", Oldest, votes]


@pytest.fixture(scope="module")
def llama():
    return build("Llama", num_key_value_heads=2, num_hidden_layers=3)


@pytest.fixture
def quiet():
    """Remarks on tiny runs are not looked at."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KvreplayWarning)
        yield


def live_run(model, methods, budgets, run, **options):
    with torch.no_grad(), kv.live(model, methods, budgets, **options) as live:
        run(model, live)
    return live


def one_call(model, live):
    model(IDS)


def short_generation(model, ids, live):
    generation(model, ids, live, 8)


# ---- equal to a replay of the saved trace


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "calls", [*([call] for call in CALLS), CALLS], ids=[*(call.__name__ for call in CALLS), "all"]
)
def test_a_live_run_equals_the_replay_of_the_trace_that_it_saves(llama, calls, tmp_path):
    live, replayed = compare(llama, IDS, calls, FEW, [24, "40%"], tmp_path, seeds=2, save=["kept"])
    assert len(live) > 0 and not len(live.failed)
    assert differences(live, replayed) == []
    assert equal_arrays(live, replayed)


@pytest.mark.usefixtures("quiet")
def test_padding_on_the_right_is_left_out(llama):
    def run(model, live):
        mask = torch.ones(2, 90, dtype=torch.long)
        mask[1, 50:] = 0
        model(torch.cat([IDS, IDS]), attention_mask=mask)
        model(IDS[:, :50])

    table = live_run(llama, ["h2o"], [24], run, prefill=40).run.table
    assert table.groupby("prompt")["n_tokens"].first().tolist() == [90, 50, 50]
    batched, alone = (table[table["prompt"] == prompt] for prompt in ("1", "2"))
    assert np.allclose(batched["rel_err_out_mean"], alone["rel_err_out_mean"], rtol=1e-4)


def test_the_comparison_of_these_tests_finds_a_difference(llama, tmp_path):
    live, replayed = compare(llama, IDS, [prompt_alone], ["h2o"], [24], tmp_path)
    replayed.cells[0].row["rel_err_out_mean"] += 1e-7
    assert differences(live, replayed) == ["rel_err_out_mean"]


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_is_replayed_as_its_trace(name, tmp_path):
    model, calls = ARCHITECTURES[name].build(), [prompt_alone, short_generation]
    live, replayed = compare(model, IDS[:, :40], calls, ["h2o", "snapkv", "window"], [36], tmp_path)
    assert differences(live, replayed) == []


@pytest.mark.usefixtures("quiet")
def test_latent_attention_is_replayed_as_its_trace(tmp_path):
    model, calls = build("DeepseekV3", **LATENT_SIZES), [prompt_alone, short_generation]
    live, replayed = compare(model, IDS, calls, ["h2o", "snapkv", "window"], [36], tmp_path)
    assert not len(live.failed)
    assert differences(live, replayed) == []


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A tokenizer, for methods that repeat the prompt."""
    from tiny_model_folder import saved
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(saved(tmp_path_factory.mktemp("words")))


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "method",
    [
        "kvzip",
        "kvzip_plus",
        "kvcompose",
        {"name": "defensivekv", "window": 8},
        "fastgen",
        {"name": "laq", "generated": True},
        {"name": "snapkv", "wrapper": "critical"},
        {"name": "snapkv", "allocator": "cake"},
        {"name": "snapkv", "allocator": {"name": "lu_kv", "calibration": "others"}},
        {"name": "triattention", "level": "union", "buffer": 8, "buffer_in_budget": True},
    ],
    ids=str,
)
def test_what_methods_need_is_taken_from_the_model(llama, words, method, tmp_path):
    calls = [prompt_alone, padded_batch]
    live, replayed = compare(llama, IDS, calls, [method, "exact"], [40], tmp_path, words)
    assert not len(live.failed)
    assert differences(live, replayed) == []


@pytest.mark.usefixtures("quiet")
def test_a_gradient_is_taken_from_the_model(llama, tmp_path):
    live, replayed = compare(llama, IDS, [prompt_alone], ["h2o"], [40], tmp_path, save=["projections"])
    assert differences(live, replayed) == []
    mine, theirs = live.predicted(), replayed.predicted()
    assert mine["kl"].equals(theirs["kl"]) and mine["kl"].iloc[0] > 0


# ---- the model and its caller


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.usefixtures("quiet")
def test_the_model_is_unchanged(llama):
    before, hooks = (
        logits(llama),
        [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in llama.modules()],
    )
    names = sorted(vars(llama))
    with torch.no_grad(), kv.live(llama, ["h2o"], [24]):
        inside = llama(IDS).logits
        llama.generate(IDS, max_new_tokens=4, do_sample=False)
    assert torch.equal(before, inside) and torch.equal(before, logits(llama))
    assert hooks == [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in llama.modules()]
    assert names == sorted(vars(llama))


@kv.scorer
def broken(prompt):
    raise RuntimeError("this scorer is broken")


@pytest.mark.usefixtures("quiet")
def test_a_method_that_raises_fails_its_cells_alone(llama):
    before = logits(llama)
    live = live_run(llama, [broken, "h2o"], [24], one_call)
    status = live.run.table.groupby("method")["status"].unique()
    assert status["broken"].tolist() == ["failed"] and status["h2o"].tolist() == ["ok"]
    assert torch.equal(before, logits(llama))


class Interrupted(kv.Policy):
    """Sends the interrupt that a user sends by Ctrl-C, from the engine's thread, once a second."""

    again = 0.0

    def evict(self, tokens):
        import _thread

        if time.monotonic() > Interrupted.again:
            Interrupted.again = time.monotonic() + 1
            _thread.interrupt_main()
        return tokens[: len(tokens) - self.budget]


@pytest.mark.usefixtures("quiet")
def test_ctrl_c_leaves_the_model_usable(llama, tmp_path):
    before = logits(llama)
    live = kv.live(llama, [Interrupted], [24], save_trace=tmp_path / "live.h5")
    end = time.monotonic() + 120  # a lost interrupt fails the test
    with pytest.raises(KeyboardInterrupt), torch.no_grad(), live:
        while time.monotonic() < end:
            llama(IDS)
    assert torch.equal(before, logits(llama))
    assert list(tmp_path.iterdir()) == []
    assert not any(thread.name.startswith("kvreplay") for thread in threading.enumerate())
    assert len(live_run(llama, ["h2o"], [24], one_call).run) == 6


@pytest.mark.usefixtures("quiet")
def test_an_exception_of_the_caller_leaves_the_model_usable(llama):
    before = logits(llama)
    with pytest.raises(ZeroDivisionError), kv.live(llama, ["h2o"], [24]):
        logits(llama)
        1 / 0  # noqa: B018
    assert torch.equal(before, logits(llama))


def test_a_call_that_raises_leaves_its_prompt_out(llama):
    def run(model, live):
        with pytest.raises(IndexError):
            model(torch.full((1, 40), 10_000))
        model(IDS)

    with pytest.warns(KvreplayWarning, match="prompt 0 was not replayed: its call ended with an exception"):
        live = live_run(llama, ["h2o"], [24], run)
    assert live.run.table["prompt"].unique().tolist() == ["1"]


# ---- prompts


@pytest.mark.usefixtures("quiet")
def test_prompts_are_numbered_or_named(llama, tmp_path):
    def run(model, live):
        model(IDS)
        padded_batch(model, IDS, live)
        live.name_next("named")
        model(IDS)
        with live.prompt("block"):
            out = model(IDS[:, :60], use_cache=True)
            for at in range(60, 70):
                out = model(IDS[:, at : at + 1], past_key_values=out.past_key_values)

    path = tmp_path / "live.h5"
    live = live_run(llama, ["h2o"], [24], run, save_trace=path)
    assert live.run.table["prompt"].unique().tolist() == ["0", "1", "2", "3", "named", "block"]
    saved = kv.open(path)
    assert [saved.prompt_of_rank(rank) for rank in range(6)] == ["0", "1", "2", "3", "named", "block"]
    assert live.run.row(prompt="block")["n_prefill"] == 60


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    ("options", "prefill"),
    [
        ({}, 68),
        ({"queries": {"last": 20}}, 70),
        ({"prefill": 30}, 30),
        ({"prefill": 0.5}, 45),
        ({"prefill": "50%"}, 45),
        ({"tokens": 40}, 30),
    ],
)
def test_the_length_of_the_prompt(llama, options, prefill):
    live = live_run(llama, ["h2o"], [24], one_call, **options)
    assert live.run.table["n_prefill"].unique().tolist() == [prefill]


def test_a_call_that_continues_another_says_what_to_do(llama):
    def run(model, live):
        out = model(IDS[:, :60], use_cache=True)
        model(IDS[:, 60:61], past_key_values=out.past_key_values)

    with pytest.warns(
        KvreplayWarning, match=r"prompt 1 was not replayed: it continues an earlier call: .*live.prompt"
    ):
        live = live_run(llama, ["h2o"], [24], run)
    assert live.run.table["prompt"].unique().tolist() == ["0"]
    assert "continues" in live.failed["1"]


def test_beams_are_left_out(llama):
    def run(model, live):
        model.generate(IDS, max_new_tokens=3, num_beams=2, do_sample=False)
        model(IDS)

    with pytest.warns(KvreplayWarning, match="num_beams = 2"):
        live = live_run(llama, ["h2o"], [24], run)
    assert live.run.table["prompt"].unique().tolist() == ["0"]


def test_an_id_is_used_once(llama):
    def run(model, live):
        for _ in range(2):
            live.name_next("book")
            model(IDS)
        with pytest.raises(ConfigError, match="prompt book: there is one already"), live.prompt("book"):
            raise AssertionError("the block was entered")

    with pytest.warns(KvreplayWarning, match="prompt book: there is one already"):
        live = live_run(llama, ["h2o"], [24], run)
    assert live.run.table["prompt"].unique().tolist() == ["book"]
    with pytest.raises(ConfigError, match=r"call kvreplay\.live again"), live:
        raise AssertionError("the block was entered")


@kv.scorer
def slow(prompt):
    time.sleep(0.05)
    return prompt.keys[0, :, 0]


@pytest.mark.usefixtures("quiet")
def test_a_prompt_is_replayed_before_its_call_returns(llama):
    """The caller may then change what lies in its cache."""

    def run(model, live):
        cache = model(IDS, use_cache=True).past_key_values
        for layer in cache.layers:
            layer.keys.zero_()

    # While the search for the share waits for this scorer, the keys are read once more.
    changed, untouched = (live_run(llama, [slow, "h2o"], ["40%"], call).run.table for call in (run, one_call))
    assert changed["rel_err_out_mean"].tolist() == untouched["rel_err_out_mean"].tolist()


def test_nothing_to_replay_is_one_sentence(llama):
    live = live_run(llama, ["h2o"], [24], lambda model, live: None)
    with pytest.raises(KvreplayError, match="the model did not run inside the block"):
        live.run  # noqa: B018


@pytest.mark.usefixtures("quiet")
def test_a_failed_prompt_is_not_in_the_saved_trace(llama, tmp_path):
    def run(model, live):
        model(IDS)
        with live.prompt("bad"):
            model(IDS, use_cache=True)
            model(IDS[:, :5], use_cache=False)
        model(IDS)

    path = tmp_path / "live.h5"
    live = live_run(llama, ["h2o"], [24], run, save_trace=path)
    assert list(live.failed) == ["bad"]
    assert kv.open(path).prompts == ["0", "2"]
    assert kv.open(path).trace_id


@pytest.mark.usefixtures("quiet")
def test_a_prompt_that_fails_at_its_end_is_left_out(llama, tmp_path, monkeypatch):
    from kvrecord.live_recorder import LivePrompt

    path = tmp_path / "live.h5"

    def run(model, live):
        generation(model, IDS, live, 4)
        monkeypatch.setattr(LivePrompt, "_warn", lambda self: 1 / 0)
        generation(model, IDS, live, 4)
        monkeypatch.undo()

    live = live_run(llama, ["h2o"], [24], run, save_trace=path)
    assert live.failed == {"1": "ZeroDivisionError: division by zero"}
    assert live.run.table["prompt"].unique().tolist() == ["0"]
    assert kv.open(path).prompts == ["0"]


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"methods": ["h2oo"]}, "unknown method"),
        ({"budgets": [0.5]}, "20%|50%"),
        ({"layers": "9"}, "layers"),
        ({"queries": {"first": 3}}, "queries"),
    ],
    ids=str,
)
def test_wrong_arguments_are_found_before_the_model_runs(llama, wrong, what):
    arguments = {"methods": ["h2o"], "budgets": [24], **wrong}
    with pytest.raises(ConfigError, match=what), kv.live(llama, **arguments):
        raise AssertionError("the block was entered")


# ---- arrays of a finished live run


@pytest.mark.usefixtures("quiet")
def test_arrays_come_from_the_saved_trace_or_not_at_all(llama, tmp_path):
    saved = live_run(llama, ["h2o"], ["40%"], one_call, save_trace=tmp_path / "live.h5").run
    kept = live_run(llama, ["h2o"], ["40%"], one_call, save=["kept"]).run
    gone = live_run(llama, ["h2o"], ["40%"], one_call).run
    for mine, theirs in zip(saved.kept("h2o", head=1), kept.kept("h2o", head=1), strict=True):
        assert np.array_equal(mine, theirs)
    with pytest.raises(KvreplayError, match="save_trace"):
        gone.kept("h2o")


# ---- methods in Python that see a layer


@kv.scorer(torch=True)
def norms_on_tensors(q, k, v, power=2.0):
    """Minus the norm of each key."""
    return -k.double().norm(dim=-1, p=power)


@kv.scorer(torch=True, hidden=True)
def first_hidden(q, k, v, hidden):
    return hidden[:, 0].expand(len(k), -1)


@kv.scorer(hidden=True)
def first_hidden_by_head(prompt):
    return prompt.hidden[:, 0]


@kv.scorer(torch=True)
def in_place(q, k, v):
    return k.mul_(0).norm(dim=-1) + v.zero_().sum(-1) + q.zero_().sum()


@pytest.mark.usefixtures("quiet")
def test_a_scorer_that_works_in_place_changes_nothing_else(llama):
    def read_and_generate(model, live):
        model(IDS)
        tokens.append(model.generate(IDS, max_new_tokens=6, do_sample=False))

    tokens = []
    both = live_run(llama, [in_place, "h2o"], [24], read_and_generate).run.table
    alone = live_run(llama, ["h2o"], [24], read_and_generate).run.table
    assert both[both["method"] == "h2o"]["rel_err_out_mean"].tolist() == alone["rel_err_out_mean"].tolist()
    assert torch.equal(*tokens)


def test_a_scorer_without_its_decorator_says_which():
    def bare(q, k, v):
        return -k.norm(dim=-1)

    def of_hidden(q, k, v, hidden):
        return hidden

    with pytest.raises(ConfigError, match=r"decorate it with @kvreplay\.scorer\(torch=True\)"):
        kv.replay(kv.sample(), methods=[bare], budgets=[64])
    with pytest.raises(ConfigError, match=r"@kvreplay\.scorer\(torch=True, hidden=True\)"):
        kv.scorer(torch=True)(of_hidden)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("budget", [24, "40%"])
def test_a_scorer_that_returns_nothing_says_what_to_return(llama, budget):
    @kv.scorer(torch=True)
    def nothing(q, k, v):
        k.norm()

    run = live_run(llama, [nothing], [budget], one_call).run
    assert len(run.failed) == 6
    assert "returned None: return scores [2, 68]" in run.failed["error"].iloc[0].splitlines()[-1]


def test_a_static_cache_is_named(llama):
    def run(model, live):
        model.generate(IDS, max_new_tokens=4, do_sample=False, cache_implementation="static")

    with pytest.warns(KvreplayWarning, match="static cache"):
        live_run(llama, ["h2o"], [24], run)


def kept_sets(run, method, **place):
    return [
        tuple(run.kept(method, layer=layer, head=head, **place)[0]) for layer in range(3) for head in range(2)
    ]


@pytest.mark.usefixtures("quiet")
def test_scorers_on_tensors_keep_what_they_say(llama, tmp_path):
    path = tmp_path / "live.h5"
    live = live_run(llama, [norms_on_tensors, "knorm"], [24], one_call, save=["kept"], save_trace=path).run
    assert kept_sets(live, norms_on_tensors) == kept_sets(live, "knorm")
    replayed = kv.replay(path, methods=[{"name": norms_on_tensors, "power": [2.0, 1.0]}], budgets=[24])
    assert kept_sets(replayed, norms_on_tensors, params={"power": 2.0}) == kept_sets(live, "knorm")
    assert kept_sets(replayed, norms_on_tensors, params={"power": 1.0}) != kept_sets(live, "knorm")


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("call", [one_call, lambda model, live: generation(model, IDS, live, 4)])
def test_scorers_see_hidden_states(llama, call):
    seen = {}

    def listen(layer):
        return lambda _, args, kwargs: seen.update({layer: kwargs["hidden_states"][0, :, 0]})

    blocks = enumerate(llama.model.layers)
    taps = [block.self_attn.register_forward_pre_hook(listen(n), with_kwargs=True) for n, block in blocks]
    logits(llama)
    for tap in taps:
        tap.remove()
    run = live_run(llama, [first_hidden, first_hidden_by_head], [24], call, save=["kept"]).run
    assert not len(run.failed)
    size = run.row()["n_prefill"]
    for layer in range(3):
        scores = seen[layer][:size]
        for method in (
            first_hidden,
            first_hidden_by_head,
        ):  # equal tokens have equal scores in the first layer
            kept = scores[run.kept(method, layer=layer)[0].tolist()]
            assert torch.equal(kept.sort().values, scores.sort().values[-24:])


@pytest.mark.usefixtures("quiet")
def test_hidden_states_need_a_model(llama, tmp_path):
    path = tmp_path / "live.h5"
    live_run(llama, ["h2o"], [24], one_call, save_trace=path)
    run = kv.replay(path, methods=[first_hidden, first_hidden_by_head], budgets=[24])
    assert set(run.table["status"]) == {"failed"}
    assert all("kvreplay.live" in error.splitlines()[-1] for error in run.failed["error"])


# ---- the command


@pytest.mark.usefixtures("quiet")
def test_the_command_replays_prompts_of_a_file(tmp_path, capsys):
    from kvreplay import program
    from tiny_model_folder import TEXT, jsonl, saved

    folder = saved(tmp_path / "model")
    prompts = jsonl(tmp_path / "p.jsonl", TEXT, TEXT)
    words = [
        "run",
        "--model",
        folder,
        "--prompts",
        prompts,
        "--method",
        "h2o,window",
        "--budget",
        "8,40%",
        "-o",
    ]
    assert program.main([*map(str, words), str(tmp_path / "out")]) == 0
    assert "h2o" in capsys.readouterr().out
    assert (tmp_path / "out/results.csv").exists()
    assert program.main([*map(str, words), str(tmp_path / "out")]) == 2
    assert "--force" in capsys.readouterr().err
