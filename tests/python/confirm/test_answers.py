"""Answers that a model writes over what methods kept: masks against dense attention, and whole runs."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from confirm_fixture import confirm, copy_of, meta, replay, saved, tiny_llama, whole
from lookup_model import END, FILLER, KEYS, VALUES, VOCABULARY, answer, lookup_model, pair, question

import torch  # isort: skip
import transformers  # isort: skip

import kvrecord
from kvconfirm.attention import LogitRule, attend
from kvconfirm.kept_prompt import KeptPrompt, KeptTokens
from kvconfirm.row_weights import LayerRows, first_seen

PROMPT, ANSWER_FROM, TOTAL = 40, 44, 48
P, D, KV, GROUP = 12, 4, 2, 3


def rows(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def kept(tokens, num=None, den=None):
    ones = torch.ones(len(tokens))
    num = ones if num is None else torch.tensor(num)
    return KeptTokens(torch.tensor(tokens), num, num if den is None else torch.tensor(den))


def dense(q, k, v, heads, rule, sight):
    """The attention of rows P.. over the kept tokens of the prompt, from weights [S, R, T]."""
    lists = [one for head in heads for one in head]
    total, added = k.shape[1], q.shape[1]
    at = np.arange(P, total)
    num, den = np.zeros((2, len(lists), added, total), dtype=np.float32)
    for s, one in enumerate(lists):
        num[s][:, one.tokens], den[s][:, one.tokens] = one.num, one.den
        num[s][:, P:] = den[s][:, P:] = np.tri(added)
        hidden = np.arange(total)[None] < first_seen(at, *sight)[:, None]
        num[s][hidden] = den[s][hidden] = 0
    return attend(q, k, v, LayerRows(torch.tensor(num), torch.tensor(den)), rule)


CACHES = {
    "two kv heads": [[kept([0, 3, 5])], [kept([2, 11])]],
    "weights": [[kept([0, 3], [2.0, 1.5])], [kept([1, 2, 9], [1.0, 1.0, 3.0], [1.0, 2.0, 3.0])]],
    "each query head": [[kept([h, h + 2]) for h in range(GROUP * kv, GROUP * (kv + 1))] for kv in range(KV)],
    "nothing": [[kept([])], [kept([])]],
}


@pytest.mark.parametrize("sight", [(0, 0), (6, 0), (0, 8)])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("caches", [list(CACHES), ["two kv heads", "weights", "nothing"]], ids=str)
def test_answers_attend_to_their_kept_tokens_and_to_the_rows_behind(sight, softcap, caches):
    """Rows arrive as one block of three, then one by one; every answer has keys of its own."""
    room, sinks = 5, rows(9, KV * GROUP)
    rule = LogitRule(0.5, softcap, sinks)
    k, v = rows(1, KV, P, D), rows(2, KV, P, D)
    answers = [CACHES[name] for name in caches]
    found, own = KeptPrompt(k, v, answers, room, sight), []
    q = rows(3, len(answers), KV * GROUP, room, D)
    own_k, own_v = rows(4, len(answers), KV, room, D), rows(5, len(answers), KV, room, D)
    for part in (slice(0, 3), slice(3, 4), slice(4, 5)):
        own.append(found.attend(q[:, :, part], own_k[:, :, part], own_v[:, :, part], rule))
    out = torch.cat(own, 2)
    for n, lists in enumerate(answers):
        every_k, every_v = torch.cat([k, own_k[n]], 1), torch.cat([v, own_v[n]], 1)
        expected = dense(q[n], every_k, every_v, lists, rule, sight)
        assert torch.allclose(out[n], expected, atol=1e-5), caches[n]


def test_answers_that_end_leave_the_others_unchanged():
    k, v = rows(1, KV, P, D), rows(2, KV, P, D)
    answers = [CACHES["two kv heads"], CACHES["weights"], CACHES["nothing"]]
    q, own = rows(3, 3, KV * GROUP, 2, D), rows(4, 3, KV, 2, D)
    both, fewer = (KeptPrompt(k, v, answers, 2) for _ in range(2))
    rule = LogitRule(0.5)
    for one in (both, fewer):
        one.attend(q[:, :, :1], own[:, :, :1], own[:, :, :1], rule)
    fewer.only(torch.tensor([0, 2]))
    all_of = both.attend(q[:, :, 1:], own[:, :, 1:], own[:, :, 1:], rule)
    some = fewer.attend(q[[0, 2], :, 1:], own[[0, 2], :, 1:], own[[0, 2], :, 1:], rule)
    assert torch.equal(all_of[[0, 2]], some)


# --- Whole runs ---------------------------------------------------------------------------------------


def words_tokenizer(folder, size=64, end=2):
    """A tokeniser whose tokens are the words w0, w1, ...; the word w`end` ends a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {f"w{n}": n for n in range(size)}
    own = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    own.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=own, eos_token=f"w{end}", unk_token="w0"
    ).save_pretrained(folder)


