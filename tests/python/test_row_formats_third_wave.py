"""Row formats of the third wave: examples by hand, and the engine against their numpy definitions."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml
from engine_cases_tier2 import TRACES, Shape, layers_of, write_trace
from kvreplay_cli import BINARY, kvreplay
from reference import row_formats_third_wave as third
from reference.common import exact_out
from reference.row_codes import float16
from reference.row_formats import parse, read_back, row_bytes
from test_engine_rows import CLOSE, SEED, compare_all, configuration, run

built = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")

# Other shapes: one head a group, one kv head, keys and values of unequal widths, several layers.
SHAPES = {
    "r_small": Shape(n=89, P=75, d=32, dv=64, kv_heads=1, group=1, layers=(0,), rotary=32, seed=21),
    "r_groups": Shape(n=75, P=61, d=64, dv=32, kv_heads=2, group=3, layers=(1,), n_layers=4, seed=22),
    "r_layers": Shape(n=58, P=44, d=32, dv=32, kv_heads=3, group=2, layers=(0, 3), n_layers=5, seed=23),
}
TRACES |= SHAPES | {"r_short": Shape(n=30, P=20, d=32, dv=32, kv_heads=1, group=1, layers=(0,), seed=24)}


def back(name, numbers, width=32, part="key", **options):
    """A row of `width` numbers, the others 0, as read back."""
    row = np.zeros((1, width))
    row[0, : len(numbers)] = numbers
    return read_back({"name": name, **options}, part, row, prompt=1)[0, : len(numbers)]


# --- By hand ----------------------------------------------------------------------------------------------

EXAMPLE = (8, -1, 3.6, -8, 0)


def test_iq4_nl_takes_uneven_levels_and_the_scale_with_the_least_error():
    assert back("iq4_nl", EXAMPLE) == pytest.approx(
        [8.395, -0.8593, 4.297, -7.469, -0.0661], rel=2e-4, abs=5e-5
    )
    assert (back("iq4_nl", [0, 0]) == 0).all()


def test_iq4_nl_takes_the_higher_level_in_the_middle_of_two():
    # The largest number is -127, so the unit is 1. 19 lies in the middle of the levels 13 and 25.
    found = back("iq4_nl", [-127, 19])
    assert found[1] / found[0] == pytest.approx(25 / -127)


def test_q6_0_takes_even_levels_and_either_scale():
    assert back("q6_0", EXAMPLE) == pytest.approx([8.125, -1.0156, 3.5547, -7.8711, 0], abs=1e-4)
    assert (back("q6_0", EXAMPLE, scale="plain") == (8, -1, 3.5, -7.75, 0)).all()


def test_fp8k_nvfp4v_is_its_map():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(9, 64))
    for part in ("key", "value"):
        apart = read_back({"key": "fp8_e4m3", "value": "nvfp4"}, part, x, prompt=4)
        assert np.array_equal(read_back("fp8k_nvfp4v", part, x, prompt=4), apart)
    assert sum(row_bytes("fp8k_nvfp4v", "key", 64)) + sum(row_bytes("fp8k_nvfp4v", "value", 64)) == 100


def test_oscar_codes_a_group_with_two_bits():
    y, eye = np.array([[0, 0.5, 1, 15]]), np.eye(4)
    assert (third.oscar(y, eye, 0)[0] == (0, 0, 0, 15)).all()
    assert (third.oscar(y, eye, 0.75)[0] == (0, 0, 0, 15)).all()
    third_part = float16(np.array([1 / 3]))[0]
    assert third.oscar(y, eye, 0.5)[0] == pytest.approx([0, 2 * third_part, 3 * third_part, 3 * third_part])


def test_oscar_rotates_by_signed_eigenvectors_in_bit_reversed_order():
    # The moment is diagonal, so U permutes the axes: largest first. U H [:, i] goes to column br(i).
    r, gap = third.rotation_of(np.diag([1.0, 4.0, 2.0, 3.0]))
    u = np.eye(4)[:, [1, 3, 2, 0]]
    assert np.allclose(r[:, [0, 2, 1, 3]], u @ third.sylvester(4))
    assert gap == pytest.approx(1 / 4)


@pytest.mark.parametrize("name,d,expected", [("iq4_nl", 64, 36), ("q6_0", 64, 52), ("iq4_nl", 128, 72)])
def test_bytes_of_a_row(name, d, expected):
    assert sum(row_bytes(name, "key", d)) == expected


def test_bytes_of_a_row_of_oscar():
    assert [2 * third.oscar_bytes(64), 2 * third.oscar_bytes(128), 2 * third.oscar_bytes(64, 128, "f32")] == [
        40,
        72,
        48,
    ]


# --- The engine -------------------------------------------------------------------------------------------

HADAMARD = {"name": "iq4_nl", "rotate": "hadamard"}
PROTECTED = {"full_precision": {"sinks": 3, "recent": 5}}
ROW_BY_ROW = [
    "iq4_nl",
    HADAMARD,
    "q6_0",
    {"name": "q6_0", "scale": "plain", "rotate": "haar"},
    {"key": "q6_0", "value": HADAMARD, **PROTECTED},
    "fp8k_nvfp4v",
    {"name": "fp8k_nvfp4v", **PROTECTED},
    {"name": "fp8k_nvfp4v", "own_row": "coded"},
]


@built
@pytest.mark.parametrize("trace", ["blocks", *SHAPES])
def test_the_engine_codes_rows_as_defined(trace, tmp_path):
    compare_all(tmp_path, trace, ROW_BY_ROW, ["exact", "h2o"])


@built
def test_the_preset_equals_its_map_bit_by_bit(tmp_path):
    parts = {"key": {"name": "fp8_e4m3"}, "value": {"name": "nvfp4"}}
    more = {"rotate": "hadamard", **PROTECTED, "skip_layers": [3]}
    entries = [{"name": "fp8k_nvfp4v"}, parts, {"name": "fp8k_nvfp4v", **more}, {**parts, **more}]
    rows, outs = run(tmp_path, "r_layers", [{"name": "exact", "row_format": f} for f in entries])
    n = len(entries)
    for at in range(0, len(rows), n):
        for one, other in ((0, 1), (2, 3)):
            assert np.array_equal(outs[at + one], outs[at + other])
            assert rows.final_bytes[at + one] == rows.final_bytes[at + other]


def heads_of(trace):
    return [head for layer in layers_of(trace) for head in layer]


def compare(row, out, want, head):
    assert np.abs(out - want.out).max() <= CLOSE * np.abs(want.out).max()
    right = exact_out(head)
    error = np.linalg.norm(want.out - right, axis=2) / np.linalg.norm(right, axis=2)
    assert row.rel_err_out_mean == pytest.approx(error.mean(), rel=CLOSE, abs=CLOSE)
    assert row.final_bytes == want.final_bytes


OSCARS = [
    {},
    {"clip_key": 1, "clip_value": 0, "scales": "f32"},
    {"group": 16, "clip_key": 0.9},
    {"group": 24, "clip_value": 0.95},
]


@built
@pytest.mark.parametrize("trace", ["blocks", *SHAPES])
def test_the_engine_codes_oscar_as_defined(trace, tmp_path):
    asked = [(o, frame) for o in OSCARS for frame in ({}, {"sinks": 2, "recent": 6})]
    entries = [{"name": "oscar", **o, **({"full_precision": f} if f else {})} for o, f in asked]
    rows, outs = run(tmp_path, trace, [{"name": "exact", "row_format": f} for f in entries])
    for head in heads_of(trace):
        mine = np.flatnonzero((rows.layer == head.layer) & (rows.kv_head == head.kv_head))
        for at, (options, frame) in zip(mine, asked, strict=True):
            want = third.protected(head, *third.oscar_reads(head, **options), **frame)
            compare(rows.iloc[at], outs[at], want, head)
            said = json.loads(rows.extras[at])
            assert said["row_eigenvalue_gap"] == pytest.approx(
                third.oscar_rotations(head)[2], rel=1e-6, abs=1e-9
            )
            assert said["calibration_bytes"] == 4 * (head.d**2 + head.v.shape[1] ** 2)


@built
def test_oscar_says_that_a_prompt_of_few_rows_leaves_the_rotation_open(tmp_path):
    rows, _ = run(tmp_path, "r_short", [{"name": "exact", "row_format": "oscar"}])
    assert json.loads(rows.extras[0])["row_eigenvalue_gap"] < 1e-12


@built
def test_oscar_takes_widths_that_are_powers_of_two_alone(tmp_path):
    assert "2, 4, 8" in refusal(tmp_path, "widths", "oscar")


def refusal(folder, trace, row_format):
    """The message of a run that the engine refuses."""
    write_trace(folder / "t.h5", trace)
    asked = configuration([{"name": "exact", "row_format": row_format}])
    (folder / "run.yaml").write_text(yaml.safe_dump(asked, sort_keys=False))
    done = kvreplay("run", folder / "run.yaml", "--force", "--progress", "none")
    assert done.returncode != 0
    return done.stderr


# --- By age -----------------------------------------------------------------------------------------------


def entry_of(row_format):
    """The change of a key row, that of a value row, and the bytes of a row, in a format without constants."""

    def of(part):
        return lambda x: read_back(row_format, part, x, prompt=1, seed=SEED)

    return of("key"), of("value"), lambda d, dv: sized(row_format, "key", d) + sized(row_format, "value", dv)


def sized(row_format, part, d):
    is_source = getattr(parse(row_format), part).name == "source"
    return 4 * d if is_source else sum(row_bytes(row_format, part, d))


def by_age(head, ages, sinks=0, own_row="exact"):
    """The numpy definition for a configuration's list of entries."""
    limits = [entry["newer_than"] for entry in ages[:-1]]
    d, dv = head.d, head.v.shape[1]
    entries = []
    for entry in ages:
        of_key, of_value, size = entry_of(entry["format"])
        entries.append((of_key, of_value, size(d, dv)))
    return third.by_age(head, limits, entries, sinks, own_row)


