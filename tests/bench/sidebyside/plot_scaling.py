"""The figure of the scaling run: time and memory over tokens."""

from kvanalysis.drawing.style import COLOURS, MARKERS, new_figure, styled

WIDTH, HEIGHT, DPI = 5.2, 2.4, 150
GREY = "#777777"


def series(rows, column):
    """{what: (tokens, values)} of the measurements, in the order of the rows."""
    found = {}
    for row in rows:
        if row[column] in ("", None):
            continue
        tokens, values = found.setdefault(row["what"], ([], []))
        tokens.append(int(row["tokens"]))
        values.append(float(row[column]))
    return found


def tick_text(tokens):
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)


def panel(axes, rows, column, label):
    names = list(dict.fromkeys(row["what"] for row in rows))
    for name, (tokens, values) in series(rows, column).items():
        i = names.index(name)
        look = {
            "color": COLOURS[i % len(COLOURS)],
            "marker": list(MARKERS)[i % len(MARKERS)],
            "markersize": 3,
        }
        axes.plot(tokens, values, label=name.replace("_", " "), **look)
    ticks = sorted({int(row["tokens"]) for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks[::2], [tick_text(t) for t in ticks[::2]])
    axes.set(xlabel="tokens", ylabel=label)


def linear_guide(axes, rows):
    """A line of slope one through the largest time."""
    top = max(rows, key=lambda row: float(row["cpu_min_s"]))
    tokens = sorted({int(row["tokens"]) for row in rows})
    values = [float(top["cpu_min_s"]) * t / int(top["tokens"]) for t in tokens]
    axes.plot(tokens, values, color=GREY, linestyle=":", linewidth=1, label="linear in tokens")


def figure_of(rows):
    """Two panels: CPU seconds on one thread (log-log), peak resident MiB with two. Call inside `styled()`."""
    figure = new_figure(WIDTH)
    figure.set_size_inches(WIDTH, HEIGHT)
    figure.set_layout_engine("constrained")
    time, memory = figure.subplots(1, 2)
    panel(time, rows, "cpu_min_s", "CPU seconds, one thread")
    time.set_yscale("log")
    linear_guide(time, rows)
    panel(memory, rows, "rss_two_threads_mib", "peak MiB, two threads")
    memory.set_ylim(0, None)
    handles, labels = time.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure


def draw(rows, path):
    with styled():
        figure_of(rows).savefig(path, dpi=DPI, metadata={"Software": None})
