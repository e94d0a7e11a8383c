"""A row format for each kv head: choices worked out by hand, the files, the engine's answer, refusals."""

import itertools
import json

import numpy as np
import pytest
from front_door import command as cli
from kvanalysis import load
from kvanalysis.data.row_formats import row_format_text
from kvanalysis.errors import ConfigError, ResultsError
from kvanalysis.loss.budget_curves import MethodCurves
from kvanalysis.loss.budget_formats import cheapest_formats, least_loss, spend_rest
from kvanalysis.loss.format_choice import choices, choose_formats, formats_of
from kvanalysis.loss.format_files import flow_map, formats_csv, formats_json
from kvanalysis.loss.marginals import Curves
from kvreplay_cli import kvreplay, table
from test_kvanalysis_allocate import gradient_trace  # noqa: F401
from test_kvanalysis_fake import COLUMNS, fake_row, write_results

WITH_LOSS = (*COLUMNS, "given", "kl_head_mean", "extras", "final_bytes")
MIXED = {"key": {"name": "int8", "group": 64}, "value": "int2"}
# Bytes of a head, and the nats of head 0 and of head 1: head 0 needs digits, and head 1 hardly any.
TOY = {"int2": (40, 2.0, 0.30), "int4": (72, 1.0, 0.25), "q6_0": (104, 0.1, 0.20)}


def rows_of(formats, method="exact", **changes):
    """Cells of two heads from {format: (bytes, nats of head 0, nats of head 1)}."""
    return [
        fake_row(
            method, {"row_format": name}, "", layer=3, kv_head=head, kl_head_mean=nats[head],
            final_bytes=held, total_bytes=2 * held, **changes,
        )
        for name, (held, *nats) in formats.items() for head in (0, 1)
    ]  # fmt: skip


def loaded(folder, rows, columns=WITH_LOSS):
    return load(write_results(folder, rows, columns=columns))


def points(held, losses):
    """Options of one point each from arrays [options, H]."""
    heads = None
    for own, lost in zip(held, losses, strict=True):
        kl, full = np.array(lost, dtype=float)[:, None], np.full((len(lost), 1), 9)
        yield MethodCurves(heads, Curves(full, kl), kl, np.zeros(len(lost)), np.array(own, dtype=float), "")


# Choices


def test_the_head_that_needs_digits_gets_them_at_the_bytes_of_one_format(tmp_path):
    """At 144 bytes int4 for both loses 1.25 nats; 104 for the first and 40 for the second lose 0.4."""
    formats = formats_of(loaded(tmp_path, rows_of(TOY)))
    found = choose_formats(formats, formats.named("int4"))
    assert list(found.table["row_format"]) == ["q6_0", "int2"]
    assert list(found.table["bytes"]) == [104, 40]
    assert (found.limit, found.bytes) == (144, 144)
    assert found.predicted_kl == pytest.approx(0.4)
    assert found.least == pytest.approx(0.4)
    assert (found.uniform.label, found.uniform.predicted_kl) == ("exact int4", pytest.approx(1.25))


def test_a_bound_between_two_choices_leaves_a_known_gap(tmp_path):
    """136 bytes pay for int4 and int2 (112 bytes, 1.3 nats), and not for q6_0 and int2. At the price of
    0.9 nats for 32 bytes every head alone would lose and pay 4.45."""
    found = choose_formats(formats_of(loaded(tmp_path, rows_of(TOY))), 136)
    assert list(found.table["row_format"]) == ["int4", "int2"]
    assert found.predicted_kl == pytest.approx(1.3)
    assert found.least == pytest.approx(4.45 - 136 * 0.9 / 32)
    assert (found.like, found.uniform.label) == (None, "exact int2")


def test_bytes_that_no_single_format_fits_in_have_no_rival(tmp_path):
    wide_then_small = {"int8": (100, 0, 0), "mxfp4": (50, 1, 1)}
    rows = rows_of(wide_then_small)
    rows[3]["final_bytes"] = 101  # the second head of mxfp4: together 151
    found = choose_formats(formats_of(loaded(tmp_path, rows)), 150)
    assert found.uniform is None
    assert list(found.table["row_format"]) == ["mxfp4", "int8"]


def test_equal_heads_share_what_one_price_would_give_to_all_or_to_none(tmp_path):
    """120 bytes pay for one head's int4; at a price where it is worth its bytes both heads want it."""
    formats = formats_of(loaded(tmp_path, rows_of({"int2": (40, 1, 1), "int4": (80, 0, 0)})))
    found = choose_formats(formats, 120)
    assert list(found.table["row_format"]) == ["int4", "int2"]
    assert (found.predicted_kl, found.least) == (1, pytest.approx(1))


