"""`kvreplay formats`: what each row format costs the model; and notes on fixed scales that do not suit."""

import json
import math
import re

import kvreplay
import numpy as np
import pytest
from fake_confirm import confirm_rows, failed_confirm, write_confirm
from front_door import command
from kvanalysis import ResultsError, load
from kvanalysis.page.notes import notes_section
from kvanalysis.predict.formats import format_cells, format_losses, format_notes
from kvanalysis.stats.clipping import clipping_notes
from kvreplay_cli import ROOT
from test_kvanalysis_fake import COLUMNS, TRACE, fake_row, write_results

INT4 = {"row_format": {"name": "int4", "group": 64}}
FP8 = {"row_format": {"name": "fp8_e4m3", "scale": 0.02}}
SAMPLE = ROOT / "traces" / "samples" / "smollm2-135m.h5"


def cells(method, given, prompts=("p0",), budget="", seed="", clipped=0.0, flushed=0.0, **changes):
    """Rows of results.csv of three layers; each layer clips a tenth of the next one's share."""
    return [
        fake_row(method, {}, budget, seed, layer=layer, given=given, prompt=prompt, **changes)
        | {"extras": json.dumps({"row_clipped": clipped * 10.0**layer, "row_flushed": flushed})}
        for prompt in prompts for layer in range(3)
    ]  # fmt: skip


def measured(kld, se, top=0.9, **place):
    """Rows of confirm.csv with the measures of predictions; those of the parts are others."""
    numbers = {"kld_mean": kld, "kld_mean_se": se, "kld_median": kld / 2, "kld_p99": 9 * kld, "same_top": top}
    first, *parts = confirm_rows(budget=place.pop("budget", ""), **place)
    whole = first | numbers | {"same_top_se": 0.01}
    return [whole, *(part | dict.fromkeys(numbers, 7) | {"same_top_se": 7} for part in parts)]


def written(folder, results, losses):
    """A folder with both tables, loaded."""
    write_results(folder, results, columns=[*COLUMNS, "given", "extras"])
    write_confirm(folder, losses)
    return load(folder)


@pytest.fixture
def two_texts(tmp_path):
    """int4 and fp8 rows of the full cache on two texts, and h2o without a row format."""
    texts = ("p0", "p1")
    results = cells("exact", INT4, texts, total_bytes=1024, full_bytes=4096)
    results += cells("exact", FP8, texts, clipped=1e-4, flushed=0.002)
    results += cells("h2o", {}, texts, 64)
    losses = [
        *measured(0.4, 0.03, method="exact", given=INT4, prompt="p0", n_draws=4, kl_mean_sd=0.08),
        *measured(0.2, 0.04, 0.8, method="exact", given=INT4, prompt="p1"),
        *measured(0.1, 0.02, method="exact", given=FP8, prompt="p0"),
        *measured(0.3, "", method="exact", given=FP8, prompt="p1"),
        *measured(0.5, 0.01, method="h2o", budget=64, prompt="p0"),
    ]
    return tmp_path, written(tmp_path, results, losses)


def test_texts_are_averaged_and_their_errors_are_independent(two_texts):
    folder, frame = two_texts
    table = format_losses(frame, folder).set_index("format")
    assert list(table.index) == ["fp8_e4m3 scale=0.02", "int4", "source"]  # the lowest of a budget first
    int4 = table.loc["int4"]
    assert (int4["kld_mean"], int4["kld_median"], int4["kld_p99"]) == pytest.approx((0.3, 0.15, 2.7))
    # The first text has four draws: 0.03^2 + 0.08^2 / 4 = 0.05^2.
    assert int4["kld_mean_se"] == pytest.approx(math.hypot(0.05, 0.04) / 2)
    assert (int4["same_top"], int4["same_top_se"]) == pytest.approx((0.85, math.hypot(0.01, 0.01) / 2))
    assert (int4["total_bytes"], int4["bytes_ratio"]) == (1024, 0.25)
    assert list(table["n_texts"]) == [2, 2, 1]


