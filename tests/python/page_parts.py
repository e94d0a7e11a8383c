"""A run's page cut down to what a test looks at: to draw all figures takes longer than all else."""

from functools import partial

from kvanalysis.plots import OVERVIEW, pictures_of


def only_plots(monkeypatch, *plots):
    """Of the figures of every run only these are drawn, for `report` and for `figures`."""
    chosen = [plot for plot in OVERVIEW if plot in plots]
    assert len(chosen) == len(plots)
    monkeypatch.setattr("kvanalysis.figures.make.pictures_of", partial(pictures_of, plots=chosen))


def without_sections(monkeypatch, *names):
    """The page has none of these sections: answer, loss, confirm or claims."""
    for name in names:
        monkeypatch.setattr(f"kvanalysis.page.report.{name}_section", lambda *_, **__: [])
