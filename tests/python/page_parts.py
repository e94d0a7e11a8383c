"""Reduces a run's page to the parts that a test checks, since drawing all figures takes most of the time."""

from functools import partial

from kvanalysis.plots import OVERVIEW, pictures_of


def only_plots(monkeypatch, *plots):
    """Restricts the figures of `report` and `figures` to these plots."""
    chosen = [plot for plot in OVERVIEW if plot in plots]
    assert len(chosen) == len(plots)
    monkeypatch.setattr("kvanalysis.figures.make.pictures_of", partial(pictures_of, plots=chosen))


def without_sections(monkeypatch, *names):
    """Leaves these sections out of the page: answer, loss, confirm or claims."""
    for name in names:
        monkeypatch.setattr(f"kvanalysis.page.report.{name}_section", lambda *_, **__: [])
