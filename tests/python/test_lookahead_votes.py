"""LAQ with generated rows of a tiny model, against the numpy definition; its cut against the engine's."""

import json

import h5py
import numpy as np
import pandas as pd
import pytest
import yaml
from kvreplay.trace import Trace
from kvreplay_cli import BINARY, kvreplay
from reference import window_votes
from reference.common import Head, Result, Rope, oneshot, top
from token_lists import ragged

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import kvrecord  # noqa: E402
from engine_runs import compare  # noqa: E402
from kvanalysis.data.load import load  # noqa: E402
from kvrecord.attention import mean_relative_deviation  # noqa: E402
from kvrecord.lookahead import _CutByMask, run_cached  # noqa: E402
from tiny_models import build, generate  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built"),
]

P, LATER, ROWS, BUDGET = 90, 7, 6, 48
CUT = 40
TOLERANCE = 1e-9
GENERATED = {"name": "laq", "generated": True}
ENTRIES = {
    "snapkv": {"name": "snapkv"},
    "own": {"name": "laq", "lookahead": 4},
    "usual": GENERATED | {"lookahead": ROWS},
    "few": GENERATED | {"lookahead": 3, "kernel": 3, "pool": "avg"},
    "apart": GENERATED | {"lookahead": ROWS, "kernel": 1, "gqa": {"level": "query"}},
    "together": GENERATED | {"lookahead": ROWS, "kernel": 1, "gqa": {"level": "layer"}},
}


def model():
    return build("Llama", num_key_value_heads=2)


def prompt():
    return torch.tensor([[(7 * i * i + 5 * i + 11) % 61 + 3 for i in range(P)]])


def config(folder, *entries, budgets=(CUT,), **replay):
    """Writes a configuration for the recording in a folder."""
    file = folder / "run.yaml"
    given = {
        "schema": 1,
        "traces": ["t.h5"],
        "replay": replay,
        "methods": list(entries),
        "budget": {"tokens": list(budgets)},
        "run": {"precision": "double"},
        "output": {"dir": "out", "save": ["kept", "outputs"]},
    }
    file.write_text(yaml.safe_dump(given, sort_keys=False))
    return file


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    """The folder of a recording of all layers, and of a run of ENTRIES at its cut's budget and another
    one."""
    folder = tmp_path_factory.mktemp("ahead")
    recorded = model()
    with kvrecord.record(recorded, folder / "t.h5", lookahead=ROWS, lookahead_budget=BUDGET):
        generate(recorded, LATER + 1, prompt())
    done = kvreplay("run", config(folder, *ENTRIES.values(), budgets=(BUDGET, CUT)), "--progress", "none")
    assert done.returncode == 0, done.stderr
    return folder


def cells(folder, name, budget=CUT):
    """The results of an entry at a budget, one per kv head of each layer."""
    asked = {key: value for key, value in ENTRIES[name].items() if key not in ("name", "gqa")}
    asked |= {f"gqa.{key}": value for key, value in ENTRIES[name].get("gqa", {}).items()}
    rows = pd.read_csv(folder / "out/results.csv")
    rows = rows[(rows.method == ENTRIES[name]["name"]) & (rows.budget_tokens == budget)]
    found = [row for row in rows.itertuples() if json.loads(row.given) == asked]
    assert len(found) == 4
    return found


def heads(folder):
    """{(layer, kv head): (Head, generated queries)} of the recording."""
    with h5py.File(folder / "t.h5") as trace:
        turns = np.array(json.loads(trace.attrs["rope_json"])["inv_freq"])
        found = {}
        for name, layer in trace["prompts/0/layers"].items():
            q, k, v, ahead = (layer[x][...] for x in ("q", "k", "v", "lookahead_q"))
            group = len(q) // len(k)
            for h in range(len(k)):
                own = slice(h * group, (h + 1) * group)
                scale = float(layer.attrs["scaling"])
                head = Head(q[own], k[h], v[h], scale, P, int(name), h, rope=Rope(turns))
                found[int(name), h] = head, ahead[own].astype(float)
        return found


def test_the_cut_equals_the_engines_snapkv_and_the_rows_follow_it(dump):
    kept = {}
    with h5py.File(dump / "out/kept.h5") as file:
        for row in cells(dump, "snapkv", BUDGET):
            kept.setdefault(row.layer, {})[row.kv_head] = ragged(file[row.key], "kept")[0]
    sets = {layer: torch.tensor(np.stack([own[h] for h in sorted(own)])) for layer, own in kept.items()}
    assert {tuple(tokens.shape) for tokens in sets.values()} == {(2, BUDGET)}
    assert len(sets) == 2 and not torch.equal(sets[0][0], sets[0][1])
    with h5py.File(dump / "t.h5") as trace:
        tokens = trace["prompts/0/lookahead/tokens"][...].tolist()
        stored = {layer: trace[f"prompts/0/layers/{layer:03d}/lookahead_q"][...] for layer in sets}
    found, engine = {}, model()
    with torch.no_grad():
        cache = run_cached(engine, prompt()[0].tolist()).past_key_values
        with _CutByMask(engine, lambda call: found.__setitem__(call.layer, call.q.numpy()), sets):
            run_cached(engine, tokens, list(range(P, P + ROWS)), past_key_values=cache)
    for layer, rows in found.items():
        assert mean_relative_deviation(stored[layer], rows) < 1e-5, layer


