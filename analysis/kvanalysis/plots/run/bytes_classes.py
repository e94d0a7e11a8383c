"""Many methods in a list, sorted by their error, with a panel for each class of bytes.

A class ends at one of EDGES or at a share that the run was asked for.
"""

from functools import partial

import numpy as np

from ...answer.sizes import is_share_of
from ...data.shares import by_share
from ...drawing.budget_axes import set_error_axis
from ...drawing.log_ticks import plain_log, subs_for
from ...drawing.panel_grid import finish_grid, panel_grid
from ...drawing.room import text_width
from ...drawing.saving import Picture
from ...drawing.style import COLUMN_WIDTH, PAGE_WIDTH, new_figure
from ...stats.families import ONESHOT, PHASES

WHOLE = {"prompt_share": "the prompt’s full cache", "peak_share": "the full cache"}
EDGES = (0, 10, 20, 40, 70, np.inf)  # per cent of the full cache; an upper edge belongs to its class
MOST_ROWS = 16  # rows of a panel
ROW_HEIGHT, NAME_SIZE = 0.118, 5.8  # inches, points
LETTERS = 35  # letters of a name
ACROSS = {COLUMN_WIDTH: 1, PAGE_WIDTH: 2}
FEWER = (1, 3)  # ticks on a narrow axis: these times powers of ten
MARGIN = 1.15  # factor beyond the smallest and the largest error
TITLES = 0.62  # inches between two rows of panels: ticks, label, title
NAMES_ASIDE = 0.15  # inches of white around the names
ROUNDING = 1e-9  # per cent


def classes_picture(title, points, styles, caption, name, words):
    """The Picture of `points` from plots.run.error_vs_bytes; `words` name the measure."""
    table = class_rows(points)
    note = (
        f"The lowest error of each method in the class; at most {MOST_ROWS} methods of a class, the"
        " others are in the CSV. Bars: 95 % intervals. Black and grey: oracles. Bytes: everything that is"
        " stored for one kv head, at the peak or after the prompt is cut, as the panels’ titles say."
    )
    return Picture(title, table, partial(_figure, table, styles, note, words), caption, name=name)


def class_rows(points):
    """The point with the lowest error for each class of bytes and label, sorted; columns of `points` and
    `bytes_class`, the class in words."""
    size = "prompt_share" if "prompt_share" in points else "peak_share"
    asked = [read_asked(text) for text in points["asked"]] if "asked" in points else [()] * len(points)
    found = Classes(100 * points[size].to_numpy(float), asked, WHOLE[size])
    rows = points.assign(place=found.places).sort_values(["place", "loss"], kind="stable")
    rows = rows.drop_duplicates(["place", "label"]).reset_index(drop=True)
    return rows.assign(bytes_class=[found.words(each) for each in rows.pop("place")])


class Classes:
    """The classes of points of `shares` per cent of `whole`; `asked`: for each point the shares that it was
    replayed for, in per cent."""

    def __init__(self, shares, asked, whole):
        self.asked, self.whole = asked, whole
        self.edges = (0, *sorted({*EDGES[1:], *(share for each in asked for share in each)}))
        places = np.searchsorted(self.edges, np.asarray(shares, dtype=float) - ROUNDING, side="left")
        self.places = np.clip(places, 1, len(self.edges) - 1)

    def words(self, place):
        """The words for the class that ends at edges[place]: one share, if all of its points were replayed
        for that share."""
        low, high = self.edges[place - 1], self.edges[place]
        said = f"above {low:g}" if np.isinf(high) else f"{low:g} to {high:g}"
        return f"{high:g} % of {self.whole}" if self.is_asked(place) else f"{said} % of {self.whole}"

    def is_asked(self, place):
        own = [asked for asked, its in zip(self.asked, self.places, strict=True) if its == place]
        return bool(own) and all(self.edges[place] in each for each in own)


def asked_shares(rows, of):
    """{(label, budget, -1 for none): shares in per cent that it was replayed for}, for `load`'s table whose
    runs were asked for shares of the bytes `of` (answer.sizes); else empty."""
    if not is_share_of(rows.attrs.get("meta", {}), of):
        return {}
    asked = by_share(rows).dropna(subset=["share"])
    budgets = asked["budget_tokens"].fillna(-1).astype(int)
    shares = asked["share"].groupby([asked["label"], budgets]).unique()
    return {
        key: tuple(round(100 * float(share), 9) for share in sorted(each)) for key, each in shares.items()
    }


def asked_text(shares):
    """Shares in per cent as a cell of a table: "10;20"."""
    return ";".join(f"{share:.12g}" for share in shares)


def read_asked(text):
    """The shares in a text from `asked_text`."""
    return tuple(float(part) for part in text.split(";") if part)


def _figure(table, styles, note, words, width):
    classes = list(dict.fromkeys(table["bytes_class"]))
    shown = [table[table["bytes_class"] == words].head(MOST_ROWS) for words in classes]
    figure, across = new_figure(width), min(ACROSS[width], len(classes))
    tallest = [max(map(len, shown[first : first + across])) for first in range(0, len(shown), across)]
    panels = panel_grid(figure, len(classes), across, sharex=True, height_ratios=[n + 1 for n in tallest])
    for axes, title, rows in zip(panels, classes, shown, strict=True):
        _panel(axes, rows, styles, tallest[axes.get_subplotspec().rowspan.start])
        axes.set_title(title, loc="right")
        axes.tick_params(labelbottom=True)
    _error_axis(panels[0], table, width)
    for axes in panels[-across:]:
        axes.set_xlabel(words, loc="right")
    height = ROW_HEIGHT * (sum(tallest) / len(tallest) + 1)
    names = [_name(row) for rows in shown for row in rows.itertuples()]
    room = NAMES_ASIDE + text_width(figure, names, NAME_SIZE)
    wspace = room / ((width - across * room) / across - 0.1)
    finish_grid(figure, ([], []), note, len(classes), across, height, gap=TITLES / height, wspace=wspace)
    figure.subplots_adjust(left=room / width)
    return figure


def _panel(axes, rows, styles, places):
    for place, row in enumerate(rows.itertuples()):
        style = styles[row.label]
        axes.plot([row.loss_low, row.loss_high], [place, place], color=style.colour, linewidth=1)
        axes.plot(row.loss, place, style.marker, color=style.colour, markersize=3.5)
    axes.set_yticks(range(len(rows)), [_name(row) for row in rows.itertuples()], fontsize=NAME_SIZE)
    axes.set_ylim(places - 0.2, -0.8)  # the lowest error on top


def _name(row):
    text = f"{row.label}, {PHASES[ONESHOT]}" if row.family == ONESHOT else row.label
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"


def _error_axis(axes, table, width):
    """Sets the error axis, along x, on the scale that `set_error_axis` chooses."""
    errors = table["loss"]
    errors = errors[errors < 1] if (errors < 1).any() else errors
    set_error_axis(axes, errors, "x")
    if axes.get_xscale() == "log":
        plain_log(axes.xaxis, subs_for(errors) if width > COLUMN_WIDTH else FEWER)
        axes.set_xlim(left=errors.min() / MARGIN)
    axes.set_xlim(right=1 if errors.max() < table["loss"].max() else errors.max() * MARGIN)
