"""The leaderboard: which methods are ranked together, at which size, and the page's text about the others."""

from functools import partial

import pandas as pd
import pytest
from fake_figure import draw, make_context
from kvanalysis.drawing.saving import save
from kvanalysis.errors import FigureError
from kvanalysis.figures.config import read_figure_config
from kvanalysis.figures.make import result_of
from kvanalysis.figures.steps import RunOptions
from kvanalysis.page.leaderboard import make_leaderboard, render
from kvanalysis.plots.run import leaderboard
from kvreplay.program import main
from kvreplay_cli import ROOT
from test_kvanalysis_fake import COLUMNS, ROW_BYTES, TOKENS, fake_row, write_results

MORE = ("given", "budget_share", "read_bytes_per_step")
FULL = TOKENS * ROW_BYTES


def heads(method, error, share=0.5, budget=64, asked="", **changes):
    """A method's cells in six layers."""
    changes = {"total_bytes": share * FULL, "budget_share": asked, "read_bytes_per_step": FULL / 8} | changes
    return [
        fake_row(method, budget=budget, layer=layer, rel_err=error + layer / 1000, **changes)
        for layer in range(6)
    ]


STREAM = [
    *heads("h2o", 0.2, 0.099, asked="0.1"), *heads("tova", 0.1, 0.1, asked="0.1"),
    *heads("topk_oracle", 0.05, 0.1, asked="0.1"),
]  # fmt: skip
READS = [
    row
    for budget, scale in ((64, 1), (128, 0.5))
    for row in (
        *heads("quest", 0.4 * scale, 1.06, budget, peak_kept_tokens=TOKENS),
        *heads("pqcache", 0.3 * scale, 1.02, budget, peak_kept_tokens=TOKENS),
    )
]
OWN = [*heads("duo_attention", 0.3, 0.6, budget=""), *heads("qjl", 0.2, 0.2, budget="")]


def ranked(folder, **steps):
    for step, rows in steps.items():
        write_results(folder / step, rows, columns=(*COLUMNS, *MORE))
    return leaderboard.data(make_context(folder, "leaderboard", steps=tuple(steps)))


def test_a_step_is_ranked_at_its_requested_shares_and_ceilings_do_not_count(tmp_path):
    table = ranked(tmp_path, stream=STREAM)
    assert set(table["size"]) == {"10 % of the full cache’s bytes"}
    assert table["label"].tolist() == ["tova", "h2o", "topk_oracle"]
    assert table["ceiling"].tolist() == [False, False, True]
    assert table["error"].tolist() == pytest.approx([0.1025, 0.2025, 0.0525])
    assert table["stored"].tolist() == pytest.approx([0.1, 0.099, 0.1])


def test_methods_that_store_everything_are_ranked_at_equal_reads(tmp_path):
    table = ranked(tmp_path, reads=READS)
    assert table["size"].unique().tolist() == ["64 tokens read in a step", "128 tokens read in a step"]
    assert table["label"].tolist() == ["pqcache", "quest"] * 2
    assert table["stored"].tolist() == pytest.approx([1.02, 1.06] * 2)
    assert table["read"].tolist() == pytest.approx([1 / 8] * 4)
    assert set(table["how"]) == {""}


def test_methods_that_store_everything_compete_also_where_results_know_the_prompts_bytes(tmp_path):
    known = {"prompt_bytes": 7 * ROW_BYTES, "prompt_full_bytes": 6 * ROW_BYTES}
    write_results(tmp_path / "reads", [row | known for row in READS], columns=(*COLUMNS, *MORE, *known))
    table = leaderboard.data(make_context(tmp_path, "leaderboard", steps=("reads",)))
    assert table["label"].tolist() == ["pqcache", "quest"] * 2
    assert table["loss"].notna().all()