def test_without_the_error_of_every_text_there_is_none(two_texts):
    folder, frame = two_texts
    table = format_losses(frame, folder).set_index("format")
    assert math.isnan(table["kld_mean_se"]["fp8_e4m3 scale=0.02"])
    assert table["kld_mean"]["fp8_e4m3 scale=0.02"] == pytest.approx(0.2)


def test_shares_of_clipped_numbers_are_means_over_heads(two_texts):
    folder, frame = two_texts
    table = format_losses(frame, folder).set_index("format")
    fp8 = table.loc["fp8_e4m3 scale=0.02"]
    assert (fp8["row_clipped"], fp8["row_flushed"]) == pytest.approx((111e-4 / 3, 0.002))


def test_seeds_are_averaged_before_texts(tmp_path):
    results = [row for seed in (0, 1) for row in cells("h2o", INT4, ("p0", "p1"), 64, seed)]
    place = {"method": "h2o", "given": INT4, "budget": 64}
    losses = measured(0.1, 0.03, seed=0, n_draws=4, kl_mean_sd=0.08, **place)
    losses += measured(0.3, 0.03, seed=1, n_draws=4, kl_mean_sd=0.08, **place)
    losses += measured(0.8, 0.04, seed=0, prompt="p1", **place)
    [row] = format_losses(written(tmp_path, results, losses), tmp_path).itertuples()
    assert row.kld_mean == pytest.approx(0.5)
    # Two seeds of the first text halve the variance of its draws, not that of its rows.
    assert row.kld_mean_se == pytest.approx(math.sqrt(0.03**2 + 0.08**2 / 4 / 2 + 0.04**2) / 2)


def test_only_the_main_selection_is_shown_and_the_rest_counted(tmp_path):
    results = cells("exact", INT4)
    losses = measured(0.4, 0.03, method="exact", given=INT4, selection="own")
    losses += measured(0.2, 0.03, method="exact", given=INT4)
    losses += failed_confirm(method="exact", given=INT4, budget="", layers="1")
    table = format_losses(written(tmp_path, results, losses), tmp_path)
    assert list(table["kld_mean"]) == [0.2]
    assert format_notes(table)[1] == (
        "left out: 1 instance, confirmed by an older version, or with another selection or other layers"
    )


def test_the_command_prints_the_table(two_texts, capsys):
    assert command.main(["formats", two_texts[0]]) == 0
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert out.splitlines()[0].startswith("format               method")
    assert re.search("KiB/head  % of full +KLD mean  median  99 % +% same top", out.splitlines()[0])
    [int4] = [line for line in lines if line[0] == "int4"]
    assert int4[1:] == ["exact", "int4", "–", "1.0", "25.0", "0.300", "±", "0.0320", "0.150", "2.70", "85.0",
                        "±", "0.707", "0", "0"]  # fmt: skip
    [h2o] = [line for line in lines if line[0] == "source"]
    assert h2o[1:3] == ["h2o", "64"]
    assert "means over 1 to 2 texts" in err
    assert "fp8_e4m3 scale=0.02 clips 1.00 % of the numbers in layer 2" in err


def test_traces_have_a_column_if_there_are_several(tmp_path):
    other = "ab" * 32
    results = cells("exact", INT4) + cells("exact", INT4, trace_id=other)
    losses = [
        row
        for trace in (TRACE, other)
        for row in measured(0.1, 0.01, method="exact", given=INT4, trace_id=trace)
    ]
    header, rows = format_cells(format_losses(written(tmp_path, results, losses), tmp_path))
    assert header[:2] == ["trace", "format"] and {row[0][0] for row in rows} == {TRACE[:8], "abababab"}