# Rows of a coarse format lie on a lattice, where a Hadamard matrix makes exact ties, which rounding decides.
HAAR = {"name": "iq4_nl", "rotate": "haar"}
AGES = [
    (
        [
            {"newer_than": 12, "format": "source"},
            {"newer_than": 30, "format": "fp8_e4m3"},
            {"format": "nvfp4"},
        ],
        {},
    ),
    ([{"newer_than": 2, "format": "int8"}, {"format": {"key": "int4", "value": "int3"}}], {}),
    (
        [{"newer_than": 1, "format": "bf16"}, {"newer_than": 9, "format": "q6_0"}, {"format": HAAR}],
        {"own_row": "coded"},
    ),
    ([{"newer_than": 20, "format": "q8_0"}, {"format": {"key": "q4_0"}}], {"full_precision": {"sinks": 3}}),
]


@built
@pytest.mark.parametrize("trace", ["blocks", *SHAPES])
def test_the_engine_codes_rows_again_as_they_grow_old(trace, tmp_path):
    entries = [{"age": ages, **more} for ages, more in AGES]
    rows, outs = run(tmp_path, trace, [{"name": "exact", "row_format": f} for f in entries])
    for head in heads_of(trace):
        mine = np.flatnonzero((rows.layer == head.layer) & (rows.kv_head == head.kv_head))
        for at, (ages, more) in zip(mine, AGES, strict=True):
            sinks = more.get("full_precision", {}).get("sinks", 0)
            want = by_age(head, ages, sinks, more.get("own_row", "exact"))
            compare(rows.iloc[at], outs[at], want, head)
            assert rows.n_recoded[at] == want.recoded


