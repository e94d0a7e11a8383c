"""The interactive figure of error against bytes, with tooltips and a choice of layers and measure.

Bokeh draws it. The page carries Bokeh's program, compressed, which replaces the static pictures once it runs.
With scripts turned off, the page shows the pictures.
"""

import base64
import gzip
import json
from html import escape
from importlib.util import find_spec

from ..answer.sizes import PEAK, PROMPT, default_size
from ..drawing.budget_axes import MOST_CURVES
from ..plots.run.bytes_classes import Classes, asked_shares
from ..stats.families import ONESHOT, PHASES
from .curves_data import curves_data
from .html import Html, paragraph
from .interactive_script import GLUE, UNPACK

ABSENT = (
    "This page has pictures only. To make it interactive, install Bokeh (pip install 'bokeh>=3.4') and draw"
    " the report again."
)
HEIGHT, ROW = 360, 17  # pixels: height of a panel of curves, and of a line of dots
# Addresses of icons, mathematics and maps in Bokeh's program; pages use none of them.
ELSEWHERE = ("https://cdn.jsdelivr.net", "https://maps.googleapis.com")
FIRST_CLASS = 2  # index in EDGES: the class shown at first
TICKS = (0.5, 1, 2, 5, 10, 20, 40, 60, 100, 200)
NAME_SHARE = 0.48  # share of the axes' width, right of the curves, for their names
TOOLTIP = """<div style="max-width:19rem;white-space:normal;color:#1a1a1a;font-size:12px">
<b>@label</b>, budget @budget<br>@kib KiB a head, @x % of the bytes<br>value @loss, @heads heads<br>
<span style="overflow-wrap:anywhere">@params</span></div>"""


def interactive(frame, styles, static):
    """Parts of HTML: `static`, and the figure that replaces it where scripts run; without Bokeh, a line says
    so."""
    data = curves_data(frame, styles)
    shares = [x for view in data["views"] for x in view["x"] if x]
    if find_spec("bokeh") is None or not shares:
        return [*static, *([paragraph(ABSENT, "aside")] if shares else [])]
    many = len(set(data["points"]["label"])) > MOST_CURVES
    classes = _classes(frame, data)
    data |= {
        "edges": [edge if edge < 1e9 else None for edge in classes.edges],
        "row": ROW,
        "oneshot": PHASES[ONESHOT],
    }
    figures = _dots() if many else _curves(data["families"], shares, data["whole"])
    return [
        Html(f'<div id="static">{"".join(static)}</div>'),
        Html(f'<div id="live" hidden>{_choices(data, classes if many else None)}'
             f'<div class="plots">{_places(figures)}</div><p id="above" class="aside"></p></div>'),
        _packed(figures, data),
    ]  # fmt: skip


def _classes(frame, data):
    """The classes of bytes over all layers."""
    asked = asked_shares(frame, PROMPT if default_size(frame) == PROMPT else PEAK)
    points, shares = data["points"], data["views"][0]["x"]
    budgets = [-1 if budget is None else budget for budget in points["budget"]]
    keys = zip(points["label"], budgets, strict=True)
    known = [(x, asked.get(key, ())) for x, key in zip(shares, keys, strict=True) if x is not None]
    return Classes(*(zip(*known, strict=True) if known else ([], [])), data["whole"])


