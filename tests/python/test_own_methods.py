"""Methods in Python next to built-in ones: copies make equal decisions, failures stay within their cells, and
use of evicted tokens is detected."""

import pickle
import re
import sys

import kvreplay
import numpy as np
import pytest
from kvreplay_cli import ROOT
from own_methods_of_tests import Oldest, PythonH2o, python_snapkv
from program_beside_python import TIMES, check_equal_runs, made_layer, replayed, run_python

SAMPLE = ROOT / "traces" / "samples" / "smollm2-135m.h5"
LAYERS = (0, 7, 15, 23, 29)
BUDGETS = [64, 96, 128, 256]
SHORT = {"tokens": 680}  # part of the sample: 640 prompt tokens and 40 later ones
PROMPT = 112
# Built-in methods with a score take a faster path than Python; its sums differ in the last bits.
LAST_BITS = 1e-5
SIZES = {
    "aux_bytes",
    "total_bytes",
    "score_bytes",
    "index_bytes",
    "mean_bytes",
    "final_bytes",
    "prompt_bytes",
}
# Columns of a method's name and memory may differ; all measured columns are equal.
CALLED = {"key", "method", "params", "given", *TIMES}


@pytest.fixture(scope="module")
def arrays():
    return made_layer(31)


def small(arrays, *methods, **more):
    """Replays small arrays; cells may fail."""
    words = {"prefill": PROMPT, "budgets": [32, 48], "jobs": 2, "progress": False, **more}
    return kvreplay.replay(*arrays, methods=list(methods), **words)


def rows_of(run, method, **params):
    """{(layer, kv head, budget, seed): row} of a method."""
    chosen = {}
    for cell, given in zip(run.cells, run.frame["given"], strict=True):
        if cell.row["method"] == method and all(given.get(n) == v for n, v in params.items()):
            place = tuple(cell.row[n] for n in ("layer", "kv_head", "budget_tokens", "seed"))
            assert place not in chosen
            chosen[place] = cell.row
    return chosen


def check_same_numbers(run, one, other, ignored=frozenset(), precision=0.0):
    """Cells of two methods have equal numbers, bitwise or within `precision`."""
    ours, theirs = rows_of(run, one), rows_of(run, other)
    assert ours and set(ours) == set(theirs)
    for place, row in ours.items():
        for name in set(row) - CALLED - ignored:
            mine, its = row[name], theirs[place][name]
            close = (
                isinstance(mine, float)
                and isinstance(its, float)
                and mine == pytest.approx(its, rel=precision)
            )
            assert mine == its or (precision and close), f"{place}: {name} is {mine} and {its}"


def one_error(run, method):
    """The common error of a method's cells, all of which failed; checks that no other cells failed."""
    failed = run.failed
    assert len(failed) == len(run.table[run.table["method"] == method]) > 0
    assert set(failed["method"]) == {method}
    return failed["error"].iloc[0]


# ---- copies of built-in methods


@pytest.fixture(scope="module")
def copies():
    return replayed(
        SAMPLE,
        methods=[python_snapkv, PythonH2o, "snapkv", "h2o"],
        budgets=BUDGETS,
        save=["kept", "outputs"],
        **SHORT,
    )


@pytest.mark.parametrize("copy,built_in,lists", [("python_h2o", "h2o", 41), ("python_snapkv", "snapkv", 1)])
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_copy_in_python_selects_the_sets_of_the_built_in_method(copies, copy, built_in, lists, budget):
    compared = 0
    for layer in LAYERS:
        for head in range(3):
            place = {"budget": budget, "layer": layer, "head": head}
            ours, theirs = copies.kept(copy, **place), copies.kept(built_in, **place)
            assert len(ours) == len(theirs) == lists
            for step, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
                assert np.array_equal(mine, its), f"{place}: step {step}"
            outputs = copies.outputs(copy, **place)[1], copies.outputs(built_in, **place)[1]
            apart = np.linalg.norm(outputs[0] - outputs[1], axis=-1) / np.linalg.norm(outputs[1], axis=-1)
            assert apart.max() < 1e-4
            compared += len(ours[0]) == budget
    assert compared == 15


def test_a_copy_in_python_is_measured_and_charged_as_the_built_in_method(copies):
    check_same_numbers(copies, "python_h2o", "h2o", precision=LAST_BITS)
    # SnapKV cuts once, so it is charged for no scores. Its copy must not be charged either.
    check_same_numbers(copies, "python_snapkv", "snapkv")


def test_copies_have_the_same_numbers_in_an_audit_and_in_double_precision():
    methods = [python_snapkv, PythonH2o, "snapkv", "h2o"]
    words = {"methods": methods, "budgets": [96], "layers": [7, 29], **SHORT}
    for more, precision in (({"audit": True}, 0.0), ({"precision": "double"}, 1e-9)):
        run = replayed(SAMPLE, **words, **more)
        check_same_numbers(run, "python_h2o", "h2o", precision=precision)
        check_same_numbers(run, "python_snapkv", "snapkv")


