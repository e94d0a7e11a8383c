"""Budgets as shares of the full cache's bytes: within the share, and one token more would exceed it."""

import json
import re

import kvreplay as kv
import pytest
from kvanalysis.data.shares import by_share, with_common_budgets
from kvreplay_cli import kvreplay, table
from program_beside_python import made_layer

PROMPT, TOKENS = 136, 160
SHARES = [0.05, 0.1, 0.2, 0.4, 0.7]
KIVI = {"name": "kivi", "bits": 2, "g": 16, "R": 16}
CLOSE = {"name": "kivi", "bits": 4, "g": 4, "R": 4}  # blocks short enough that heads get different budgets
GEAR = {"name": "gear", "bits": 4, "g": 16, "R": 16}
# One method of each kind: scores, a window, one-shot, random, chunks, everything kept, a size from the data.
METHODS = [
    {"name": "h2o", "row_format": ["source", "int8", KIVI], "gqa.level": ["kv", "query"]},
    {
        "name": "streaming_llm",
        "positions": "original",
        "phase": ["stream", "oneshot"],
        "row_format": ["source", GEAR],
    },
    {"name": "tova", "order": "evict_then_attend", "row_format": "int4", "gqa.level": ["kv", "layer"]},
    {"name": "snapkv", "window": 4, "row_format": ["source", KIVI]},
    {"name": "self_balancing_walk"},
    {"name": "chunkkv", "chunk": 8, "scorer": {"name": "snapkv", "window": 4}},
    {"name": "window", "prompt": "stream"},
    {"name": "quest"},
    {"name": "buzz"},
]
COUPLED = [
    {"name": "snapkv", "window": 4, "allocator": ["ada", "cake", "pyramid"]},
    {"name": "adakv", "scorer": {"name": "snapkv", "window": 4}},
]


@pytest.fixture(scope="module")
def layers():
    return {3: made_layer(3), 8: made_layer(8)}


@pytest.fixture(scope="module")
def trace(layers, tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "trace.h5"
    return kv.Trace.write(path, layers, prompt="p0", n_prompt=PROMPT).path


@pytest.fixture
def words(layers):
    return {"layers": layers, "prefill": PROMPT, "seeds": 2, "metrics": ["rel_err_out_mean"]}


def instances(entry):
    """Expands lists in an entry of `methods` to single entries."""
    lists = [name for name, value in entry.items() if isinstance(value, list)]
    if not lists:
        return [entry]
    return [one for value in entry[lists[0]] for one in instances({**entry, lists[0]: value})]


def checked(entry, over, words, measure="total_bytes", of="peak"):
    """Checks an entry; returns the number of (heads or layers, shares) checked."""
    budgets = {"share_of_cache": SHARES, "of": of}
    try:
        run = kv.replay(methods=[entry], budgets=budgets, **words)
    except kv.ConfigError as error:
        assert "no method reaches any share of the cache" in str(error)
        return 0
    rows = usable(run.table[run.table["budget_share"] != ""])
    more = sorted({b + 1 for b in rows["budget_tokens"]})
    larger = usable(kv.replay(methods=[entry], budgets=more, **words).table)
    units = [*over, "seed", "budget_tokens"]
    beyond = dict(of_full(larger, units, measure))
    found = 0
    for (*place, tokens, share), part in of_full(by_share(rows), [*units, "share"], measure):
        assert part <= share, (entry, place, tokens)
        assert tokens == TOKENS or beyond[(*place, tokens + 1)] > share, (entry, place, tokens)
        found += 1
    return found


def at_the_peak(*shares):
    """Shares of the bytes at the peak, as the argument `budgets`."""
    return {"share_of_cache": list(shares), "of": "peak"}


def usable(table):
    """A table without failed cells and with plain numbers as keys; seed -1 means no seed."""
    assert (table["status"] == "ok").all()
    return table.assign(
        seed=table["seed"].fillna(-1).astype(int), budget_tokens=table["budget_tokens"].astype(int)
    )


FULL = {"total_bytes": "full_bytes", "mean_bytes": "mean_full_bytes", "prompt_bytes": "prompt_full_bytes"}


def of_full(rows, units, measure):
    """(unit, share of the full caches' bytes that its cells take together)."""
    for unit, own in rows.groupby(units):
        yield unit, own[measure].sum() / own[FULL[measure]].sum()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("entry", METHODS, ids=lambda entry: entry["name"])
def test_every_head_is_within_its_share_and_one_token_more_is_not(entry, words):
    for one in instances(entry):
        found = checked(one, ["layer", "kv_head"], words)
        assert found > 0 or one["name"] == "quest"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("entry", [one for entry in COUPLED for one in instances(entry)])
def test_heads_that_share_a_budget_are_within_the_share_together(entry, words):
    over = ["layer"] if "ada" in (entry.get("allocator"), entry["name"][:3]) else []
    assert checked(entry, over, words) > 0


@pytest.mark.filterwarnings("ignore")
def test_a_share_of_the_mean_bounds_the_mean_over_steps(words):
    for entry in ({"name": "h2o"}, {"name": "snapkv", "window": 4}):
        assert checked(entry, ["layer", "kv_head"], words, "mean_bytes", "mean") > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "entry",
    [
        {"name": "h2o", "row_format": KIVI},
        {"name": "snapkv", "window": 4},
        {"name": "snapkv", "window": 4, "row_format": CLOSE},
        {"name": "snapkv", "window": 4, "allocator": "ada"},
        {"name": "self_balancing_walk"},
    ],
)
def test_a_share_of_the_prompt_bounds_what_is_held_when_it_ends(entry, words):
    over = ["layer"] if "allocator" in entry else ["layer", "kv_head"]
    assert checked(entry, over, words, "prompt_bytes", "prompt") > 0


