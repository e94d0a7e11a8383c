"""`kvreplay claims`: the claims of several folders of figures in one table."""

import json
from pathlib import Path

import pandas as pd
import pytest
from kvanalysis.errors import ConfigError, ResultsError
from kvanalysis.page.claims_by_model import claims_on_models, folders_in, read_claims, tables
from kvanalysis.stats.format import markdown
from kvreplay.program import main
from test_kvanalysis_report import figure_folder, verdict

HELD, FAILED, OPEN = "holds", "does not hold", "not decided"


def draw(folder, name, paper, *verdicts):
    return figure_folder(folder, name, paper, verdicts, pictures=0) / "figure.json"


@pytest.fixture
def folders(tmp_path):
    """Folders of two models; the second lacks BUZZ's figure."""
    one, two = tmp_path / "one", tmp_path / "two"
    draw(one, "h2o_fig2", "H2O", verdict(HELD, "sinks help"), verdict(HELD, "recent | tokens at 0.5"))
    draw(two, "h2o_fig2", "H2O", verdict(HELD, "sinks help"), verdict(FAILED, "recent | tokens at 0.7"))
    draw(one, "buzz_fig4", "BUZZ", verdict(OPEN, "segments win"))
    draw(one, "subgen_fig1", "SubGen", verdict("mixed", "keys cluster"))
    draw(two, "subgen_fig1", "SubGen", verdict(HELD, "keys cluster"))
    return {"One": one, "Two": two}


def words(folders):
    return [f"{name}={folder}" for name, folder in folders.items()]


def test_outcomes_of_a_claim_are_joined_over_models_despite_other_numbers(folders):
    claims = claims_on_models(read_claims(folders))
    assert [(claim.paper, claim.claim, claim.outcomes, claim.holds_on) for claim in claims] == [
        ("SubGen", "keys cluster", {"One": "mixed", "Two": HELD}, 1),
        ("H2O", "sinks help", {"One": HELD, "Two": HELD}, 2),
        ("H2O", "recent | tokens at 0.5", {"One": HELD, "Two": FAILED}, 1),
        ("BUZZ", "segments win", {"One": OPEN}, 0),
    ]


def test_tables_count_claims_by_paper_by_outcome_and_show_a_missing_figure_as_nothing(folders):
    (_, counted, papers), (_, outcomes, models), (_, header, rows) = tables(read_claims(folders))
    assert counted == ["paper", "2", "1", "0", "claims"]
    assert papers == [["SubGen", 0, 1, 0, 1], ["H2O", 1, 1, 0, 2], ["BUZZ", 0, 0, 1, 1], ["all", 1, 2, 1, 4]]
    assert outcomes == ["model", HELD, FAILED, "mixed", OPEN, "not testable offline", "claims"]
    assert models == [["One", 2, 0, 1, 1, 0, 4], ["Two", 2, 1, 0, 0, 0, 3]]
    assert header == ["paper", "figure", "claim", "source", "One", "Two", "holds on"]
    assert rows[-1] == ["BUZZ", "buzz_fig4", "segments win", "Table 1", OPEN, None, "0 of 1"]
    assert rows[0][4:] == ["mixed", HELD, "1 of 2"]


def test_models_keep_the_order_of_the_arguments(folders):
    back = {"Two": folders["Two"], "One": folders["One"]}
    *_, (_, header, rows) = tables(read_claims(back))
    assert header[4:6] == ["Two", "One"] and rows[-1][4:6] == [None, OPEN]


def test_the_command_prints_only_the_tables(folders, capsys):
    assert main(["claims", *words(folders)]) == 0
    out, err = capsys.readouterr()
    assert "| all | 1 | 2 | 1 | 4 |" in out and err == ""
    assert f"| H2O | h2o_fig2 | recent \\| tokens at 0.5 | Table 1 | {HELD} | {FAILED} | 1 of 2 |" in out
    assert f"| BUZZ | buzz_fig4 | segments win | Table 1 | {OPEN} | – | 0 of 1 |" in out


def test_a_quick_figure_is_named_as_such(folders, capsys):
    file = folders["Two"] / "h2o_fig2/figure.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quick": True}))
    assert main(["claims", *words(folders)]) == 0
    assert capsys.readouterr().err == "Two: --quick, a quick look and not a result: h2o_fig2\n"


