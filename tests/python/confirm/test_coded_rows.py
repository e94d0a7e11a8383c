"""The closed loop follows every row format: the model's first-layer outputs equal the engine's."""

import json

import pytest

pytest.importorskip("torch")

from confirm_fixture import confirm, record, replay, rows, saved, tiny_llama
from kvreplay_cli import formats_of_heads

pytestmark = [pytest.mark.torch, pytest.mark.long]

KIVI = {"name": "kivi", "bits": 4, "g": 4, "R": 8}
SMALLER = {
    "kivi": KIVI,
    "gear": KIVI | {"name": "gear", "rank": 2},
    "polar": {"name": "polar", "levels": [2, 2]},
}
COMPOSED = [
    {"name": "int4", "group": 4, "full_precision": {"sinks": 2, "recent": 4}},
    {"name": "int8", "own_row": "coded"},
    {"key": KIVI, "value": "int8"},
    {"key": "fp8_e4m3", "value": {"name": "int4", "rotate": "hadamard_signed"}},
    {"name": "int4", "skip_layers": [-1]},
    {"name": "int4", "keys": "pre_rope"},
    {**KIVI, "full_precision": {"sinks": 2}},
]
# One cache per query head, re-rotated keys, lists of attended tokens, and weights.
WAYS = [
    {"name": "snapkv", "window": 4, "gqa.level": "query"},
    {"name": "h2o", "positions": "cache"},
    {"name": "h2o", "variant": "hf_mask"},
    {"name": "subgen_stream", "delta_rel": 0.7, "t": 4, "s": 16},
]


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """(model folder, trace) of a tiny Llama whose heads are wide enough for every format."""
    folder = tmp_path_factory.mktemp("wide")
    model = tiny_llama(head_dim=32)
    return saved(model, folder / "model"), record(model, folder / "trace.h5")


def test_the_model_follows_every_format(wide, tmp_path):
    formats = [SMALLER.get(name, name) for name in formats_of_heads() if name != "oscar"] + COMPOSED
    out = replay(wide[1], tmp_path / "out", [{"name": "h2o", "row_format": one} for one in formats])
    assert confirm(out, wide[0], "--trace", wide[1], "--verify", "--draws", 1) == 0
    meta = json.loads((out / "confirm.meta.json").read_text())
    assert len(meta["verified"]) == len(formats)
    lost = [row["kl_mean"] for row in rows(out, distance_from="0", distance_to="31")]
    assert len(set(lost)) > len(formats) - 5  # a few formats are aliases, or lose nothing


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_formats_are_followed_under_any_selection_of_tokens(wide, tmp_path, way):
    methods = [{**way, "row_format": one} for one in [*COMPOSED, "kvquant", "tq_prod"]]
    streams = way["name"] == "subgen_stream"
    if streams:  # a prompt that arrives token by token has no whole-prompt constants
        methods = [one for one in methods if one["row_format"] != "kvquant"]
    out = replay(wide[1], tmp_path / "out", methods)
    code = confirm(out, wide[0], "--trace", wide[1], "--verify", "--draws", 1, "--layers", 0)
    failed = rows(out, status="failed")
    assert code == (1 if streams else 0), failed
    # It holds a token several times: no list tells when each of a token's rows was coded.
    assert all("use --select own" in row["error"] for row in failed)
    waits = [one for one in COMPOSED if "kivi" in str(one) or "recent" in str(one)]
    assert len(failed) == (len(waits) if streams else 0)


def test_both_selections_give_equal_losses_without_eviction(wide, tmp_path):
    """No token is evicted, so both selections attend to the same rows."""
    formats = [*COMPOSED, "kvquant", "tq_prod", SMALLER["gear"]]
    out = replay(wide[1], tmp_path / "out", [{"name": "exact", "row_format": one} for one in formats])
    lost = {}
    for select in ("recorded", "own"):
        assert confirm(out, wide[0], "--trace", wide[1], "--draws", 1, "--select", select) == 0
        told = rows(out, selection=select, distance_from="0", distance_to="31")
        lost[select] = [float(row["kl_mean"]) for row in told]
    assert len(lost["own"]) == len(formats) and min(lost["own"]) > 1e-4
    assert lost["own"] == pytest.approx(lost["recorded"], rel=2e-3)  # rounding may flip a code


BY_HEAD = {
    "by": [
        {"layers": [0], "heads": [0], "format": {"name": "int4", "group": 4}},
        {"layers": [0], "heads": [1], "format": {"key": "int8", "value": "nvfp4", "rotate": "hadamard"}},
        {"layers": [1], "heads": [1], "format": "source"},
        {"layers": [-1], "format": {"name": "int8", "skip_layers": [-1]}},
        {"format": KIVI},
    ]
}


@pytest.mark.parametrize("way", [{"name": "exact"}, {"name": "h2o"}, *WAYS[:3]], ids=str)
def test_heads_with_formats_of_their_own_are_followed(wide, tmp_path, way):
    out = replay(wide[1], tmp_path / "out", [{**way, "row_format": BY_HEAD}])
    for layer in (0, 1):
        assert confirm(out, wide[0], "--trace", wide[1], "--verify", "--draws", 1, "--layers", layer) == 0
    assert confirm(out, wide[0], "--trace", wide[1], "--draws", 1) == 0


def test_both_selections_lose_the_same_with_formats_by_head(wide, tmp_path):
    out = replay(wide[1], tmp_path / "out", [{"name": "exact", "row_format": BY_HEAD}])
    lost = []
    for select in ("recorded", "own"):
        assert confirm(out, wide[0], "--trace", wide[1], "--draws", 1, "--select", select) == 0
        told = rows(out, selection=select, distance_from="0", distance_to="31")
        lost += [float(row["kl_mean"]) for row in told]
    assert len(lost) == 2 and min(lost) > 1e-4
    assert lost[1] == pytest.approx(lost[0], rel=2e-3)


def test_one_format_for_every_head_loses_exactly_what_the_format_loses(wide, tmp_path):
    formats = [KIVI, {"by": [{"heads": [0], "format": KIVI}, {"format": KIVI}]}]
    out = replay(wide[1], tmp_path / "out", [{"name": "h2o", "row_format": one} for one in formats])
    assert confirm(out, wide[0], "--trace", wide[1]) == 0
    alone, by = ([row["kl_mean"] for row in rows(out) if ("by" in row["given"]) == whole] for whole in (0, 1))
    assert alone == by and float(alone[0]) > 1e-4


@pytest.mark.parametrize("by_head", [False, True])
def test_formats_by_age_point_to_the_other_selection_and_are_followed_there(wide, tmp_path, capsys, by_head):
    aging = {"age": [{"newer_than": 4, "format": "int8"}, {"format": "int4"}]}
    by = {"by": [{"layers": [1], "heads": [1], "format": aging}, {"format": "int4"}]}
    out = replay(wide[1], tmp_path / "out", [{"name": "exact", "row_format": by if by_head else aging}])
    assert confirm(out, wide[0], "--trace", wide[1], "--draws", 1) == 3
    said = capsys.readouterr().err
    assert f"layer {int(by_head)}" in said and "by age" in said and "use --select own" in said
    assert confirm(out, wide[0], "--trace", wide[1], "--draws", 1, "--select", "own") == 0