@pytest.mark.parametrize(("name", "options"), [("usual", {}), ("few", {"kernel": 3, "pool": "avg"})])
@pytest.mark.parametrize("budget", [BUDGET, CUT])
def test_generated_rows_vote_as_defined_and_every_row_is_measured(dump, name, options, budget):
    rows = ENTRIES[name]["lookahead"]
    for row in cells(dump, name, budget):
        head, ahead = heads(dump)[row.layer, row.kv_head]
        want = window_votes.laq_generated(head, ahead[:, :rows], budget, **options)
        compare(dump / "out", row.key, want, TOLERANCE)
        assert "sees_future" not in str(row.extras)


def test_a_query_head_votes_with_its_rows_and_a_layer_with_all(dump):
    everything = heads(dump)
    votes = {
        at: window_votes.softmax(head.scale * window_votes.dots(ahead, head.k[:P])).sum(axis=1)
        for at, (head, ahead) in everything.items()
    }
    for row in cells(dump, "apart"):
        at = row.layer, row.kv_head
        head = everything[at][0]
        outputs = [
            oneshot(head.of_query_head(g), top(by_one, CUT)).out[0] for g, by_one in enumerate(votes[at])
        ]
        compare(dump / "out", row.key, Result(None, np.stack(outputs)), TOLERANCE)
    for row in cells(dump, "together"):
        shared = votes[row.layer, 0].sum(axis=0) + votes[row.layer, 1].sum(axis=0)
        head = everything[row.layer, row.kv_head][0]
        compare(dump / "out", row.key, oneshot(head, top(shared, CUT)), TOLERANCE)


def test_only_laq_on_the_traces_rows_is_marked_as_an_oracle(dump):
    frame = load(dump / "out")
    told = {
        (method, bool(params.get("generated")), oracle)
        for method, params, oracle in zip(frame.method, frame.params, frame.oracle, strict=True)
    }
    assert told == {("snapkv", False, False), ("laq", False, True), ("laq", True, False)}
    assert {json.loads(row.extras).get("sees_future") for row in cells(dump, "own")} == {1}


REFUSED = [
    (
        GENERATED | {"lookahead": ROWS + 1},
        {},
        f"laq needs {ROWS + 1} rows generated after a cut (lookahead), but t.h5 holds {ROWS} (layers 0, 1): "
        f"give lookahead {ROWS}, or record more with `kvreplay record --lookahead {ROWS + 1}`",
    ),
    (
        GENERATED | {"lookahead": ROWS},
        {"prefill": P - 10},
        f"laq needs rows generated after {P - 10} tokens, the replayed prompt, but t.h5 holds some after {P} "
        "(layers 0, 1): leave out replay.prefill, or record it with `kvreplay record --lookahead` at that"
        " length",
    ),
]


@pytest.mark.parametrize(("entry", "replay", "says"), REFUSED)
def test_rows_that_are_too_few_or_of_another_prompt_are_refused_with_the_remedy(
    dump, tmp_path, entry, replay, says
):
    (tmp_path / "t.h5").write_bytes((dump / "t.h5").read_bytes())
    done = kvreplay("run", config(tmp_path, entry, **replay), "--progress", "none")
    assert done.returncode != 0 and says in done.stderr.replace(f"{tmp_path}/", "")


def test_a_trace_without_generated_rows_is_refused_with_the_flag_that_records_them(dump, tmp_path):
    (tmp_path / "t.h5").write_bytes((dump / "t.h5").read_bytes())
    with h5py.File(tmp_path / "t.h5", "r+") as trace:
        del trace["prompts/0/layers/001/lookahead_q"]
    done = kvreplay("validate", config(tmp_path, GENERATED | {"lookahead": ROWS}))
    assert done.returncode == 2
    assert (
        f"laq needs rows generated after a cut, which {tmp_path / 't.h5'} lacks (layer 1): "
        "record it with `kvreplay record --lookahead`" in done.stderr
    )


def test_generated_rows_are_part_of_a_traces_identity_in_both_languages(dump, tmp_path):
    def identity():
        done = kvreplay("inspect", tmp_path / "t.h5", "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["prompts"][0]["lookahead"] == {
            "context_tokens": P,
            "rows": ROWS,
            "budget": BUDGET,
            "window": 32,
            "kernel": 7,
        }
        assert Trace(tmp_path / "t.h5").trace_id == told["trace_id"]
        return told["trace_id"]

    (tmp_path / "t.h5").write_bytes((dump / "t.h5").read_bytes())
    found = set()
    for name in (None, "layers/001/lookahead_q", "lookahead/tokens"):
        with h5py.File(tmp_path / "t.h5", "r+") as trace:
            trace.attrs.pop("trace_id", None)
            if name:
                numbers = trace[f"prompts/0/{name}"]
                numbers[...] = numbers[...] + 1
        found.add(identity())
    assert len(found) == 3