def greedy(model, ids, count):
    with torch.no_grad():
        options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **options)


METHODS = [
    {"name": "exact"},
    {"name": "snapkv", "window": 4},
    {"name": "snapkv", "window": 4, "gqa.level": "query"},
    {"name": "uniform", "sinks": 2, "recent": 4},
    {"name": "snapkv", "window": 4, "positions": "cache"},
    {"name": "snapkv", "window": 4, "row_format": {"name": "int8", "group": 4}},
]
FOLLOWED = ("exact", "positions", "row_format")  # the engine attends for these


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """(results, model folder, trace, {prompt: its ids}). Three prompts with the model's own answers."""
    folder = tmp_path_factory.mktemp("asked")
    model = tiny_llama()
    trace, texts = folder / "trace.h5", {}
    with kvrecord.record(model, trace) as recorder, torch.no_grad():
        for number in range(3):
            start = torch.randint(3, 64, (1, ANSWER_FROM), generator=torch.Generator().manual_seed(number))
            ids = greedy(model, start, TOTAL - ANSWER_FROM)
            answer = " ".join(f"w{t}" for t in ids[0, ANSWER_FROM:].tolist())
            task = {"name": "copy", "question": "agnostic", "answers": [answer], "score": "all"}
            where = {"n_prompt": PROMPT, "n_generated": TOTAL - PROMPT, "answer_from": ANSWER_FROM}
            with recorder.prompt(f"p{number}", where | {"task_json": json.dumps(task)}):
                model(input_ids=ids, use_cache=False)
            texts[f"p{number}"] = ids
    out = replay(trace, folder / "out", METHODS, budget=8, replay={"prefill": "trace"})
    where = saved(model, folder / "model")
    words_tokenizer(where)
    return out, where, trace, texts


def test_a_model_writes_over_masks_what_teacher_forcing_says_it_writes(asked):
    out, model, trace, texts = asked
    assert confirm(out, model, "--trace", trace, "--generate", "4") == 0
    found = whole(out)
    assert len(found) == len(METHODS) * len(texts)
    for row in found:
        expected = " ".join(f"w{t}" for t in texts[row["prompt"]][0, ANSWER_FROM:].tolist())
        assert (row["answer_text_full"], row["answer_correct_full"]) == (expected, "1")
        if "row_format" not in row["given"]:  # teacher-forced draws disturb coded rows
            assert (row["answer_text"] == expected) == (row["answer_exact"] == "1")
        assert float(row["answer_correct"]) == float(row["answer_text"] == expected)
        assert (row["task"], row["question"], row["answer_limit"]) == ("copy", "agnostic", "4")
        own = any(word in f"{row['method']} {row['given']}" for word in FOLLOWED)
        assert row["answer_selection"] == ("own" if own else "recorded")
    assert {row["answer_correct"] for row in found if row["method"] == "exact"} == {"1"}
    assert {row["answer_correct"] for row in found} == {"0", "1"}
    assert all(checks["generation"] < 1e-4 for checks in meta(out)["full_model"].values())