def test_by_prompt_bytes_one_shot_methods_reach_small_shares(words):
    budgets = {"share_of_cache": [0.1], "of": "prompt"}
    methods = [{"name": "snapkv", "window": 4}, "window", "quest"]
    with pytest.warns(UserWarning, match="10% of the prompt's cache is not reachable") as told:
        run = kv.replay(methods=methods, budgets=budgets, **words)
    assert [str(one.message).endswith(": quest") for one in told] == [True]
    assert "of the prompt's full cache)" in str(told[0].message)
    # 13.6 tokens of 136: 13 rows, with or without 4 bytes for each position.
    assert set(zip(run.table["method"], run.table["budget_tokens"], strict=True)) == {
        ("snapkv", 13),
        ("window", 13),
    }
    answer = run.compare(0.1, of="prompt")
    assert sorted(answer.compared["label"]) == ["snapkv", "window"]
    assert answer.ranking.set_index("label")["how"]["quest"].startswith("needs 1")
    # At their peaks snapkv holds 13 + 24 of 160 rows, window 13 + 1.
    peak = run.compare(0.1, of="peak").ranking.set_index("label")["how"]
    assert peak["snapkv"].startswith("smallest size here is 23.")
    assert peak["window"].startswith("largest size here is 8.")


def test_a_cell_does_not_depend_on_the_form_of_its_budget(words):
    shares = kv.replay(methods=["h2o"], budgets=at_the_peak(0.2), **words).table
    (tokens,) = set(shares["budget_tokens"])
    plain = kv.replay(methods=["h2o"], budgets=[tokens], **words).table
    assert list(shares["key"]) == list(plain["key"])
    assert list(shares["rel_err_out_mean"]) == list(plain["rel_err_out_mean"])
    assert set(shares["budget_share"]) == {"0.2"}
    assert (plain["budget_share"] == "").all()


def test_a_heads_budget_selects_its_arrays(words):
    run = kv.replay(methods=["self_balancing_walk"], budgets=at_the_peak(0.62), **words)
    assert run.table["budget_tokens"].nunique() > 1
    for row in run.table.itertuples():
        place = {"layer": row.layer, "head": row.kv_head, "seed": row.seed}
        assert len(run.kept("self_balancing_walk", row.budget_tokens, **place)[0]) <= row.peak_kept_tokens


def test_a_summary_has_a_row_per_share_even_if_heads_budgets_differ(words):
    methods = [{"name": "h2o", "row_format": KIVI}, "exact", "window"]
    table = kv.replay(methods=methods, budgets=at_the_peak(0.4, 0.6), **words).summary()
    assert [name.split()[0] for name in table["method"]] == ["exact", "h2o", "h2o", "window", "window"]
    shares = table.set_index("share")["bytes_ratio"]
    assert (shares.loc[0.4] <= 0.4).all()
    assert (shares.loc[0.6] <= 0.6).all()
    assert (table["n_units"] == 4).all()


