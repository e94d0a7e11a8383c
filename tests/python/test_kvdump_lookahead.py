"""`--lookahead`: the queries of rows generated after SnapKV has cut the prompt's cache."""

import json

import h5py
import numpy as np
import pytest
from kvbase.errors import KvreplayError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import kvrecord  # noqa: E402
from dumper_runs import contents  # noqa: E402
from front_door import record as cli  # noqa: E402
from kvrecord import lookahead  # noqa: E402
from kvrecord.attention import mean_relative_deviation  # noqa: E402
from kvrecord.hook import AttentionHook  # noqa: E402
from kvrecord.snapkv_cut import Cut, kept_tokens  # noqa: E402
from kvrecord.verify_lookahead import verify_lookahead  # noqa: E402
from recording import refusal  # noqa: E402
from tiny_model_folder import TEXT, jsonl, saved, words_for  # noqa: E402
from tiny_models import ARCHITECTURES, PROMPT, build, every_architecture, generate, logits  # noqa: E402

pytestmark = pytest.mark.torch

OK, USAGE, TROUBLE = 0, 2, 3
FLOAT32_DEVIATION = 1e-5  # float32, sums in another order
MATTERS = 0.01
T = PROMPT.shape[1]
ROWS, BUDGET = 4, 10
TOKENS = len(TEXT.split())


def llama(**changes):
    return build("Llama", num_key_value_heads=2, **changes)


def recorded(path, model=None, run=logits, **options):
    """Records a trace with ROWS rows after the prompt, which is cut to BUDGET tokens per kv head."""
    options = {"lookahead": ROWS, "lookahead_budget": BUDGET} | options
    model = model or llama()
    with kvrecord.record(model, path, **options):
        run(model)
    return path


def lookahead_of(path, prompt="0"):
    """(attributes, tokens) of a prompt's group `lookahead`."""
    with h5py.File(path) as trace:
        group = trace[f"prompts/{prompt}/lookahead"]
        return dict(group.attrs), group["tokens"][...].tolist()


def rows_of(path, layer, prompt="0"):
    with h5py.File(path) as trace:
        return trace[f"prompts/{prompt}/layers/{layer:03d}/lookahead_q"][...]


def in_one_pass(model, tokens, positions=None):
    """({layer: AttentionCall}, logits [n, vocabulary]) of a model on token ids, without a cache."""
    calls = {}
    where = {} if positions is None else {"position_ids": torch.tensor([positions])}
    with AttentionHook(model, lambda call: calls.__setitem__(call.layer, call)), torch.no_grad():
        found = model(input_ids=torch.tensor([tokens]), use_cache=False, **where).logits[0]
    return calls, found


@pytest.mark.parametrize("name", every_architecture())
def test_the_rows_equal_those_under_a_mask_or_the_model_is_refused(tmp_path, name):
    architecture = ARCHITECTURES[name]
    model = architecture.build()
    layers = model.config.get_text_config().num_hidden_layers
    windows = [layer for layer, facts in architecture.layers.items() if facts.window or facts.chunk]
    if windows or len(architecture.layers) < layers:
        says = refusal(model, tmp_path, lookahead=ROWS)
        assert "so its cache cannot be cut: leave --lookahead out" in says
        why = (
            "keeps only its window or chunk in the cache"
            if windows
            else "never calls the attention interface"
        )
        assert why in says and says.startswith(f"layer {windows[0] if windows else 0}: ")
        return
    path = recorded(tmp_path / "t.h5", model)
    checks = verify_lookahead(model, path)
    assert len(checks) == 1 + layers and all(check.ok for check in checks)
    for layer in architecture.layers:
        heads = architecture.layers[layer].heads
        assert rows_of(path, layer).shape == (heads[0], ROWS, heads[2])


def test_where_nothing_is_cut_the_rows_and_tokens_are_those_of_one_pass(tmp_path):
    for budget in (T, T + 30):
        path, model = recorded(tmp_path / "t.h5", lookahead_budget=budget), llama()
        tokens = lookahead_of(path)[1]
        calls, found = in_one_pass(model, PROMPT[0].tolist() + tokens)
        assert found[T - 1 : -1].argmax(-1).tolist() == tokens
        for layer, call in calls.items():
            assert mean_relative_deviation(rows_of(path, layer), call.q[:, T:].numpy()) < FLOAT32_DEVIATION


def test_a_cut_changes_every_layers_rows_but_not_the_first_token(tmp_path):
    whole, cut = recorded(tmp_path / "w.h5", lookahead_budget=T), recorded(tmp_path / "c.h5")
    assert lookahead_of(whole)[1][0] == lookahead_of(cut)[1][0] == int(logits(llama())[0, -1].argmax())
    # The first token's query is equal in the first layer; in the second layer it depends on the cut.
    first, second = (
        [mean_relative_deviation(rows_of(cut, n)[:, :1], rows_of(whole, n)[:, :1])] for n in (0, 1)
    )
    assert first[0] < FLOAT32_DEVIATION and second[0] > MATTERS


