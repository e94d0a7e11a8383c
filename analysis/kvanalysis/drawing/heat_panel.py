"""One heat map with numbers in its cells, on a colour scale that several maps of a figure may share."""

from matplotlib import colormaps
from matplotlib.patches import Rectangle

DARK_BELOW = 0.55  # cells with a lower luminance get white text
MAP = "cividis"
CELL_TEXT = 5.8  # points


def heat_panel(axes, values, texts, norm, rows, columns, hatched=None):
    """`values` [R, C] as colours (NaN: white), `texts` [R, C] in the cells, names of rows and columns.

    `norm` maps a value to 0..1 and is shared between the panels of a figure. `hatched` [R, C] marks cells
    whose value is a bound, to distinguish them from measured values.
    """
    colours = colormaps[MAP](norm(values))
    for i in range(len(rows)):
        for j in range(len(columns)):
            _cell(axes, i, j, colours[i, j], texts[i][j], hatched is not None and hatched[i][j])
    axes.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    axes.set_xticks([j + 0.5 for j in range(len(columns))], columns)
    axes.set_yticks([i + 0.5 for i in range(len(rows))], rows)
    axes.tick_params(length=0)
    axes.grid(visible=False)


def _cell(axes, i, j, colour, text, hatched):
    if not text:
        colour = (1, 1, 1, 1)
    luminance = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
    ink = "white" if luminance < DARK_BELOW else "black"
    if hatched:
        axes.add_patch(Rectangle((j, i), 1, 1, facecolor="#F1F1F1", edgecolor="#BBBBBB", hatch="////", lw=0))
        ink = "black"
    else:
        axes.add_patch(Rectangle((j, i), 1, 1, facecolor=colour, edgecolor="white", lw=0.4))
    axes.text(j + 0.5, i + 0.5, text, ha="center", va="center", fontsize=CELL_TEXT, color=ink)
