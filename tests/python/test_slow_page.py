"""The page that tests/slow.sh makes of all figures of the sample trace."""

import pytest
from kvreplay_cli import ROOT
from page_in_browser import look

PAGE = ROOT / "build/slow/figures/report.html"
MOST_BYTES = 3_000_000

pytestmark = pytest.mark.slow


def test_the_page_of_all_figures_stays_below_three_megabytes_and_leaves_none_out():
    assert PAGE.stat().st_size < MOST_BYTES
    assert "to keep this page small" not in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_of_all_figures_reads_well_in_a_browser(tmp_path, width):
    seen = look(PAGE, width, tmp_path)
    assert (seen.console, seen.requests) == ([], [])
    assert seen.scroll <= seen.client
    assert seen.sorted