@pytest.mark.parametrize("seed", range(8))
def test_no_choice_loses_less_than_the_bound_and_few_lose_less_than_the_choice(seed):
    random = np.random.default_rng(seed)
    held = np.sort(random.integers(10, 60, (4, 1)), axis=0) + np.zeros((1, 4), dtype=int)
    losses = np.sort(random.random((4, 4)), axis=0)[::-1]
    options = list(points(held, losses))
    for total in range(int(held[0].sum()), int(held[-1].sum()) + 9, 7):
        chosen, price = cheapest_formats(options, np.arange(4), total)
        chosen = spend_rest(options, chosen, total)
        heads = np.arange(4)
        assert held[chosen, heads].sum() <= total
        every = (np.array(each) for each in itertools.product(range(4), repeat=4))
        best = min(losses[each, heads].sum() for each in every if held[each, heads].sum() <= total)
        assert least_loss(options, price, total) <= best + 1e-9
        steps = (losses[:-1] - losses[1:]).max()
        assert best - 1e-9 <= losses[chosen, heads].sum() <= best + steps


def test_every_size_of_the_run_has_a_line_and_equal_sizes_share_it(tmp_path):
    formats = TOY | {"nvfp4": (72, 1.5, 0.1)}
    found = list(choices(formats_of(loaded(tmp_path, rows_of(formats)))))
    assert [each.limit for each in found] == [80, 144, 208]
    assert [each.like.label for each in found] == ["exact int2", "exact int4", "exact q6_0"]
    assert all(each.predicted_kl <= each.uniform.predicted_kl for each in found)


def test_formats_that_differ_by_head_already_are_no_choice(tmp_path):
    by = {"by": [{"heads": [0], "format": "q6_0"}, {"format": "int2"}]}
    rows = rows_of(TOY) + [
        fake_row("exact", {"row_format": by}, "", layer=3, kv_head=head, kl_head_mean=0, final_bytes=1)
        for head in (0, 1)
    ]
    assert formats_of(loaded(tmp_path, rows)).labels == ["exact int2", "exact int4", "exact q6_0"]


def test_a_choice_of_many_rules_has_a_short_name():
    rules = [{"layers": [layer], "heads": [0], "format": f"int{2 * (layer % 2) + 2}"} for layer in range(6)]
    name = row_format_text({"by": rules})
    assert name.startswith("2 formats by head #")
    assert name != row_format_text({"by": rules[::-1]})
    assert row_format_text({"by": rules[:2]}) == "L0 H0 int2 | L1 H0 int4"


# Files


def test_the_files_hold_the_choice(tmp_path):
    rows = rows_of({"int4": (72, 1.0, 0.25)})
    rows += [
        fake_row("exact", {"row_format": MIXED}, "", layer=3, kv_head=head, kl_head_mean=0.1, final_bytes=90)
        for head in (0, 1)
    ]
    found = choose_formats(formats_of(loaded(tmp_path, rows)), 162)
    mixed = '"{key: {name: int8, group: 64}, value: int2}"'
    assert formats_csv(found) == f"layer,kv_head,row_format\n3,0,{mixed}\n3,1,int4\n"
    said = json.loads(formats_json(found))
    assert (said["limit_bytes"], said["bytes"], said["predicted_kl"]) == (162, 162, 0.35)
    assert said["like"] is None
    assert said["uniform"]["row_format"] == "int4"
    assert said["heads"][0] == {
        "layer": 3, "kv_head": 0, "row_format": MIXED, "predicted_kl": 0.1, "bytes": 90
    }  # fmt: skip


def test_a_map_with_a_name_alone_is_a_word():
    assert flow_map({"name": "q4_0"}) == "q4_0"
    assert flow_map({"name": "kivi", "bits": 2}) == "{name: kivi, bits: 2}"


def test_the_command_prints_a_table_or_writes_the_file_beside_its_json(tmp_path, capsys):
    write_results(tmp_path, rows_of(TOY), columns=WITH_LOSS)
    words = ["allocate", str(tmp_path), "--formats"]
    assert cli.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and lines[2].split() == ["0.1", "int4", "1.25", "0.400", "0.400", "0.320", "2"]
    assert cli.main([*words, "--like", "int4", "--json", str(tmp_path / "f.json")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "formats.csv"), str(tmp_path / "f.json")]
    assert cli.main([*words, "--bytes", "144"]) == 0
    assert capsys.readouterr().out == (tmp_path / "formats.csv").read_text()
    assert (tmp_path / "formats.csv").read_text() == "layer,kv_head,row_format\n3,0,q6_0\n3,1,int2\n"