def test_logits_that_are_not_the_full_model_s_end_the_run(asked, tmp_path, capsys, monkeypatch):
    from kvconfirm import generation

    own = generation._next_logits
    monkeypatch.setattr(generation, "_next_logits", lambda *given: own(*given) + 0.01)
    out = copy_of(asked[0], tmp_path / "out")
    assert confirm(out, asked[1], "--trace", asked[2], "--generate", "4") == 3
    assert "the full model is not reproduced where its answer begins" in capsys.readouterr().err


def test_a_run_without_answers_is_run_again_when_answers_are_asked_for(asked, tmp_path, capsys):
    out = copy_of(asked[0], tmp_path / "out")
    words = [out, asked[1], "--trace", asked[2], "--prompts", "p1"]
    every = len(METHODS)
    for more, open_instances in ((), every), (("--generate", "3"), every), (("--generate", "3"), 0), ((), 0):
        assert confirm(*words, *more) == 0
        assert f"{open_instances} to run" in capsys.readouterr().err
    assert {row["answer_limit"] for row in whole(out)} == {"3"}
    assert confirm(*words, "--generate") == 0  # the task says nothing, so RULER's 32
    assert f"{every} to run" in capsys.readouterr().err
    assert {row["answer_limit"] for row in whole(out)} == {"32"}


def test_a_question_that_was_cut_elsewhere_is_refused(asked, tmp_path, capsys):
    out = replay(asked[2], tmp_path / "out", [{"name": "snapkv", "window": 4}], replay={"prefill": 30})
    assert confirm(out, asked[1], "--trace", asked[2], "--generate", "3") == 2
    assert "prompt p0 has 40 tokens, and the replay has cut 30" in capsys.readouterr().err


def test_an_answer_without_a_text_is_refused(tmp_path, capsys):
    model, trace = tiny_llama(), tmp_path / "trace.h5"
    where = {"n_prompt": PROMPT, "n_generated": 3, "answer_from": PROMPT + 1}
    with kvrecord.record(model, trace) as recorder, torch.no_grad(), recorder.prompt("p", where):
        model(input_ids=torch.tensor([[*range(3, PROMPT + 4), 2, 2]]), use_cache=False)
    out = replay(trace, tmp_path / "out", [{"name": "exact"}], replay={"prefill": "trace"})
    folder = saved(model, tmp_path / "model")
    words_tokenizer(folder)
    assert confirm(out, folder, "--trace", trace, "--generate", "3") == 2
    assert "prompt p: its answer has no text" in capsys.readouterr().err


@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 1), (torch.float32, 3)])
def test_answers_are_written_together_except_in_half_precision(asked, tmp_path, monkeypatch, dtype, most):
    """There the last bits of a row depend on the other rows of a batch, and with them the words."""
    from kvconfirm import answers

    together, own = [], answers.write
    monkeypatch.setattr(answers, "write", lambda *given: (together.append(given[2].n), own(*given))[1])
    folder = saved(tiny_llama().to(dtype), tmp_path / "model")
    words_tokenizer(folder)
    out = copy_of(asked[0], tmp_path / "out")
    assert confirm(out, folder, "--trace", asked[2], "--generate", "3", "--prompts", "p0") == 0
    assert max(together) == most and len(whole(out)) == len(METHODS)


def test_a_prompt_without_an_answer_cannot_be_scored(tiny, tmp_path, capsys):
    out, model, trace = copy_of(tiny[0], tmp_path / "out"), tiny[1], tiny[2]
    words_tokenizer(model)
    assert confirm(out, model, "--trace", trace, "--generate", "3") == 2
    assert "has no answer: record prompts of kvreplay tasks make" in capsys.readouterr().err


# --- Known answers ------------------------------------------------------------------------------------

N_PAIRS, BUDGET = 7, 6
SHARE = 0.2  # 7 tokens