@pytest.mark.parametrize(
    "options",
    [
        {"gqa.level": "query"},
        {"row_format": "int4"},
        {"allocator": "ada"},
        {"allocator": "pyramid"},
        {"reweight": "uniform"},
        {"positions": "cache"},
    ],
    ids=lambda options: "=".join(next(iter(options.items()))),
)
def test_options_of_every_method_mean_the_same_for_a_copy(options):
    entries = [{"name": python_snapkv, **options}, {"name": "snapkv", **options}]
    run = replayed(SAMPLE, methods=entries, budgets=[96], layers=[0, 15], **SHORT)
    check_same_numbers(run, "python_snapkv", "snapkv")


@pytest.mark.parametrize(
    "options",
    [{"gqa.level": "query"}, {"row_format": "int8"}, {"order": "evict_then_attend"}],
    ids=lambda options: "=".join(next(iter(options.items()))),
)
def test_options_of_streaming_methods_mean_the_same_for_a_copy(options):
    entries = [{"name": PythonH2o, **options}, {"name": "h2o", **options}]
    run = replayed(SAMPLE, methods=entries, budgets=[96], layers=[0, 15], **SHORT)
    check_same_numbers(run, "python_h2o", "h2o", precision=LAST_BITS)


def test_a_window_in_python_is_the_window(arrays):
    run = replayed(*arrays, prefill=PROMPT, methods=[Oldest, "window"], budgets=[20, 40])
    check_same_numbers(run, "oldest", "window", SIZES)


def test_a_streamed_prompt_is_decided_token_by_token(arrays):
    seen = []

    class Watching(Oldest):
        def start(self, prompt, budget):
            seen.append(prompt)

    run = replayed(
        *arrays, prefill=PROMPT, methods=[Watching, "window"], budgets=[20], prompt="stream", kv_heads=[0]
    )
    assert seen == [None]
    check_same_numbers(run, "watching", "window", SIZES)


# ---- parameters


def test_parameters_can_be_swept_and_identify_instances(arrays):
    @kvreplay.scorer
    def powered(prompt, power: float = 1.0, coordinate: int = 0, largest: bool = True):
        numbers = np.abs(prompt.keys[0, :, coordinate]) ** power
        return numbers if largest else -numbers

    entries = [
        powered,
        {"name": powered, "coordinate": [1, 2], "largest": False},
        {"name": powered, "power": -1.0},
    ]
    run = replayed(*arrays, prefill=PROMPT, methods=entries, budgets=[32])
    assert len(run) == 4 * 2
    assert sorted({cell.row["given"] for cell in run.cells}) == [
        '{"coordinate":1,"largest":false}',
        '{"coordinate":2,"largest":false}',
        '{"power":-1}',
        "{}",
    ]
    k = arrays[1]
    for head in (0, 1):
        for given, scores in (
            ({}, np.abs(k[head, :PROMPT, 0])),
            ({"coordinate": 2}, -np.abs(k[head, :PROMPT, 2])),
        ):
            expected = np.sort(np.argsort(-scores.astype(float), kind="stable")[:32])
            assert np.array_equal(run.kept("powered", head=head, params=given)[0], expected)
    inverse = run.kept("powered", head=0, params={"power": -1})[0]
    assert np.array_equal(inverse, np.sort(np.argsort(np.abs(k[0, :PROMPT, 0]), kind="stable")[:32]))


def test_annotated_attributes_of_a_class_are_parameters_of_their_type(arrays):
    told = set()

    class Decaying(Oldest):
        decay: float = 0.5
        steps: int = 3
        fast: bool = True
        note = "no parameter: it is not annotated"

        def start(self, prompt, budget):
            told.add(
                (self.decay, type(self.decay), self.steps, type(self.steps), self.fast, budget, self.budget)
            )

    changed = Decaying()
    changed.steps = 9
    replayed(*arrays, prefill=PROMPT, methods=[{"name": Decaying, "decay": [0.25, 1]}], budgets=[32])
    replayed(*arrays, prefill=PROMPT, methods=[{"name": changed, "fast": False}], budgets=[32])
    assert told == {
        (0.25, float, 3, int, True, 32, 32),
        (1.0, float, 3, int, True, 32, 32),
        (0.5, float, 9, int, False, 32, 32),
    }