def test_the_engine_gives_each_head_the_bytes_and_the_loss_of_its_format(gradient_trace, tmp_path):  # noqa: F811
    formats = "[int2, int8, {key: int8, value: int2}, {name: int4, group: 8}]"
    entry = f"methods=[{{name: exact, row_format: {formats}}}]"
    done = kvreplay("run", gradient_trace, "-s", entry, "-o", tmp_path / "all")
    assert done.returncode == 0, done.stderr
    found_in = formats_of(load(tmp_path / "all"))
    found = choose_formats(found_in, found_in.named("int4 group=8"))
    assert found.table["label"].nunique() > 1
    assert found.predicted_kl < found.uniform.predicted_kl
    (tmp_path / "f.csv").write_text(formats_csv(found))
    entry = f"methods=[{{name: exact, row_format: 'file:{tmp_path / 'f.csv'}'}}]"
    done = kvreplay("run", gradient_trace, "-s", entry, "-o", tmp_path / "mixed")
    assert done.returncode == 0, done.stderr
    given = {(int(row["layer"]), int(row["kv_head"])): row for row in table(tmp_path / "mixed")}
    for head in found.table.itertuples():
        row = given[head.layer, head.kv_head]
        assert int(row["final_bytes"]) == head.bytes
        assert float(row["kl_head_mean"]) == pytest.approx(head.predicted_kl, rel=1e-9)
        assert json.loads(row["row_format"]) == head.row_format
    assert sum(int(row["final_bytes"]) for row in given.values()) == found.bytes <= found.limit


# Refusals


@pytest.mark.parametrize(
    ("rows", "words", "says"),
    [
        ([fake_row("exact", {}, "", layer=3, kl_head_mean=0, final_bytes=9)], {}, "in one row format"),
        (rows_of({"int4": TOY["int4"]}), {}, "exact int4 in one row format, and a choice needs two"),
        (rows_of(TOY)[:-1], {}, "exact q6_0 lacks layer 3, kv head 1: replay it there"),
        (rows_of(TOY)[1:], {}, "exact int2 lacks layer 3, kv head 0: replay it there"),
        (rows_of(TOY) + rows_of(TOY, "snapkv"), {}, "several methods: choose with --method"),
        (rows_of(TOY) + rows_of(TOY, prompt="p1"), {}, "choose with --prompt one or more of p0, p1"),
        (rows_of(TOY), {"label": "tova"}, "--method tova: the run has only"),
        (
            [row | {"budget_tokens": budget} for budget in (64, 128) for row in rows_of(TOY, "snapkv")],
            {},
            "was replayed at several budgets",
        ),
    ],
)  # fmt: skip
def test_a_run_that_offers_no_choice_is_refused_with_the_reason(tmp_path, rows, words, says):
    with pytest.raises(ConfigError) as raised:
        formats_of(loaded(tmp_path, rows), **words)
    assert says in str(raised.value)


def test_a_run_of_one_choice_alone_is_refused(tmp_path):
    by = {"by": [{"format": "int2"}]}
    rows = [fake_row("exact", {"row_format": by}, "", kl_head_mean=0, final_bytes=1)]
    with pytest.raises(ConfigError, match="differ by head already: replay single ones"):
        formats_of(loaded(tmp_path, rows))


def test_a_run_without_a_gradient_names_the_recording_command(tmp_path):
    without = tuple(name for name in WITH_LOSS if name != "kl_head_mean")
    with pytest.raises(ResultsError, match="kvreplay record --with-gradient 8"):
        formats_of(loaded(tmp_path, rows_of(TOY), without))


def test_a_bound_that_nothing_fits_in_and_an_unknown_format_are_refused(tmp_path):
    formats = formats_of(loaded(tmp_path, rows_of(TOY)))
    with pytest.raises(ConfigError, match=r"79 bytes in all, but the smallest .* take 80: allow more"):
        choose_formats(formats, 79)
    with pytest.raises(ConfigError, match="--like int8: the run has only int2, int4, q6_0"):
        formats.named("int8")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--formats", "--bytes", "many"], "--bytes many: write a number of bytes"),
        (["--formats", "--bytes", "0"], "--bytes 0: write a number of bytes"),
        (["--formats", "--json", "f.json"], "say at which bytes with --like FORMAT or --bytes N"),
        (["--formats", "-o", "f.csv"], "say at which bytes with --like FORMAT or --bytes N"),
        (["--method", "exact", "--budget", "25%", "--like", "int4"], "limits of --formats without --budget"),
    ],
)
def test_an_invalid_call_is_refused(tmp_path, words, says, capsys):
    write_results(tmp_path, rows_of(TOY), columns=WITH_LOSS)
    assert cli.main(["allocate", str(tmp_path), *words]) == 2
    assert says in capsys.readouterr().err