def test_a_curve_has_one_point_per_share_even_if_heads_budgets_differ(words):
    coded = {"name": "h2o", "row_format": CLOSE}
    frame = kv.replay(methods=[coded, "window"], budgets={**at_the_peak(0.2), "tokens": [40]}, **words).frame
    common = with_common_budgets(frame)
    for rows, several in ((frame, True), (common, False)):
        asked = rows[(rows["method"] == "h2o") & (rows["budget_share"] == "0.2")]
        assert (asked["budget_tokens"].nunique() > 1) == several
        assert len(asked) == 4
    assert common[common["budget_share"] == ""]["budget_tokens"].eq(40).all()


def test_a_cell_of_two_shares_counts_once_at_each(words):
    run = kv.replay(
        methods=[{"name": "h2o", "row_format": CLOSE}, "window"], budgets=at_the_peak(0.2, 0.203), **words
    )
    common = with_common_budgets(run.frame)
    for share in ("0.2", "0.203"):
        at_share = by_share(common).query(f"budget_share == '{share}'")
        assert at_share.groupby("label")["key"].nunique().eq(4).all()
        assert not at_share.duplicated(["label", "layer", "kv_head", "seed"]).any()


def test_two_shares_of_one_budget_are_one_cell_with_both(words):
    with pytest.warns(UserWarning, match="100% of the cache holds everything"):
        run = kv.replay(methods=["window"], budgets=at_the_peak(0.9995, 0.999, 1), **words)
    assert set(run.table["budget_share"]) == {"0.999;0.9995", "1"}
    assert set(run.table[run.table["budget_share"] == "1"]["budget_tokens"]) == {TOKENS}


def test_methods_that_cannot_get_that_small_are_reported_and_the_others_run(words):
    with pytest.warns(UserWarning) as told:
        run = kv.replay(methods=["window", "quest", "snapkv"], budgets=at_the_peak(0.1, 0.9), **words)
    said = sorted(str(warning.message) for warning in told)
    assert len(said) == 3
    assert said[0].startswith("10% of the cache is not reachable (needs 1")
    assert said[0].endswith(": quest")
    assert said[1].startswith("10% of the cache is not reachable (needs 16.0")
    assert said[1].endswith(": snapkv")
    assert said[2].startswith("90% of the cache is not reachable (needs 1")
    assert set(run.table["method"]) == {"window", "snapkv"}


def test_a_short_prompt_is_solved_together_with_a_long_one(tmp_path):
    """The search starts at an earlier result, which may not be a valid budget of a shorter text."""
    texts = {"long": 800, "short": 60}
    prompts = {
        name: {"layers": {3: made_layer(3, tokens=tokens)}, "n_prompt": tokens - 20}
        for name, tokens in texts.items()
    }
    trace = kv.Trace.write(tmp_path / "t.h5", prompts=prompts)
    run = kv.replay(trace, methods=["h2o", "tova"], budgets=at_the_peak(0.1))
    assert set(run.table["prompt"]) == set(texts)
    assert (run.table["total_bytes"] <= 0.1 * run.table["full_bytes"]).all()


def test_budgets_in_tokens_and_shares_have_separate_rows_in_a_summary(words):
    table = kv.replay(methods=["h2o"], budgets=[32, 100, "20%"], **words).summary()
    assert set(table.loc[table["share"].isna(), "budget_tokens"]) == {32, 100}


def test_shares_that_no_budget_reaches_are_named_in_the_answer(words):
    with pytest.warns(UserWarning, match="not reachable"):
        answer = kv.replay(methods=["window", "snapkv"], budgets=at_the_peak(0.1), **words).compare("10%")
    assert answer.ranking.set_index("label")["how"]["snapkv"].startswith("needs 1")


# ---- the program


def test_the_table_of_a_run_shows_shares_and_what_is_not_reachable(trace, tmp_path):
    out = tmp_path / "o"
    done = kvreplay(
        "run", trace, "--method", "exact,window,quest", "--budget", "20%,40%", "--of", "peak", "-o", out
    )
    assert done.returncode == 0
    lines = {tuple(line.split()[:2]): line.split() for line in done.stdout.splitlines()}
    assert "share" in done.stdout.splitlines()[0]
    assert "% of full" in done.stdout.splitlines()[0]
    assert lines["exact", "-"][-3] == "100.0"
    assert 19 < float(lines["window", "20%"][-3]) <= 20
    assert re.fullmatch(r"needs \d+\.\d%", " ".join(lines["quest", "20%"][2:4]))
    assert done.stderr.count("20% of the cache is not reachable (needs ") == 1
    meta = json.loads((out / "results.meta.json").read_text())
    assert [(one["method"], one["share"]) for one in meta["unreachable"]] == [("quest", 0.2), ("quest", 0.4)]
    assert meta["config"]["budget"] == {"of": "peak", "share_of_cache": [0.2, 0.4]}
    again = kvreplay(
        "run", trace, "--method", "exact,window,quest", "--budget", "20%,40%", "--of", "peak", "-o", out
    )
    assert "12 cells, 12 done before" in again.stderr.replace("\n", " ")
    assert again.stdout == done.stdout


