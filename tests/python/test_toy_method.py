"""A new method is one file and one line (tests/toy): a program built with them has the method."""

import subprocess

import pandas as pd
from kvreplay_cli import ROOT, TOY


def run(*arguments):
    done = subprocess.run([TOY, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_file_and_one_line_make_a_method(tmp_path):
    lines = [x for x in (ROOT / "tests/toy/methods.list").read_text().splitlines() if x and x[0] != "#"]
    assert lines == ["every_other EveryOther", "loud_values LoudValues"]
    assert "every_other" in run("list", "methods")
    assert "last tokens that stay" in run("describe", "every_other")
    run("synth", "-o", tmp_path / "t.h5", "--tokens", "64", "--prompt", "48")
    run("run", tmp_path / "t.h5", "--method", "every_other", "--budget", "16", "-o", tmp_path / "out")
    rows = pd.read_csv(tmp_path / "out/results.csv")
    assert set(rows.method) == {"every_other"}
    assert (rows.peak_kept_tokens == 16).all()


def test_the_example_of_the_page_on_methods_is_a_method_of_the_tests():
    page = (ROOT / "lib/methods/README.md").read_text()
    assert (ROOT / "tests/toy/loud_values.hpp").read_text() == page.partition("```cpp\n")[2].partition("```")[
        0
    ]
    assert "last prompt rows that vote" in run("describe", "loud_values")