def lookups(count=6):
    """[(ids of prompt, question and answer, place of the needle, its value)]. The needle is among the first
    tokens; each key occurs once. No value is 0, which a model without any needle writes."""
    found = []
    for number in range(count):
        draw = np.random.default_rng(number)
        keys, values = draw.permutation(KEYS), 1 + draw.permutation(VALUES - 1)
        pairs = [pair(k, v) for k, v in zip(keys[:N_PAIRS], values, strict=True)]
        at = 1 + number % 3
        prompt = [FILLER, *pairs, *[FILLER] * 31]
        found.append(
            ([*prompt, question(keys[at - 1]), answer(values[at - 1]), END], at, int(values[at - 1]))
        )
    return found


def record_lookups(model, path):
    with kvrecord.record(model, path) as recorder, torch.no_grad():
        for number, (ids, needle, value) in enumerate(lookups()):
            task = {
                "name": "lookup",
                "question": "agnostic",
                "answers": [f"w{answer(value)}"],
                "score": "all",
            }
            where = {"n_prompt": len(ids) - 3, "n_generated": 3, "answer_from": len(ids) - 2}
            where |= {
                "task_json": json.dumps(task),
                "needle_tokens": np.array([[needle, needle + 1]], np.int32),
            }
            with recorder.prompt(f"lookup-{number:04d}", where):
                model(input_ids=torch.tensor([ids]), use_cache=False)
    return path


def write_sets(trace, folder):
    """The files of the example: kept sets with the needle, and without it."""
    path = Path(__file__).parents[3] / "docs/examples/needles_to_external.py"
    spec = importlib.util.spec_from_file_location("needles_to_external", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main([str(trace), "-o", str(folder), "--share", str(SHARE)])
    return str(folder / "needle.h5"), str(folder / "without.h5")


@pytest.fixture(scope="module")
def looked_up(tmp_path_factory):
    """{method or name of the sets: rows of confirm.csv}; the full model answers every question."""
    folder = tmp_path_factory.mktemp("lookups")
    model = lookup_model()
    trace = record_lookups(model, folder / "trace.h5")
    needle, without = write_sets(trace, folder)
    methods = [
        *({"name": name} for name in ("exact", "window", "h2o", "static_oracle", "uniform")),
        *({"name": "external", "kept": sets} for sets in (needle, without)),
    ]
    evicting = replay(trace, folder / "out", methods[:-2], budget=BUDGET, replay={"prefill": "trace"})
    dropping = replay(trace, folder / "drop", methods[-2:], replay={"prefill": "trace"}, budget=N_PAIRS + 32)
    where = saved(model, folder / "model")
    words_tokenizer(where, VOCABULARY, END)
    found = {}
    for out in (evicting, dropping):
        assert confirm(out, where, "--trace", trace, "--generate", "4") == 0
        for row in whole(out):
            sets = json.loads(row["given"]).get("kept", row["method"])
            found.setdefault(sets, []).append(row)
    return found


def scores(rows):
    return [float(row["answer_correct"]) for row in rows]


def test_a_method_that_keeps_everything_scores_as_the_full_cache(looked_up):
    for row, (_, _, value) in zip(looked_up["exact"], lookups(), strict=True):
        assert row["answer_text"] == f"w{answer(value)}"  # nothing behind the end
        assert row["answer_correct"] == row["answer_correct_full"] == "1"
        assert row["answer_text"] == row["answer_text_full"]


def test_a_window_that_has_lost_the_needle_scores_nothing(looked_up):
    assert scores(looked_up["window"]) == [0.0] * len(lookups())


def test_keeping_the_needle_is_enough(looked_up):
    assert scores(looked_up["needle.h5"]) == [1.0] * len(lookups())
    assert scores(looked_up["static_oracle"]) == [1.0] * len(lookups())


def test_dropping_the_needle_alone_loses_every_answer(looked_up):
    assert scores(looked_up["without.h5"]) == [0.0] * len(lookups())


def test_streaming_methods_choose_anew_and_others_are_masked(looked_up):
    of = {name: {row["answer_selection"] for row in rows} for name, rows in looked_up.items()}
    assert of["static_oracle"] == of["needle.h5"] == of["without.h5"] == {"recorded"}
    assert of["window"] == of["h2o"] == {"own"}