def test_all_layers_are_cut_even_if_few_are_recorded(tmp_path):
    whole = recorded(tmp_path / "w.h5")
    few = recorded(tmp_path / "f.h5", layers=(1,), query_stride=5)
    assert np.array_equal(rows_of(few, 1), rows_of(whole, 1)) and lookahead_of(few) == lookahead_of(whole)
    with h5py.File(few) as trace:
        assert list(trace["prompts/0/layers"]) == ["001"]


def test_the_trace_records_the_cut_and_an_unchanged_first_pass(tmp_path):
    model = llama()
    before = logits(model)
    with kvrecord.record(model, tmp_path / "plain.h5"):
        generate(model)
    path = recorded(tmp_path / "t.h5", model, generate, dtype="source")
    assert lookahead_of(path)[0] == {"context_tokens": T, "budget": BUDGET, "window": 32, "kernel": 7}
    assert torch.equal(logits(model), before)
    with h5py.File(path) as trace, h5py.File(tmp_path / "plain.h5") as plain:
        assert trace["prompts/0/lookahead/tokens"].dtype == np.int32
        assert "lookahead" not in plain.attrs["dump_json"] and "lookahead" not in plain["prompts/0"]
        for name, dataset in plain["prompts/0/layers/001"].items():
            assert np.array_equal(dataset, trace[f"prompts/0/layers/001/{name}"])
    assert verify_lookahead(model, tmp_path / "plain.h5") == []
    narrow = recorded(tmp_path / "n.h5", model, dtype="bf16")
    with h5py.File(narrow) as trace:
        layer = trace["prompts/0/layers/001"]
        assert layer["lookahead_q"].id.get_type() == layer["q"].id.get_type()
    assert all(check.ok for check in verify_lookahead(model, narrow))


def test_positions_that_do_not_start_at_0_continue_after_the_context(tmp_path):
    model, positions = llama(), list(range(100, 100 + T))

    def run(model):
        with torch.no_grad():
            model(input_ids=PROMPT, position_ids=torch.tensor([positions]))

    path = recorded(tmp_path / "t.h5", model, run, lookahead_budget=T)
    calls, _ = in_one_pass(
        model, PROMPT[0].tolist() + lookahead_of(path)[1], list(range(100, 100 + T + ROWS))
    )
    assert mean_relative_deviation(rows_of(path, 1), calls[1].q[:, T:].numpy()) < FLOAT32_DEVIATION
    moved = recorded(tmp_path / "m.h5", model, run)
    assert all(check.ok for check in verify_lookahead(model, moved))