@pytest.mark.parametrize(
    "entry,message",
    [
        ({"kernle": 5}, "kernle.*did you mean kernel"),
        ({"kernel": 2.5}, "kernel is 2.5 and must be a whole number"),
        ({"kernel": "many"}, "kernel"),
        ({"sinks": 50, "recent": 50}, "exceed the budget"),
        ({"phase": "stream"}, "phase"),
        ({"gqa.level": "layer"}, "gqa.level"),
    ],
    ids=lambda value: str(value),
)
def test_mistakes_in_an_entry_are_reported_before_anything_runs(arrays, entry, message):
    with pytest.raises(kvreplay.ConfigError, match=message):
        small(arrays, {"name": python_snapkv, **entry})


def a_function(**defaults):
    """A scorer with a parameter that has this default."""
    names = ", ".join(f"{name}={value!r}" for name, value in defaults.items())
    space = {"inf": float("inf"), "nan": float("nan")}
    exec(f"def made(prompt, {names}): return prompt.positions", space)
    return space["made"]


@pytest.mark.parametrize(
    "defaults,message",
    [
        ({"a": float("inf")}, "finite"),
        ({"a": float("nan")}, "finite"),
        ({"a": 2**40}, "below"),
        ({"a": None}, "int, float or bool"),
        ({"a": "word"}, "int, float or bool"),
        ({"sinks": 3}, "option of every method"),
        ({"row_format": 1}, "option of every method"),
        ({f"a{i}": 1 for i in range(17)}, "at most 16"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_parameter_that_cannot_be_one_is_refused(arrays, defaults, message):
    with pytest.raises(kvreplay.ConfigError, match=message):
        small(arrays, a_function(**defaults))


def test_functions_and_classes_that_cannot_be_called_are_refused(arrays):
    class NeedsMore(Oldest):
        def __init__(self, table):
            self.table = table

    for method, message in (
        (lambda prompt: prompt.positions, "cannot name a method"),
        (NeedsMore, "needs arguments"),
        (type("Told", (Oldest,), {"title": 3}), "must be text"),
        (type("Told", (Oldest,), {"recent": True}), "whole number"),
        (type("Told", (Oldest,), {"row_bytes": -1}), "whole number"),
        (type("Told", (Oldest,), {"name": "h2o"}), "two methods"),
        (type("Told", (Oldest,), {"name": "No Name"}), "cannot name a method"),
        (object(), "no method"),
        (3, "no method"),
    ):
        with pytest.raises(kvreplay.ConfigError, match=message):
            small(arrays, method)
    assert not len(small(arrays, NeedsMore(np.arange(3))).failed)
    for function, message in (
        (lambda prompt, q: q, "q needs a default"),
        (lambda: 1, "takes no prompt"),
        (3, "no function"),
    ):
        with pytest.raises(kvreplay.ConfigError, match=message):
            kvreplay.scorer(function, name="made")


# ---- protection


@pytest.mark.parametrize("kind", ["scorer", "policy"])
def test_sinks_and_recent_tokens_stay_under_any_method(arrays, kind):
    class Middle(kvreplay.Policy):
        sinks = 3
        recent = 5

        def evict(self, tokens):
            return tokens[self.sinks : self.sinks + len(tokens) - self.budget]

    @kvreplay.scorer(sinks=3, recent=5)
    def middle(prompt):
        far = np.abs(np.arange(prompt.size) - prompt.size / 2)
        return -far

    run = replayed(*arrays, prefill=PROMPT, methods=[Middle if kind == "policy" else middle], budgets=[32])
    for head in (0, 1):
        for step, tokens in enumerate(run.kept("middle", head=head)):
            newest = PROMPT - 1 + step
            assert len(tokens) == 32
            assert list(tokens[:3]) == [0, 1, 2]
            assert list(tokens[-5:]) == list(range(newest - 4, newest + 1))


def test_the_window_is_kept_if_requested(arrays):
    def early(prompt):
        return -np.arange(prompt.size, dtype=float)

    staying = kvreplay.scorer(early, window=8, name="staying")
    leaving = kvreplay.scorer(early, window=8, window_stays=False, name="leaving")
    run = replayed(*arrays, prefill=PROMPT, methods=[staying, leaving], budgets=[32])
    assert list(run.kept("staying")[0]) == [*range(24), *range(PROMPT - 8, PROMPT)]
    assert list(run.kept("leaving")[0]) == list(range(32))


def test_queries_and_attention_are_those_of_the_last_rows(arrays):
    shown = []

    @kvreplay.scorer(window=8)
    def looking(prompt):
        shown.append((prompt.kv_head, prompt.queries(last=3), prompt.queries(), prompt.attention(last=3)))
        return prompt.positions

    replayed(*arrays, prefill=PROMPT, methods=[looking], budgets=[32])
    q, k, _ = (x.astype(float) for x in arrays)
    assert sorted(head for head, *_ in shown) == [0, 1]
    for head, last, queries, attention in shown:
        group = slice(2 * head, 2 * head + 2)
        assert np.array_equal(last, arrays[0][group, PROMPT - 3 : PROMPT])
        assert np.array_equal(queries, arrays[0][group, PROMPT - 8 : PROMPT])
        for row in range(3):
            t = PROMPT - 3 + row
            weights = np.exp(q[group, t] @ k[head, : t + 1].T / 4)
            expected = weights / weights.sum(axis=1, keepdims=True)
            assert np.allclose(attention[:, row, : t + 1], expected, rtol=1e-4, atol=1e-7)
            assert not attention[:, row, t + 1 :].any()


def test_a_policys_memory_is_charged(arrays):
    class Remembering(Oldest):
        row_bytes = 10

    run = replayed(*arrays, prefill=PROMPT, methods=[Oldest, Remembering], budgets=[32])
    bytes_of = run.table.groupby("method")["aux_bytes"].max()
    assert bytes_of["remembering"] - bytes_of["oldest"] == 10 * 32


# ---- failures


def broken(**parts):
    """A policy with some parts replaced."""
    return type("Broken", (Oldest,), parts)


def raising(*_):
    raise LookupError("told by the method")


FAILURES = {
    "start raises": ({"start": raising}, r"Traceback.*raising.*LookupError: told by the method"),
    "observe raises": ({"observe": raising}, r"Traceback.*raising.*LookupError: told by the method"),
    "evict raises": ({"evict": raising}, r"Traceback.*raising.*LookupError: told by the method"),
    "making it raises": ({"__init__": lambda self: raising()}, r"Traceback.*LookupError: told by the method"),
    "evict ends the process": ({"evict": lambda self, held: sys.exit(3)}, "SystemExit"),
    "start tells too few": (
        {"start": lambda self, p, b: np.zeros(3)},
        r"\[3\] scores: return \[112\]",
    ),
    "start tells words": ({"start": lambda self, p, b: "words"}, "str instead of scores"),
    "start tells NaN": (
        {"start": lambda self, p, b: np.full(p.size, np.nan)},
        "token 0 is not a finite number",
    ),
    "start tells masked scores": ({"start": lambda self, p, b: np.ma.zeros(p.size)}, "masked"),
    "nobody leaves": ({"evict": lambda self, held: None}, "holds 112 tokens, more than its budget"),
    "too few leave": ({"evict": lambda self, held: held[:1]}, "holds 111 tokens, more than its budget"),
    "a stranger leaves": (
        {"evict": lambda self, held: [*held[:80], 5000]},
        "5000, which the cache does not hold",
    ),
    "nobody's number leaves": (
        {"evict": lambda self, held: [*held[:80], -1]},
        "-1, which the cache does not hold",
    ),
    "a number too large leaves": ({"evict": lambda self, held: np.array([2**32 + 3])}, "no tokens"),
    "a sink leaves": ({"sinks": 2}, "token 0, which sinks protects"),
    "a recent one leaves": (
        {"recent": 2, "evict": lambda self, held: held[self.budget :]},
        "token 111, which recent protects|token 110, which recent protects",
    ),
    "fractions leave": ({"evict": lambda self, held: held[:90] * 1.0}, "float64"),
    "a mask leaves": ({"evict": lambda self, held: held < 90}, "bool"),
    "words leave": ({"evict": lambda self, held: ["a"]}, "some of its `tokens`"),
    "a generator leaves": ({"evict": lambda self, held: (t for t in held)}, "generator"),
}


@pytest.mark.parametrize("parts,message", FAILURES.values(), ids=FAILURES)
def test_errors_of_a_policy_fail_only_its_cells(arrays, parts, message):
    run = small(arrays, "h2o", broken(**parts), "window", budgets=[32])
    error = one_error(run, "broken")
    assert re.search(message, error, re.S), error
    alone = small(arrays, "h2o", "window", budgets=[32])
    for method in ("h2o", "window"):
        ours, theirs = rows_of(run, method), rows_of(alone, method)
        assert len(ours) == 2
        for place, row in ours.items():
            assert {n: v for n, v in row.items() if n not in TIMES} == {
                n: v for n, v in theirs[place].items() if n not in TIMES
            }


def test_an_evicted_token_cannot_be_evicted_again(arrays):
    class Twice(Oldest):
        def evict(self, tokens):
            leaving = list(tokens[: len(tokens) - self.budget])
            return leaving if tokens[-1] < PROMPT + 3 else [*leaving, 0]

    message = one_error(small(arrays, Twice), "twice")
    assert "token 0, which the cache does not hold: it was evicted before" in message


def test_scores_that_become_nan_while_decoding_fail_the_cell(arrays):
    def observe(self, tokens, p):
        tokens.scores[-1] = np.nan if tokens[-1] == PROMPT + 7 else 1

    assert f"score of token {PROMPT + 7} is not a finite number" in one_error(
        small(arrays, broken(observe=observe), "h2o"), "broken"
    )


def test_scores_as_a_new_array_must_be_one_for_each_token(arrays):
    def observe(self, tokens, p):
        tokens.scores = np.arange(3)

    assert "could not broadcast" in one_error(small(arrays, broken(observe=observe)), "broken")


SCORES = {
    "raises": (lambda prompt: 1 / 0, "Traceback.*ZeroDivisionError"),
    "nothing": (lambda prompt: None, "NoneType instead of scores"),
    "too few": (lambda prompt: [1.0], r"\[1\] scores: return \[112\]"),
    "two heads": (lambda prompt: np.zeros((2, prompt.size)), r"\[2, 112\] scores"),
    "NaN": (lambda prompt: np.where(prompt.positions == 5, np.nan, 0), "token 5 is not a finite number"),
    "infinite": (lambda prompt: np.where(prompt.positions == 6, np.inf, 0), "token 6 is not a finite number"),
    "complex": (lambda prompt: np.zeros(prompt.size, complex), "instead of scores"),
    "masked": (lambda prompt: np.ma.masked_less(prompt.positions, 5), "masked"),
    "no window": (lambda prompt: prompt.attention(last=3)[0, 0], "needs window=3"),
    "budget": (lambda prompt: np.full(prompt.size, prompt.budget), "uses_budget=True"),
}


@pytest.mark.parametrize("function,message", SCORES.values(), ids=SCORES)
def test_errors_of_a_scorer_fail_only_its_cells(arrays, function, message):
    run = small(arrays, "snapkv", kvreplay.scorer(function, name="broken"), "window", budgets=[40])
    assert re.search(message, one_error(run, "broken"), re.S)


def test_a_failing_cell_does_not_affect_other_cells(arrays):
    @kvreplay.scorer(uses_budget=True)
    def picky(prompt):
        if prompt.budget == 48 and prompt.kv_head == 1:
            raise ValueError("not this one")
        return np.arange(prompt.size)

    run = small(arrays, picky)
    assert list(run.failed["budget_tokens"]) == [48] and list(run.failed["kv_head"]) == [1]
    with pytest.raises(kvreplay.KvreplayError, match="not this one"):
        run.kept("picky", 48, head=1)
    assert len(run.kept("picky", 48, head=0)[0]) == 48


def test_an_exception_with_an_unprintable_text_fails_its_cells():
    """Runs in a separate process, since a failure could lose more than a cell."""
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import kvreplay, numpy as np
from program_beside_python import made_layer

class Unspeakable(Exception):
    def __str__(self):
        raise ValueError("no text")

def surrogates(self, tokens):
    raise ValueError("a lone \\udcff, \\0 and \\N{GRINNING FACE}" + "x" * 100000)

def unspeakable(self, tokens):
    raise Unspeakable()

class Broken(kvreplay.Policy):
    pass

for evict in (surrogates, unspeakable):
    Broken.evict = evict
    run = kvreplay.replay(*made_layer(1), prefill=112, methods=[Broken, "window"], budgets=[32])
    assert set(run.failed["method"]) == {"broken"} and len(run) == 4, run
    print(run.failed["error"].iloc[0][:60], flush=True)
"""
    done = run_python(code, ROOT / "tests/python", check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("Traceback") == 2


def test_data_of_a_call_cannot_be_used_later(arrays):
    late = []

    class Late(Oldest):
        def observe(self, tokens, p):
            late.append(tokens)

    replayed(*arrays, prefill=PROMPT, methods=[Late], budgets=[32])
    for look in (lambda t: t.keys, lambda t: t.values, lambda t: t.scores):
        with pytest.raises(ValueError, match="only the tokens that a hook receives"):
            look(late[0])

    prompts = []
    keeping = kvreplay.scorer(lambda p: prompts.append(p) or p.positions, name="keeping")
    replayed(*arrays, prefill=PROMPT, methods=[keeping], budgets=[32])
    with pytest.raises(ValueError, match="only good during the call"):
        _ = prompts[0].keys


def test_arrays_of_a_call_stay_valid_after_the_run(arrays):
    kept = []
    keeping = kvreplay.scorer(lambda p: kept.append(p.keys) or p.positions, name="keeping")
    replayed(*arrays, prefill=PROMPT, methods=[keeping], budgets=[32], jobs=1)
    assert np.array_equal(np.concatenate(kept), arrays[1][:, :PROMPT])


# ---- use of evicted tokens


class Peeking(kvreplay.Policy):
    """Keeps the prompt's keys, and decides by evicted ones."""

    def start(self, prompt, budget):
        self.all_keys = prompt.keys[0]
        self.gone = []

    def observe(self, tokens, p):
        mean = self.all_keys[self.gone].mean(axis=0) if self.gone else np.zeros(self.all_keys.shape[1])
        tokens.scores = tokens.keys[0] @ mean

    def evict(self, tokens):
        leaving = tokens[np.argsort(tokens.scores, kind="stable")[: len(tokens) - self.budget]]
        self.gone += [int(t) for t in leaving if t < PROMPT]
        return leaving


class Honest(Peeking):
    """Decides like Peeking, but by the keys that are held."""

    def observe(self, tokens, p):
        held = [int(t) for t in tokens if t < PROMPT]
        mean = self.all_keys[held].mean(axis=0) if held else np.zeros(self.all_keys.shape[1])
        tokens.scores = tokens.keys[0] @ mean


def test_an_audit_detects_a_policy_that_uses_an_evicted_key(arrays):
    methods = [Peeking, Honest, "h2o"]
    unaware = small(arrays, *methods)
    assert not len(unaware.failed)
    audited = small(arrays, *methods, audit=True)
    assert "is not a finite number" in one_error(audited, "peeking")
    others = small(arrays, "h2o", Honest, audit=True)
    for method in ("h2o", "honest"):
        for place, row in rows_of(audited, method).items():
            plain = rows_of(unaware, method)[place]["rel_err_fro"]
            assert row["rel_err_fro"] == rows_of(others, method)[place]["rel_err_fro"]
            assert row["rel_err_fro"] == pytest.approx(plain, rel=LAST_BITS)


def test_a_policy_that_uses_evicted_tokens_without_scores_decides_differently_in_an_audit(arrays):
    class Silent(Peeking):
        def observe(self, tokens, p):
            """Returns no scores."""

        def evict(self, tokens):
            mean = self.all_keys[self.gone].mean(axis=0) if self.gone else np.zeros(16)
            liked = np.nan_to_num(tokens.keys[0] @ mean, nan=0.0)
            leaving = tokens[np.argsort(liked, kind="stable")[: len(tokens) - self.budget]]
            self.gone += [int(t) for t in leaving if t < PROMPT]
            return leaving

    plain, audited = small(arrays, Silent), small(arrays, Silent, audit=True)
    for column in ("rel_err_out_mean", "kept_mass_mean"):
        assert list(plain.table[column]) != list(audited.table[column])


@pytest.mark.parametrize("what", ["keys", "values", "attention"])
def test_in_an_audit_all_data_of_an_evicted_token_becomes_nan(arrays, what):
    looks = []

    class Looking(Oldest):
        window = 4

        def start(self, prompt, budget):
            self.shown = prompt.attention() if what == "attention" else getattr(prompt, what)

        def observe(self, tokens, p):
            axis = 2 if what == "attention" else 1
            missing = np.isnan(np.moveaxis(self.shown, axis, 0)).all(axis=(1, 2))
            kept = ~np.isnan(np.moveaxis(self.shown, axis, 0)).any(axis=(1, 2))
            held = np.isin(np.arange(PROMPT), tokens)
            looks.append(np.array_equal(missing, ~held) and np.array_equal(kept, held))

    assert not len(small(arrays, Looking, audit=True).failed)
    assert len(looks) == 2 * 2 * 48 and all(looks)


def test_in_an_audit_cache_rows_become_nan_once_evicted(arrays):
    looks = []

    class Looking(Oldest):
        shown = None

        def observe(self, tokens, p):
            if self.shown is not None:
                before, keys = self.shown
                gone = ~np.isin(before, tokens)
                looks.append(
                    bool(gone.any())
                    and bool(np.isnan(keys[0, gone]).all() and np.isfinite(keys[0, ~gone]).all())
                )
            self.shown = np.array(tokens), tokens.keys

    assert not len(small(arrays, Looking, audit=True).failed)
    assert len(looks) == 2 * 2 * 47 and all(looks)


# ---- randomness


@kvreplay.scorer(random=True)
def chance(prompt):
    return prompt.rng.random(prompt.size)


class Chance(kvreplay.Policy):
    name = "chance_stream"
    random = True

    def evict(self, tokens):
        return self.rng.choice(tokens, len(tokens) - self.budget, replace=False)


def test_random_numbers_repeat_for_a_seed_and_any_number_of_threads(arrays):
    layers = {2: arrays, 5: made_layer(32)}
    words = {"layers": layers, "prefill": PROMPT, "methods": [chance, Chance, "uniform"], "budgets": [32]}
    run = replayed(**words, seeds=3, jobs=1)
    assert len(run) == 3 * 3 * 2 * 2
    for jobs in (2, 4):
        check_equal_runs(replayed(**words, seeds=3, jobs=jobs), run)
    for method in ("chance", "chance_stream"):
        errors = run.table[run.table["method"] == method]["rel_err_out_mean"]
        assert errors.nunique() == len(errors) == 12


def test_random_numbers_differ_by_prompt_layer_head_and_seed(arrays, tmp_path):
    """All tensors are equal, so that only randomness differs."""
    same = tuple(np.concatenate([x[:1]] * len(x)) for x in arrays)
    prompts = {name: {"layers": {0: same, 3: same}, "n_prompt": PROMPT} for name in ("a", "b")}
    trace = kvreplay.Trace.write(tmp_path / "t.h5", prompts=prompts)
    run = replayed(trace, methods=[chance, Chance], budgets=[32], seeds=3, save="kept")
    for method in ("chance", "chance_stream"):
        kept = {c.arrays["kept_flat"][:32].tobytes() for c in run.cells if c.row["method"] == method}
        assert len(kept) == 2 * 2 * 2 * 3


def test_random_numbers_of_a_head_and_seed_do_not_depend_on_other_cells(arrays):
    layers = {2: arrays, 5: made_layer(32)}
    words = {"prefill": PROMPT, "save": "kept"}
    whole = replayed(layers=layers, methods=["h2o", chance, Chance], budgets=[20, 32], seeds=3, **words)
    alone = replayed(layers={5: layers[5]}, methods=[Chance, chance], budgets=[32], seeds=(2, 1), **words)
    for method in ("chance", "chance_stream"):
        for head in (0, 1):
            place = {"budget": 32, "layer": 5, "head": head, "seed": 2}
            ours, theirs = whole.kept(method, **place), alone.kept(method, **place)
            assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_method_that_draws_nothing_is_replayed_once(arrays):
    run = replayed(*arrays, prefill=PROMPT, methods=[Oldest, python_snapkv], budgets=[40], seeds=5)
    assert len(run) == 4 and run.table["seed"].isna().all()


# ---- sources of methods


def test_caches_share_nothing_that_an_instance_holds(arrays):
    class Counting(kvreplay.Policy):
        def __init__(self):
            self.steps = []

        def observe(self, tokens, p):
            self.steps.append(int(tokens[-1]))

        def evict(self, tokens):
            many = len(tokens) - self.budget
            return tokens[:many] if len(self.steps) < 30 else tokens[-many:]

    given = Counting()
    for jobs in (1, 2):
        of_class, of_instance = (
            replayed(*arrays, prefill=PROMPT, methods=[method], budgets=[32, 48], jobs=jobs, save="kept")
            for method in (Counting, given)
        )
        check_equal_runs(of_instance, of_class, {"key"})
    assert given.steps == [] and not hasattr(given, "budget")


def test_closures_over_different_values_are_different_methods(arrays):
    def of_coordinate(i, name="coordinate"):
        return kvreplay.scorer(lambda prompt: prompt.keys[0, :, i], name=name)

    with pytest.raises(kvreplay.ConfigError, match="two methods are called coordinate"):
        small(arrays, {"name": of_coordinate(0), "recent": 1}, {"name": of_coordinate(1), "recent": 2})
    run = small(arrays, of_coordinate(0, "first"), of_coordinate(1, "second"), budgets=[32])
    for i, name in enumerate(("first", "second")):
        expected = np.sort(np.argsort(-arrays[1][0, :PROMPT, i].astype(float), kind="stable")[:32])
        assert np.array_equal(run.kept(name, head=0)[0], expected)


def array_with_hidden_value(i):
    """An array whose printed form does not show i."""
    return np.where(np.arange(5000) == 2500, i, 0)


@pytest.mark.parametrize(
    "made", [lambda i: i, array_with_hidden_value, lambda i: {"at": i}], ids=["int", "array", "dict"]
)
def test_the_key_of_a_cell_distinguishes_closures_and_is_stable(arrays, made):
    def of(value):
        return kvreplay.scorer(
            lambda prompt: np.zeros(prompt.size) if value is None else prompt.positions, name="made"
        )

    def keys(i):
        return [cell.row["key"] for cell in small(arrays, of(made(i))).cells]

    assert keys(1) == keys(1)
    assert not set(keys(1)) & set(keys(2))


def test_a_repeated_method_is_one_method(arrays):
    run = small(
        arrays, {"name": Oldest, "recent": 1}, {"name": Oldest, "recent": 2}, python_snapkv, budgets=[40]
    )
    assert len(run) == 2 * 3 and not len(run.failed)
    with pytest.raises(kvreplay.ConfigError, match="listed twice"):
        small(arrays, Oldest, Oldest)


NO_SOURCE = """
import kvreplay, numpy as np

@kvreplay.scorer
def typed(prompt, sign=1):
    return sign * np.{reduce}(prompt.keys[0], axis=-1)

class Typed(kvreplay.Policy):
    def evict(self, tokens):
        return tokens[: len(tokens) - self.budget] if self.budget > {constant} else None
"""


def define_without_file(text):
    """Defines functions without a source file, like a notebook cell or a console."""
    space = {"__name__": "__main__"}
    exec(compile(text, "<a cell>", "exec"), space)
    return space


def test_methods_without_a_source_file_are_identified_by_their_code(arrays):
    first = define_without_file(NO_SOURCE.format(reduce="max", constant=1))
    again = define_without_file(NO_SOURCE.format(reduce="max", constant=1))
    other = define_without_file(NO_SOURCE.format(reduce="min", constant=2))
    keys = []
    for space in (first, again, other):
        run = small(arrays, {"name": space["typed"], "sign": [1, -1]}, budgets=[32])
        streamed = small(arrays, type("Renamed", (space["Typed"],), {"name": "renamed"}), budgets=[32])
        assert not len(run.failed) and not len(streamed.failed)
        keys.append([cell.row["key"] for cell in (*run.cells, *small(arrays, space["Typed"]).cells)])
    assert keys[0] == keys[1]
    assert not set(keys[0]) & set(keys[2])
    biggest = np.sort(np.argsort(-arrays[1][0, :PROMPT].max(-1).astype(float), kind="stable")[:32])
    assert np.array_equal(small(arrays, first["typed"], budgets=[32]).kept(head=0)[0], biggest)


def test_a_plain_function_is_a_scorer_and_a_decorated_one_stays_a_function(arrays):
    def plain(prompt, of=1.0):
        return of * np.linalg.norm(prompt.keys[0], axis=-1)

    decorated = kvreplay.scorer(plain, name="decorated")
    run = small(arrays, plain, decorated, budgets=[32])
    assert not len(run.failed)
    check_same_numbers(run, "plain", "decorated")

    class Shown:
        keys = np.ones((1, 3, 4))

    assert np.allclose(decorated(Shown(), of=3), 6)


def test_methods_of_a_module_are_pickled_by_name():
    assert pickle.loads(pickle.dumps(Oldest)) is Oldest
    assert pickle.loads(pickle.dumps(PythonH2o())).window == PythonH2o.window


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package that offers methods, installed as by pip."""
    (tmp_path / "offering.py").write_text(
        "import kvreplay\n"
        "class Oldest(kvreplay.Policy):\n"
        "    'Not shown.'\n"
        "    title = 'the oldest go'\n"
        "    share: float = 0.5\n"
        "    def evict(self, tokens):\n"
        "        return tokens[: len(tokens) - self.budget]\n"
        "@kvreplay.scorer\n"
        "def early(prompt):\n"
        "    return -prompt.positions\n"
        "nothing = 3\n"
    )
    info = tmp_path / "offering-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offering\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[kvreplay.methods]\noffered_oldest = offering:Oldest\noffered_early = offering:early\n"
        "offered_nothing = offering:nothing\noffered_gone = offering_gone:Oldest\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("offering", None)  # remove another test's package of this name
    yield
    sys.modules.pop("offering", None)


def test_methods_of_an_installed_package_are_found_by_their_names(arrays, installed):
    assert {"offered_oldest", "offered_early", "h2o"} <= set(kvreplay.methods())
    run = small(arrays, "offered_oldest", {"name": "offered_early", "recent": [0, 3]}, "window", budgets=[32])
    assert not len(run.failed)
    check_same_numbers(run, "offered_oldest", "window", SIZES)
    assert list(run.kept("offered_early", params={"recent": 3})[0]) == [*range(29), *range(109, 112)]
    import offering

    assert offering.early.facts["name"] == "early"  # renamed only in the listing, not changed
    told = kvreplay.describe("offered_oldest")
    assert told["title"] == "the oldest go" and "share" in str(told)


def test_wrong_methods_of_a_package_are_reported(arrays, installed):
    with pytest.raises(kvreplay.ConfigError, match="must name a scorer or a Policy"):
        small(arrays, "offered_nothing")
    with pytest.raises(kvreplay.ConfigError, match=r"offered_gone.*cannot be loaded.*offering_gone"):
        small(arrays, "offered_gone")
    with pytest.raises(kvreplay.ConfigError, match=r"did you mean offered_oldest|unknown method"):
        small(arrays, "offered_oldst")


def test_methods_in_python_are_drawn_and_saved_with_built_in_ones(arrays, tmp_path):
    from kvanalysis import load

    run = replayed(*arrays, prefill=PROMPT, methods=[Oldest, python_snapkv, "h2o"], budgets=[40, 48])
    run.save(tmp_path / "out")
    assert set(load(tmp_path / "out")["method"]) == {"oldest", "python_snapkv", "h2o"}
    assert set(run.summary()["method"]) == {"oldest", "python_snapkv", "h2o"}