@pytest.mark.parametrize(
    ("losses", "why"),
    [
        (confirm_rows("exact", "", given=INT4), "was written by an older version; .*--force"),
        (failed_confirm(method="exact", given=INT4, budget=""), "holds no finished instance"),
        ([], "no such file, or no row in it"),
    ],
)
def test_a_table_without_measures_says_how_to_get_them(tmp_path, losses, why):
    frame = written(tmp_path, cells("exact", INT4), losses)
    with pytest.raises(ResultsError, match=why):
        format_losses(frame, tmp_path)


# --- Fixed scales ---------------------------------------------------------------------------------


def noted(folder, row_format, **shares):
    """The notes on one run of this row format."""
    return clipping_notes(written(folder, cells("exact", {"row_format": row_format}, **shares), []))


def test_a_clipping_scale_is_noted_with_the_worst_layer_and_a_remedy(tmp_path):
    assert noted(tmp_path, "fp8_e4m3", clipped=4e-5) == [
        "fp8_e4m3 with scale 1 clips 0.400 % of the numbers in layer 2, the largest share of a layer: choose"
        " another `scale`, or `scale: head`"
    ]


@pytest.mark.parametrize(
    ("row_format", "flushed", "count"),
    [
        ("fp8_e4m3", 0.04, 0),
        ("fp8_e4m3", 0.06, 1),
        ("nvfp4", 0.12, 0),
        ("nvfp4", 0.3, 1),
        ({"key": "fp8_e5m2", "value": "source"}, 0.06, 1),
        ({"key": "fp8_e5m2", "value": "nvfp4"}, 0.12, 0),
        ({"key": "fp8_e5m2", "value": "int4"}, 0.3, 0),
    ],
)
def test_zeros_are_noted_where_they_exceed_what_the_format_has_at_a_good_scale(
    tmp_path, row_format, flushed, count
):
    notes = noted(tmp_path, row_format, flushed=flushed)
    assert len(notes) == count and all("into zeros" in note for note in notes)


@pytest.mark.parametrize(
    "row_format",
    ["oscar", "mxfp4", "q4_0", {"name": "fp8_e4m3", "scale": "head"}, {"key": "fp8_e4m3", "value": "oscar"}],
)
def test_what_a_format_clips_by_its_own_rule_is_no_note(tmp_path, row_format):
    assert noted(tmp_path, row_format, clipped=1e-3, flushed=0.5) == []


def test_formats_by_age_or_head_are_noted_if_all_have_fixed_scales(tmp_path):
    choice = [{"newer_than": 8, "format": "source"}, {"format": "fp8_e4m3"}]
    [note] = noted(tmp_path, {"age": choice}, clipped=1e-3)
    assert note.startswith("<8 source | fp8_e4m3 with scale 1 clips 10.0 %")
    choice[0]["format"] = "oscar"
    assert noted(tmp_path, {"age": choice}, clipped=1e-3) == []


def test_the_page_has_the_sentence_among_its_notes(tmp_path):
    frame = written(tmp_path, cells("exact", FP8, clipped=1e-4), [])
    assert "fp8_e4m3 scale=0.02 clips 1.00 % of the numbers in layer 2" in notes_section(frame)
    assert notes_section(written(tmp_path, cells("exact", INT4), [])) == ""


def test_a_real_replay_has_notes_only_on_scales_that_lose():
    """On the sample's layer 15, scale 0.02 clips what `scale: head` does not, and its error is far larger."""
    formats = [{"name": "fp8_e4m3", "scale": scale} for scale in (1, 0.02, "head")]
    methods = [{"name": "exact", "row_format": each} for each in [*formats, "oscar", "int4"]]
    table = kvreplay.replay(SAMPLE, layers=[15], methods=methods).frame
    notes = clipping_notes(table)
    assert len(notes) == 1 and notes[0].startswith("fp8_e4m3 scale=0.02 clips 0.5")
    error = table.groupby("label")["rel_err_out_mean"].mean()
    assert error["exact fp8_e4m3 scale=0.02"] > 5 * error["exact fp8_e4m3 scale=head"]
    assert np.isclose(error["exact fp8_e4m3 scale=head"], error["exact fp8_e4m3"], rtol=0.2)