def test_a_token_is_exact_then_int8_then_int4_of_int8(monkeypatch):
    head = layers_of("blocks")[0][0]
    short = replace(head, q=head.q[:, :5], k=head.k[:5], v=head.v[:5], P=1)
    read = []
    monkeypatch.setattr(
        third, "attend", lambda h, rows_of: [read.append(rows_of(t)) for t in range(h.P, h.n)]
    )
    third.by_age(short, [2], [(*entry_of("int8")[:2], 1), (*entry_of("int4")[:2], 1)])
    key = lambda name, x: read_back(name, "key", x[None], prompt=1)[0]  # noqa: E731
    int8 = key("int8", short.k[1])
    assert np.array_equal(read[0][0][1], short.k[1])  # row 1
    assert np.array_equal(read[1][0][1], int8)  # row 2
    assert np.array_equal(read[2][0][1], key("int4", int8))  # row 3
    assert np.array_equal(read[0][0][0], key("int8", short.k[0]))
    assert np.array_equal(read[1][0][0], key("int4", key("int8", short.k[0])))


IDEMPOTENT = ["fp8_e4m3", "mxfp4", "mxfp8", "bf16", "int8", "int4", "q4_0", "q8_0", "iq4_nl", "q6_0"]
DRIFTING = ["tq_mse"]  # the norm of what it reads back is not the norm that it stores