def test_a_run_without_shares_shows_its_share_of_the_cache(trace, tmp_path):
    done = kvreplay("run", trace, "--method", "exact,window", "--budget", "39", "-o", tmp_path / "o")
    header, exact, window = done.stdout.splitlines()
    assert "share" not in header
    assert exact.split()[-3] == "100.0"
    assert window.split()[-3] == "25.0"  # 40 of 160 tokens while it attends
    assert {row["budget_share"] for row in table(tmp_path / "o")} == {""}


def test_shares_that_no_method_reaches_end_the_run_with_their_floors(trace, tmp_path):
    done = kvreplay(
        "run", trace, "--method", "quest,snapkv", "--budget", "2%", "--of", "peak", "-o", tmp_path / "o"
    )
    assert done.returncode == 2
    assert "no method reaches any share of the cache: quest needs 1" in done.stderr
    assert "snapkv needs 16.0" in done.stderr
    assert not (tmp_path / "o").exists()


def test_a_dry_run_counts_the_cells_of_shares_and_validate_does_not_replay(trace, tmp_path):
    done = kvreplay("run", trace, "--method", "window", "--budget", "20%,40%", "--dry-run")
    assert done.stdout.startswith("cells   8 (0 done, 8 to replay)")
    path = tmp_path / "c.yaml"
    path.write_text(f"schema: 1\ntraces: [{trace}]\nmethods: [h2o]\nbudget: {{share_of_cache: [0.2]}}\n")
    assert kvreplay("validate", path).stdout == (
        f"{path}: a sound configuration, with budgets that are shares of the cache\n"
    )


@pytest.mark.parametrize("word", ["0%", "150%"])
def test_an_invalid_share_is_refused_on_the_command_line(trace, word):
    done = kvreplay("run", trace, "--method", "window", "--budget", word)
    assert done.returncode == 2
    assert f"--budget is {word} and must be a share of the full cache's bytes" in done.stderr


def test_a_sweep_takes_the_budgets_of_its_plan(trace, tmp_path):
    path, alone, out = tmp_path / "c.yaml", tmp_path / "alone", tmp_path / "sweep"
    path.write_text(
        f"schema: 1\ntraces: [{trace}]\nmethods: [exact, {{name: h2o, row_format: {json.dumps(KIVI)}}},\n"
        "  quest, {name: snapkv, window: 4, allocator: pyramid}]\n"
        "budget: {share_of_cache: [0.4, 0.6], of: peak}\n"
    )
    assert kvreplay("run", path, "-o", alone).returncode == 0
    assert kvreplay("sweep", "plan", path, "-o", out).returncode == 0
    for shard in ("0/2", "1/2"):
        assert kvreplay("sweep", "work", out, "--shard", shard).returncode == 0
    merged = kvreplay("sweep", "merge", out)
    assert merged.returncode == 0
    assert re.search(r"^quest +\d+% +needs \d+\.\d%", merged.stdout, re.M)
    assert (out / "results.csv").read_text().count("\n") == (alone / "results.csv").read_text().count("\n")
    columns = ("key", "budget_share", "budget_tokens", "total_bytes", "rel_err_out_mean")
    rows = [{tuple(row[c] for c in columns) for row in table(folder)} for folder in (alone, out)]
    assert rows[0] == rows[1]
    unreachable = [
        json.loads((folder / "results.meta.json").read_text())["unreachable"] for folder in (alone, out)
    ]
    assert unreachable[0] == unreachable[1]


# ---- which bytes a share bounds if nothing says so


def asked_of(out):
    return json.loads((out / "results.meta.json").read_text())["config"]["budget"]["of"]


def budgets_in(out):
    return {(row["layer"], row["kv_head"], row["budget_tokens"]) for row in table(out)}