def _choices(data, classes):
    views = [(number, view["name"]) for number, view in enumerate(data["views"])]
    words = [_select("view", "layers", views), _select("measure", "measure", data["measures"].items())]
    if classes:
        places = range(1, len(classes.edges))
        asked = [place for place in places if classes.is_asked(place)]
        first = asked[len(asked) // 2] if asked else FIRST_CLASS
        words.append(_select("class", "bytes", [(each, classes.words(each)) for each in places], first))
    return f'<div class="choices">{"".join(words)}</div>'


def _select(name, text, options, first=None):
    marks = {True: " selected", False: ""}
    lines = "".join(
        f'<option value="{escape(str(value))}"{marks[value == first]}>{escape(str(words))}</option>'
        for value, words in options
    )
    return f'<label>{text} <select id="choose-{name}">{lines}</select></label>'


def _places(figures):
    return "".join(f'<div class="plot" id="plot-{name}"></div>' for name in figures)


def _packed(figures, data):
    """Bokeh, the figures and the glue as one compressed text, and the script that unpacks it."""
    from bokeh.embed import json_item
    from bokeh.resources import Resources

    bokeh = Resources(mode="inline", components=["bokeh"]).js_raw[0]
    for host in ELSEWHERE:
        bokeh = bokeh.replace(host, "data:,")
    items = [json_item(figure, f"plot-{name}") for name, figure in figures.items()]
    told = json.dumps({"items": items, "data": data}, separators=(",", ":"))
    program = f"{bokeh}\n;const told = {told};\n{GLUE}"
    coded = base64.b64encode(gzip.compress(program.encode(), 6, mtime=0)).decode("ascii")
    return Html(f'<script type="text/plain" id="packed">{coded}</script>\n<script>{UNPACK}</script>')


def _source(*columns):
    from bokeh.models import ColumnDataSource

    return ColumnDataSource({name: [] for name in columns})


POINT = ("x", "y", "low", "high", "label", "params", "budget", "kib", "heads", "colour", "marker", "loss")


def _figure(name, height, **ranges):
    from bokeh.plotting import figure

    plot = figure(
        name=name, height=height, sizing_mode="stretch_width", tools="", toolbar_location=None,
        output_backend="svg", **ranges,
    )  # fmt: skip
    plot.outline_line_color = None
    plot.grid.grid_line_color = "#e4e4e4"
    plot.axis.minor_tick_line_color = None
    plot.axis.axis_label_text_font_style = "normal"
    plot.axis.major_label_text_color = plot.axis.axis_label_text_color = "#1a1a1a"
    return plot


def _curves(families, shares, whole):
    """{family: figure}; the glue fills the sources named points, lines and ends, and sets the range of y."""
    from bokeh.models import Range1d

    low, high = min(shares) / 1.15, max(shares) * 1.1
    end = low * (high / low) ** (1 / (1 - NAME_SHARE))
    figures = {}
    for family in families:
        ranges = {"x_range": Range1d(low, end), "y_range": Range1d(0.1, 1)}
        plot = _figure(family, HEIGHT, x_axis_type="log", y_axis_type="log", **ranges)
        plot.title.text = PHASES[family]
        # A phone is too narrow for one line.
        plot.xaxis.axis_label = f"bytes [% of {whole}]".replace(", ", ",\n")
        plot.yaxis.axis_label = "error"
        plot.xaxis.ticker = [tick for tick in TICKS if low <= tick <= high]
        _loss_axis(plot.yaxis)
        _glyphs(plot, high)
        figures[family] = plot
    return figures


def _loss_axis(axis):
    """The glue sets label and ticks: Bokeh's own ticks are linear over less than two decades."""
    from bokeh.models import CustomJSTickFormatter, FixedTicker

    axis.name = "loss_axis"
    axis.ticker = FixedTicker()
    axis.formatter = CustomJSTickFormatter(code="return `${+tick.toPrecision(3)}`")


def _glyphs(plot, edge):
    lines, points = _source("xs", "ys", "colour", "dash"), _source(*POINT)
    ends = _source("x", "y", "x1", "y1", "label", "colour", "marker")
    lines.name, points.name, ends.name = (f"{name}_{plot.name}" for name in ("lines", "points", "ends"))
    ends.tags = [edge]
    plot.segment("x", "y", "x1", "y1", source=ends, line_color="#b5b5b5")
    plot.multi_line("xs", "ys", source=lines, line_color="colour", line_dash="dash", line_width=1.8)
    plot.segment("x", "low", "x", "high", source=points, line_color="colour", line_alpha=0.55)
    _points(plot, points)
    plot.scatter("x1", "y1", source=ends, marker="marker", color="colour", size=8)
    plot.text("x1", "y1", "label", source=ends, x_offset=8, text_baseline="middle", text_font_size="12px",
              text_color="#1a1a1a")  # fmt: skip


def _points(plot, points, x="x", y="y"):
    from bokeh.models import HoverTool

    dots = plot.scatter(x, y, source=points, marker="marker", color="colour", size=8)
    plot.add_tools(HoverTool(renderers=[dots], tooltips=TOOLTIP))


def _dots():
    """{"classes": figure}: a line for each label in the chosen class of bytes."""
    from bokeh.models import FactorRange, Range1d

    plot = _figure(
        "classes", 300, x_axis_type="log", x_range=Range1d(0.1, 1), y_range=FactorRange(factors=["h2o"])
    )
    points = _source(*POINT, "place")
    points.name = "points_classes"
    plot.segment("low", "place", "high", "place", source=points, line_color="colour", line_alpha=0.7)
    _points(plot, points, "y", "place")
    _loss_axis(plot.xaxis)
    plot.yaxis.major_label_text_font_size = "12px"
    plot.ygrid.grid_line_color = "#f0f0f0"
    return {"classes": plot}