@built
def test_equal_entries_equal_one_format_where_coding_twice_changes_nothing(tmp_path):
    twice = [[{"newer_than": 7, "format": f}, {"format": f}] for f in IDEMPOTENT + DRIFTING]
    entries = IDEMPOTENT + DRIFTING + [{"age": ages} for ages in twice]
    rows, outs = run(tmp_path, "blocks", [{"name": "exact", "row_format": f} for f in entries])
    n = len(twice)
    for first in range(0, len(rows), 2 * n):
        for i, name in enumerate(IDEMPOTENT + DRIFTING):
            once, again = outs[first + i], outs[first + n + i]
            far = np.abs(once - again).max() / np.abs(once).max()
            assert (far <= 1e-12) if name in IDEMPOTENT else (far > 1e-6), name


@built
def test_rows_that_are_evicted_grow_old_by_tokens(tmp_path):
    """An audit takes another way through the same definition."""
    ages = {"age": AGES[0][0]}
    asked = [{"name": m, "row_format": ages} for m in ("h2o", "streaming_llm", "snapkv")]
    rows, _ = run(tmp_path, "r_groups", asked)
    again = configuration(asked)
    again["run"]["audit"] = True
    again["output"]["dir"] = "audit"
    write_trace(tmp_path / "t.h5", "r_groups")
    (tmp_path / "audit.yaml").write_text(yaml.safe_dump(again, sort_keys=False))
    done = kvreplay("run", tmp_path / "audit.yaml", "--force", "--progress", "none")
    assert done.returncode == 0, done.stderr
    audited = pd.read_csv(tmp_path / "audit" / "results.csv")
    assert audited.n_recoded.tolist() == rows.n_recoded.tolist()
    assert audited.final_bytes.tolist() == rows.final_bytes.tolist()
    assert np.allclose(audited.rel_err_out_mean, rows.rel_err_out_mean, rtol=1e-9)
    assert (rows.n_recoded > 0).any()


WRONG_AGES = {
    "must rise": [
        {"newer_than": 9, "format": "int8"},
        {"newer_than": 9, "format": "int4"},
        {"format": "int3"},
    ],
    "leave out newer_than": [{"newer_than": 9, "format": "int8"}, {"newer_than": 12, "format": "int4"}],
    "in groups": [{"newer_than": 9, "format": "int8"}, {"format": "kivi"}],
    "constants from the prompt": [{"newer_than": 9, "format": "int8"}, {"format": "pca"}],
    "leave out skip_layers": [
        {"newer_than": 9, "format": {"name": "int8", "skip_layers": [0]}},
        {"format": "int4"},
    ],
    "beside age": [
        {"newer_than": 9, "format": {"name": "int8", "full_precision": {"recent": 4}}},
        {"format": "int4"},
    ],
}


@built
@pytest.mark.parametrize("words", WRONG_AGES)
def test_ages_that_have_no_meaning_are_refused(words, tmp_path):
    assert words in refusal(tmp_path, "blocks", {"age": WRONG_AGES[words]})


# --- By layer and kv head ---------------------------------------------------------------------------------

RULES = [
    {"layers": [0], "heads": [1], "format": "source"},
    {"layers": [0, -1], "heads": [2], "format": {"key": "q8_0", "value": "iq4_nl"}},
    {"heads": [0], "format": {"age": AGES[0][0]}},
    {"format": {"name": "int4", "rotate": "hadamard"}},
]


def rule_for(layer, head, n_layers):
    for rule in RULES:
        layers = [i + n_layers if i < 0 else i for i in rule.get("layers", [layer])]
        if layer in layers and head in rule.get("heads", [head]):
            return rule["format"]
    raise AssertionError("no rule")