def test_the_csv_has_a_row_for_each_claim_and_model(folders, tmp_path, capsys):
    file = tmp_path / "claims.csv"
    assert main(["claims", *words(folders), "--csv", str(file)]) == 0
    assert capsys.readouterr().err == f"{file}\n"
    table = pd.read_csv(file)
    assert len(table) == 7
    found = table[(table["model"] == "Two") & (table["outcome"] == FAILED)].iloc[0].to_dict()
    assert found == {
        "model": "Two", "figure": "h2o_fig2", "paper": "H2O", "number": "Fig. 2", "place": 2,
        "claim": "recent | tokens at 0.7", "source": "Table 1", "how": "paired", "outcome": FAILED,
        "numbers": "0.1 < 0.2", "quick": False,
    }  # fmt: skip


def test_claims_that_cannot_be_joined_leave_no_csv(folders, tmp_path):
    draw(folders["Two"], "buzz_fig4", "BUZZ", verdict(OPEN, "segments lose"))
    assert main(["claims", *words(folders), "--csv", str(tmp_path / "claims.csv")]) == 3
    assert not list(tmp_path.glob("*.csv*")) and not list(tmp_path.glob(".*"))


def test_different_claims_at_one_place_are_refused_with_both_files(folders):
    other = draw(folders["Two"], "buzz_fig4", "BUZZ", verdict(OPEN, "segments lose"))
    with pytest.raises(ResultsError) as raised:
        claims_on_models(read_claims(folders))
    first = folders["One"] / "buzz_fig4/figure.json"
    assert str(raised.value) == (
        f"{other}: claim 1 is 'segments lose' (Table 1), in {first} 'segments win' (Table 1);"
        " draw both from one configuration"
    )


def test_an_unknown_outcome_is_refused_with_its_file(folders, capsys):
    file = draw(folders["Two"], "buzz_fig4", "BUZZ", verdict("perhaps"))
    assert main(["claims", *words(folders)]) == 3
    out, err = capsys.readouterr()
    assert out == "" and str(file) in err and "outcome 'perhaps' is not one of holds, " in err


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_without_figures_is_refused_with_the_command_that_makes_them(
    folders, tmp_path, there, capsys
):
    empty = tmp_path / "empty"
    if there:
        empty.mkdir()
    assert main(["claims", *words(folders), str(empty)]) == 3
    said = f"{empty}: holds no NAME/figure.json; `kvreplay figures CONFIG -o {empty}` makes it"
    assert capsys.readouterr().err == f"kvreplay: error: {said}\n"


def test_a_folder_is_named_by_its_model_unless_renamed(tmp_path, monkeypatch):
    (tmp_path / "gemma").mkdir()
    monkeypatch.chdir(tmp_path / "gemma")
    found = folders_in(["figs/smol", "Other=figs/a=b", "."])
    assert {name: str(folder) for name, folder in found.items()} == {
        "smol": "figs/smol",
        "Other": "figs/a=b",
        "gemma": ".",
    }


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["a/figs", "b/figs"], "b/figs: a/figs is named figs too; choose another name with NAME=DIR"),
        (["=figs"], "=figs: write NAME=DIR, a model and its folder of figures"),
        (["Gemma="], "Gemma=: write NAME=DIR, a model and its folder of figures"),
    ],
)
def test_missing_and_repeated_names_are_refused(given, says, capsys):
    with pytest.raises(ConfigError) as raised:
        folders_in(given)
    assert str(raised.value) == says
    assert main(["claims", *given]) == 2
    assert capsys.readouterr().err == f"kvreplay: error: {says}\n"


def test_an_unwritable_csv_is_reported(folders, tmp_path, capsys):
    assert main(["claims", *words(folders), "--csv", str(tmp_path / "no/claims.csv")]) == 2
    assert capsys.readouterr().err.startswith("kvreplay: error: cannot write: ")


def test_an_interrupted_write_keeps_the_old_csv(folders, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    file = tmp_path / "claims.csv"
    file.write_text("old")
    monkeypatch.setattr(Path, "replace", full)
    assert main(["claims", *words(folders), "--csv", str(file)]) == 2
    assert file.read_text() == "old" and not list(tmp_path.glob(".*"))


def test_a_command_without_a_folder_is_bad_usage(capsys):
    with pytest.raises(SystemExit) as raised:
        main(["claims"])
    assert raised.value.code == 2 and "[NAME=]DIR" in capsys.readouterr().err


def test_a_cell_of_markdown_ends_neither_at_a_bar_nor_at_a_line_break():
    assert markdown(["a|b", 2], [["x\ny", None]]) == "| a\\|b | 2 |\n| --- | --- |\n| x y | – |"