def test_shares_are_of_the_prompts_cache_if_tokens_follow_every_prompt(trace, layers, words, tmp_path):
    command = ("run", trace, "--method", "h2o,snapkv", "--budget", "25%")
    usual = kvreplay(*command, "-o", tmp_path / "usual")
    told = (
        "solving shares of the prompt's cache after its cut (budget.of: prompt): budgets are tried, and the "
        "bytes counted"
    )
    assert told in " ".join(usual.stderr.split())
    kvreplay(*command, "--of", "prompt", "-o", tmp_path / "prompt")
    kvreplay(*command, "--of", "peak", "-o", tmp_path / "peak")
    assert [asked_of(tmp_path / name) for name in ("usual", "prompt", "peak")] == ["prompt", "prompt", "peak"]
    assert budgets_in(tmp_path / "usual") == budgets_in(tmp_path / "prompt") != budgets_in(tmp_path / "peak")
    tokens = {(row[0], row[1], int(row[2])) for row in budgets_in(tmp_path / "usual")}
    for run in (
        kv.replay(trace, methods=["h2o", "snapkv"], budgets="25%"),
        kv.replay(**words, methods=["h2o", "snapkv"], budgets="25%"),
    ):
        own = run.table[["layer", "kv_head", "budget_tokens"]].drop_duplicates()
        assert {(str(a), str(b), c) for a, b, c in own.itertuples(index=False)} == tokens


def test_shares_are_of_the_peak_if_nothing_follows_some_prompt(tmp_path):
    lengths = {"short": PROMPT, "long": TOKENS}
    prompts = {
        name: {"layers": {3: made_layer(3, tokens=tokens)}, "n_prompt": PROMPT - 1}
        for name, tokens in lengths.items()
    }
    trace = kv.Trace.write(tmp_path / "t.h5", prompts=prompts).path
    command = ("run", trace, "--method", "window", "--budget", "20%", "--prefill", PROMPT, "--save", "kept")
    done = kvreplay(*command, "-o", tmp_path / "both")
    assert "the cache at its peak (budget.of: peak)" in " ".join(done.stderr.split())
    assert asked_of(tmp_path / "both") == "peak"
    kvreplay(*command, "--prompts", "long", "-o", tmp_path / "long")
    assert asked_of(tmp_path / "long") == "prompt"


def test_a_plan_says_which_bytes_its_shares_bound(trace, tmp_path):
    kvreplay("sweep", "plan", trace, "--method", "window", "--budget", "20%", "-o", tmp_path / "a")
    kvreplay(
        "sweep", "plan", trace, "--method", "window", "--budget", "20%", "--of", "mean", "-o", tmp_path / "b"
    )
    for name, of in (("a", "prompt"), ("b", "mean")):
        (plan,) = (tmp_path / name).glob("plan-*.jsonl")
        head = json.loads(plan.read_text().splitlines()[0])
        assert head["config"]["budget"]["of"] == of


def test_results_at_shares_of_other_bytes_are_not_mixed(trace, tmp_path):
    command = ("run", trace, "--method", "window", "-o", tmp_path)
    assert kvreplay(*command, "--budget", "20%", "--of", "peak").returncode == 0
    mixed = kvreplay(*command, "--budget", "30%")
    assert mixed.returncode == 2
    assert 'budget.of is "peak" there and "prompt" here' in mixed.stderr


def test_of_without_a_share_is_refused_with_what_it_belongs_to(trace):
    done = kvreplay("run", trace, "--method", "window", "--budget", "64", "--of", "peak")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "kvreplay: error: --of (peak, mean or prompt) belongs to shares of the cache: --budget 20%"
    ]


def test_a_method_that_fails_at_every_budget_says_why(trace):
    """Shares are solved by replays, so a mistake in a method shows there first."""

    @kv.scorer(window=4)
    def wrong(prompt):
        return prompt.attention(last=8).sum(axis=(0, 1))

    with pytest.warns(UserWarning, match="cells of wrong failed: ValueError: .* needs window=8"):
        run = kv.replay(trace, methods=[wrong, "snapkv"], budgets=["60%"])
    assert set(run.failed["method"]) == {"wrong"}
    assert run.failed["error"].iloc[0].startswith("Traceback")
    (how,) = [row.how for row in run.compare("60%").ranking.itertuples() if row.label == "wrong"]
    assert how.startswith("failed at every budget: ValueError: ")
    assert "needs window=8" in how