def test_a_step_is_ranked_at_shares_of_the_bytes_that_it_was_asked_for(tmp_path):
    known = {"prompt_full_bytes": 100 * ROW_BYTES}
    rows = [
        row | known | {"prompt_bytes": share * ROW_BYTES}
        for name, error, share in (("h2o", 0.2, 10), ("snapkv", 0.1, 9))
        for row in heads(name, error, 0.4, asked="0.1")
    ]
    columns = (*COLUMNS, *MORE, *known, "prompt_bytes")
    write_results(tmp_path / "cut", rows, columns=columns, meta={"budget_of": "prompt"})
    table = leaderboard.data(make_context(tmp_path, "leaderboard", steps=("cut",)))
    assert set(table["size"]) == {"10 % of the prompt’s full cache"}
    assert table["label"].tolist() == ["snapkv", "h2o"]
    assert table["stored"].tolist() == pytest.approx([0.09, 0.1])


def test_methods_without_a_budget_are_listed_with_sizes_and_without_tests(tmp_path):
    table = ranked(tmp_path, own=OWN)
    assert table["label"].tolist() == ["qjl", "duo_attention"]
    assert table["stored"].tolist() == pytest.approx([0.2, 0.6])
    assert table["decided"].isna().all()


def test_a_method_that_cannot_get_that_small_is_last_with_the_reason(tmp_path):
    rows = [*STREAM, *heads("buzz", 0.01, 0.14, asked="0.2"), *heads("h2o", 0.15, 0.2, 128, asked="0.2")]
    table = ranked(tmp_path, stream=rows)
    last = table[(table["label"] == "buzz") & table["size"].str.startswith("10 %")].iloc[0]
    assert pd.isna(last["error"])
    assert last["how"] == "smallest size here is 14.0 % of the full cache"


def test_methods_with_equal_numbers_share_a_row_with_their_parameters(tmp_path):
    same = heads("snapkv", 0.1, asked="0.5", given={"window": 32}), heads("pyramidkv", 0.1, asked="0.5")
    table = ranked(tmp_path, oneshot=[row for rows in same for row in rows])
    assert table["name"].tolist() == ["snapkv window=32 = pyramidkv"]


def test_the_pictures_show_each_step_at_both_widths(tmp_path):
    given = {"stream": STREAM, "reads": READS, "own": OWN}
    made = draw(tmp_path, "leaderboard", given, {"titles": {"reads": "Reads"}}, more=MORE[1:], painted=True)
    assert [picture.title for picture in made.figures] == ["stream", "Reads", "own"]


def test_the_page_holds_every_table_and_the_absent_methods(tmp_path, monkeypatch):
    monkeypatch.setattr("kvanalysis.figures.make.save", partial(save, pdf=False))
    table = ranked(tmp_path, stream=STREAM, reads=READS)
    options = {"titles": {"stream": "Streaming"}, "absent": {"KVzap": "Its scores are <trained>."}}
    context = make_context(tmp_path, "leaderboard", options, ("stream", "reads"))
    page = render(context, result_of(leaderboard, context), table, tmp_path)
    assert page.count('<table class="sortable">') == 3
    assert "<h2>Streaming</h2>" in page and "topk_oracle (ceiling)" in page
    assert "Its scores are &lt;trained&gt;." in page


def test_another_kind_of_configuration_is_refused(tmp_path, capsys):
    config = ROOT / "configs/figures/h2o_fig1.yaml"
    with pytest.raises(FigureError, match="a leaderboard has kind: leaderboard"):
        make_leaderboard(read_figure_config(config), tmp_path, RunOptions())
    assert main(["leaderboard", str(config), "-o", str(tmp_path)]) == 2
    assert "a leaderboard has kind: leaderboard" in capsys.readouterr().err


def test_the_documentation_names_the_absent_methods_of_the_configuration():
    absent = read_figure_config(ROOT / "configs/leaderboard.yaml").options["absent"]
    page = (ROOT / "docs/leaderboard.md").read_text()
    assert [name for name in absent if f"| {name} |" not in page] == []