def test_a_kv_head_keeps_the_window_and_what_it_votes_for(tmp_path):
    calls, _ = in_one_pass(llama(), PROMPT[0].tolist())
    call, cut = calls[0], Cut(budget=9, window=3, kernel=3)
    kept = kept_tokens(call, cut)
    weights = torch.zeros(2, T - 3)
    for h in range(4):
        for row in range(T - 3, T):
            seen = call.scaling * call.q[h, row] @ call.k[h // 2, : row + 1].T
            weights[h // 2] += seen.softmax(-1)[: T - 3]
    for head, votes in zip(kept.tolist(), weights, strict=True):
        shared = [float(votes[max(j - 1, 0) : j + 2].max()) for j in range(T - 3)]
        best = sorted(range(T - 3), key=lambda j: (-shared[j], j))[:6]
        assert head == [*sorted(best), T - 3, T - 2, T - 1]
    assert kept_tokens(call, Cut(budget=3, window=3)).tolist() == [[T - 3, T - 2, T - 1]] * 2
    assert kept_tokens(call, Cut(budget=T)).tolist() == [list(range(T))] * 2


@pytest.mark.parametrize(("name", "what"), [("lookahead_q", "layer 1: lookahead rows"), ("tokens", "tokens")])
def test_verify_finds_wrong_rows_and_tokens(tmp_path, name, what):
    model, path = llama(), recorded(tmp_path / "t.h5")
    assert [check.ok for check in verify_lookahead(model, path)] == [True] * 3
    with h5py.File(path, "r+") as trace:
        where = "prompts/0/layers/001/" if name == "lookahead_q" else "prompts/0/lookahead/"
        dataset = trace[where + name]
        dataset[...] = np.roll(dataset[...], 1, axis=-2) if dataset.ndim == 3 else dataset[...] % 60 + 1
    failed = [check.what for check in verify_lookahead(model, path) if not check.ok]
    assert failed and any(what in text for text in failed)
    assert len(failed) == 1 or name == "tokens"


def test_a_model_that_ignores_positions_is_refused(tmp_path, monkeypatch):
    run = lookahead.run_cached
    monkeypatch.setattr(
        lookahead, "run_cached", lambda model, ids, positions=None, **cache: run(model, ids, **cache)
    )
    assert refusal(llama(), tmp_path, lookahead=ROWS) == (
        "layer 0: LlamaAttention computes other rows after a cut cache than under a mask that hides the same "
        "tokens: leave --lookahead out"
    )


def test_a_model_without_position_ids_is_refused(tmp_path, monkeypatch):
    model = llama()
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda *args, **kwargs: forward(*args, **kwargs))
    assert "LlamaForCausalLM takes no position_ids" in refusal(model, tmp_path, lookahead=ROWS)


def test_a_context_that_is_another_one_the_second_time_is_refused(tmp_path):
    model = llama()

    def run(model):
        logits(model)
        with torch.no_grad():
            model.model.layers[0].self_attn.k_proj.weight.mul_(1.01)

    with pytest.raises(KvreplayError, match=r"run once more, differ .*: leave --lookahead out"):
        recorded(tmp_path / "t.h5", model, run)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def words(folder, tmp_path):
    """words(output, options...): arguments of the program for two prompts."""
    return words_for(folder, jsonl(tmp_path / "p.jsonl", TEXT, TEXT[:30]))


def test_the_command_line_records_verifies_and_resumes(words, tmp_path, capsys):
    options = ("--lookahead", "3", "--lookahead-budget", "7", "--generate", "3", "--ignore-eos")
    assert cli.main(words(tmp_path / "d", *options, "--verify")) == OK
    said = capsys.readouterr().err
    assert "lookahead: 3 rows after each prompt, cut to 7 tokens per kv head" in said
    assert said.count("lookahead rows against one pass after the masked prompt") == 4
    whole, index = contents(tmp_path / "d/index.h5"), lookahead_of(tmp_path / "d/index.h5", "p0")
    assert index[0] == {"context_tokens": TOKENS, "budget": 7, "window": 32, "kernel": 7}
    for lost in ("p0/001.h5", "index.h5"):
        (tmp_path / "d" / lost).unlink()
    assert cli.main(words(tmp_path / "d", *options, "--resume")) == OK
    assert contents(tmp_path / "d/index.h5") == whole
    assert lookahead_of(tmp_path / "d/index.h5", "p0") == index
    for other in ((), ("--lookahead", "4", *options[2:4]), ("--lookahead", "3")):
        assert cli.main(words(tmp_path / "d", *other, *options[4:], "--resume")) == USAGE
        assert "made with other settings" in capsys.readouterr().err


def test_the_context_has_the_requested_length_and_the_default_is_8_rows_after_256_tokens(words, tmp_path):
    assert cli.main(words(tmp_path / "t.h5", "--lookahead", "--context-tokens", "6", "--verify")) == OK
    attributes, tokens = lookahead_of(tmp_path / "t.h5", "p0")
    assert (attributes["context_tokens"], attributes["budget"], len(tokens)) == (6, 256, 8)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--lookahead-budget", "9"), "--lookahead-budget needs --lookahead: add it"),
        (("--context-tokens", "9"), "--context-tokens needs --repeat or --lookahead: add one"),
        (("--lookahead", "--context-tokens", "12"), "p.jsonl:2: --context-tokens 12: the prompt has"),
        (
            ("--lookahead", "250"),
            f"p.jsonl:1: --lookahead: {TOKENS} tokens and 250 after them make {TOKENS + 250}, the model has "
            "256 positions: use a smaller --lookahead",
        ),
    ],
)
def test_invalid_options_are_refused_before_the_model_runs(words, tmp_path, capsys, options, says):
    assert cli.main(words(tmp_path / "t.h5", *options)) == USAGE
    assert says in capsys.readouterr().err
    assert not (tmp_path / "t.h5").exists()


def test_the_plan_counts_the_rows(words, tmp_path, capsys):
    def planned(*options):
        assert cli.main(words(tmp_path / "t.h5", *options, "--dry-run")) == OK
        return json.loads(capsys.readouterr().out)

    without, plan = planned(), planned("--lookahead", "5")
    assert plan["lookahead_rows"] == 5 and "lookahead_rows" not in without
    # 2 prompts, 2 layers, 8 query heads of dimension 4, 4 bytes per number.
    assert plan["bytes"] - without["bytes"] == pytest.approx(1.01 * 5 * 2 * 2 * 8 * 4 * 4, abs=2)