@built
def test_each_head_has_the_format_of_the_first_rule_that_holds(tmp_path):
    (tmp_path / "by").mkdir(), (tmp_path / "one").mkdir()
    by, outs = run(tmp_path / "by", "r_layers", [{"name": "exact", "row_format": {"by": RULES}}])
    heads = heads_of("r_layers")
    formats = [rule_for(head.layer, head.kv_head, head.n_layers) for head in heads]
    different = [f for i, f in enumerate(formats) if f not in formats[:i]]
    alone, wanted = run(tmp_path / "one", "r_layers", [{"name": "exact", "row_format": f} for f in different])
    assert len(by) == len(heads) and by.given.nunique() == 1 and by.params.nunique() == 1
    for i, head in enumerate(heads):
        at = int(np.flatnonzero((by.layer == head.layer) & (by.kv_head == head.kv_head))[0])
        mine = np.flatnonzero((alone.layer == head.layer) & (alone.kv_head == head.kv_head))
        own = mine[different.index(formats[i])]
        assert np.array_equal(outs[at], wanted[own])
        assert by.final_bytes[at] == alone.final_bytes[own]
        assert by.row_format[at] == alone.row_format[own]
        assert by.n_recoded[at] == alone.n_recoded[own]


@built
def test_a_file_of_formats_equals_its_rules(tmp_path):
    heads = heads_of("r_layers")
    lines = ["layer,kv_head,row_format"]
    for head in reversed(heads):
        f = rule_for(head.layer, head.kv_head, head.n_layers)
        text = json.dumps(f).replace('"', '""') if isinstance(f, dict) else f
        lines.append(
            f'{head.layer},{head.kv_head},"{text}"'
            if isinstance(f, dict)
            else f"{head.layer},{head.kv_head},{f}"
        )
    (tmp_path / "formats.csv").write_text("\n".join(lines) + "\n")
    asked = [
        {"name": "exact", "row_format": {"by": RULES}},
        {"name": "exact", "row_format": "file:formats.csv"},
    ]
    rows, outs = run(tmp_path, "r_layers", asked)
    for at in range(0, len(rows), 2):
        assert np.array_equal(outs[at], outs[at + 1])
        assert rows.row_format[at] == rows.row_format[at + 1]


@built
def test_one_rule_for_all_equals_its_format(tmp_path):
    formats = ["int4", {"name": "tq_mse"}, {"name": "oscar"}, {"key": "int8", "value": "nvfp4", **PROTECTED}]
    asked = [{"name": "h2o", "row_format": f} for f in formats]
    asked += [{"name": "h2o", "row_format": {"by": [{"format": f}]}} for f in formats]
    rows, outs = run(tmp_path, "r_layers", asked)
    n = len(formats)
    for first in range(0, len(rows), 2 * n):
        for i in range(first, first + n):
            assert np.array_equal(outs[i], outs[i + n])
            assert rows.final_bytes[i] == rows.final_bytes[i + n]


@built
def test_a_head_without_a_rule_is_named(tmp_path):
    assert "layer 0, kv head 1" in refusal(tmp_path, "blocks", {"by": [{"heads": [0], "format": "int8"}]})


@built
def test_a_layer_that_the_model_lacks_is_an_error(tmp_path):
    rules = {"by": [{"layers": [9], "format": "int8"}, {"format": "int4"}]}
    assert "names layer 9" in refusal(tmp_path, "blocks", rules)


@built
def test_a_file_with_a_missing_head_or_a_wrong_row_is_refused(tmp_path):
    for text, words in (
        ("layer,kv_head,row_format\n0,0,int8\n", "layer 0, kv head 1"),
        ("layer,kv_head,row_format\n0,0,int8\n0,0,int4\n0,1,int4\n", "second row"),
        ("layer,head,row_format\n0,0,int8\n", "heading"),
        ("layer,kv_head,row_format\n0,0,int9\n0,1,int8\n", "int9"),
    ):
        (tmp_path / "formats.csv").write_text(text)
        assert words in refusal(tmp_path, "blocks", "file:formats.csv"), words


@built
def test_skip_layers_beside_by_is_refused(tmp_path):
    assert "skip_layers" in refusal(tmp_path, "blocks", {"by": [{"format": "int8"}], "skip_layers": [0]})
