"""The figure of row formats: its table, its pictures, and the configuration that tests the claims."""

import re

import pytest
from fake_figure import CONFIGS, config_context, draw, sketch
from kvanalysis.data.row_formats import COMPOSED, DEFAULTS, same_row_format
from kvanalysis.drawing.style import styled
from kvanalysis.errors import FigureError
from kvanalysis.figures.config import read_figure_config
from kvanalysis.plots.run.row_formats import FAMILIES, family_of
from kvanalysis.stats.verdict import HOLDS, UNDECIDED, UNTESTABLE
from kvreplay_cli import kvreplay
from test_kvanalysis_fake import TOKENS, failed_row, fake_row, write_results

INT4, INT8 = {"name": "int4", "group": 64}, {"name": "int8", "group": 64}
TURNED = INT4 | {"rotate": "hadamard"}
KEYS_ALONE = {"key": INT4, "value": "source"}
ERRORS = (0.1, 0.2, 0.1, 0.2, 0.15)


def rows_of(row_format, row_bytes, times=1.0):
    """Two heads in each of five layers; errors differ by plus or minus a tenth within a layer."""
    return [
        fake_row("exact", {"row_format": row_format}, "", layer=layer, kv_head=head,
                 rel_err=times * error * (0.9 + 0.2 * head), total_bytes=TOKENS * row_bytes)
        for layer, error in enumerate(ERRORS) for head in range(2)
    ]  # fmt: skip


ROWS = rows_of(INT8, 136, 0.1) + rows_of(INT4, 72) + rows_of(TURNED, 72, 0.7) + rows_of(KEYS_ALONE, 164, 0.8)


def test_the_table_has_bytes_of_a_row_and_the_error_of_each_layer(tmp_path):
    table = draw(tmp_path, "row_formats", ROWS, painted=True).table(1).set_index("format")
    assert list(table.index) == ["int8", "int4 hadamard", "int4", "K int4 + V source"]
    assert table["row_bytes"].tolist() == [136, 72, 72, 164]
    assert table.loc["int4", [f"layer_{i}" for i in range(5)]].tolist() == pytest.approx(ERRORS)
    assert table["mean"].tolist() == pytest.approx([0.015, 0.105, 0.15, 0.12])
    assert table["n_heads"].tolist() == [10] * 4
    assert table["rotated"].tolist() == [False, True, False, False]
    assert set(table["family"]) == {"integers"}


def test_a_deep_model_shows_some_layers_and_lists_all(tmp_path):
    rows = [fake_row("exact", {"row_format": INT4}, "", layer=i, total_bytes=TOKENS * 72) for i in range(30)]
    figure = draw(tmp_path, "row_formats", rows).figures[1]
    assert [name for name in figure.table if name.startswith("layer_")] == [f"layer_{i}" for i in range(30)]
    with styled():
        shown = [
            [text.get_text() for text in figure.draw(width).axes[0].get_xticklabels()]
            for _, width in figure.widths
        ]
    assert [len(texts) for texts in shown] == [11, 6]
    assert [(texts[0], *texts[-2:]) for texts in shown] == [("0", "29", "all")] * 2


def test_formats_that_change_nothing_are_no_points_against_bytes(tmp_path):
    plot = draw(tmp_path, "row_formats", ROWS)
    assert "K int4 + V source" not in set(plot.table(0)["format"])
    assert plot.figures[0].caption.endswith(": int4 hadamard (72, 0.105); int8 (136, 0.015).")


def test_a_run_of_one_part_has_only_the_table(tmp_path):
    plot = draw(tmp_path, "row_formats", rows_of(KEYS_ALONE, 164) + rows_of("source", 256, 0), painted=True)
    assert [figure.title for figure in plot.figures] == ["Error by row format and layer"]


def test_failed_cells_are_counted_and_a_run_without_others_is_refused(tmp_path):
    failed = [failed_row(method="exact", params={"row_format": INT4}, budget="", layer=7)]
    assert (
        draw(tmp_path, "row_formats", ROWS + failed)
        .figures[1]
        .caption.endswith("1 of 41 cells have no result.")
    )
    with pytest.raises(FigureError, match="row_formats needs finished cells of exact"):
        draw(tmp_path / "none", "row_formats", failed)


@pytest.mark.parametrize(
    ("row_format", "family"),
    [
        ("mxfp8", "8-bit floats"),
        ("mxfp4", "4-bit floats"),
        ("q4_0", "integers of llama.cpp"),
        ({"key": "source", "value": {"name": "tq_mse", "bits": 2}}, "rotated codebooks"),
        ({"key": "kivi", "value": "int4"}, "keys by channel"),
        ("bf16", "other"),
    ],
)
def test_a_format_belongs_to_the_family_of_its_keys(row_format, family):
    assert family_of(row_format) == family
    assert family in FAMILIES


CONFIG = read_figure_config(CONFIGS / "rows_claims.yaml")
[ENTRY] = CONFIG.sweep["methods"]


def selections():
    """(claim, row format) of everything that the claims select."""
    for claim in CONFIG.options["claims"]:
        for side in ("lower", "higher", "shown"):
            if side in claim:
                yield claim["claim"], claim[side]


def test_claims_select_one_format_that_the_configuration_runs():
    for claim, selection in selections():
        assert selection["method"] == ENTRY["name"]
        same = [each for each in ENTRY["row_format"] if same_row_format(each, selection["row_format"])]
        assert len(same) == 1, (claim, selection)


def test_every_format_of_the_configuration_is_in_a_claim():
    for each in ENTRY["row_format"]:
        assert any(same_row_format(each, wanted["row_format"]) for _, wanted in selections()), each


def test_the_configuration_judges_its_claims_on_such_rows(tmp_path):
    errors = {"turboquant_k8v4": 0.5, "turboquant_4bit_nc": 0.6, "turboquant_k3v4_nc": 0.7}
    rows = [row for name, times in errors.items() for row in rows_of({"name": name}, 70, times)]
    write_results(tmp_path / "run", rows, columns=list(rows[0]))
    plot = sketch(config_context("rows_claims", tmp_path))
    found = {verdict.claim: verdict.outcome for verdict in plot.verdicts}
    assert len(found) == len(CONFIG.options["claims"])
    assert found["turboquant_k8v4 has a lower error than turboquant_4bit_nc, in every layer"] == HOLDS
    assert found["turboquant_k3v4_nc has a lower error than turboquant_3bit_nc, in every layer"] == UNDECIDED
    assert [verdict.outcome for verdict in plot.verdicts].count(UNTESTABLE) == 1
    assert all(verdict.numbers for verdict in plot.verdicts)


@pytest.mark.parametrize("name", DEFAULTS)
def test_short_names_omit_only_the_programs_defaults(name):
    """A changed default would hide a parameter that an instance sets."""
    said = kvreplay("describe", name)
    assert said.returncode == 0, said.stderr
    table = re.search(r"^parameter .*\n((?:.+\n)+)", said.stdout, re.M)
    printed = dict(re.split(r" {2,}", line)[:2] for line in (table[1] if table else "").splitlines())
    own = {key: value for key, value in DEFAULTS[name].items() if key not in COMPOSED}
    assert printed.keys() == own.keys()
    for key, value in own.items():
        text = str(value).replace(" ", "")
        assert printed[key] == (text.lower() if isinstance(value, bool) else text), key
