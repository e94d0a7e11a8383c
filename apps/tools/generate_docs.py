"""Writes the parts of the documentation that come from the program's output.

usage: apps/tools/generate_docs.py [--check] [--sample]
docs/methods.md comes from the descriptions of the methods, docs/row_formats.md from
those of the row formats, and the table of docs/theory.md from `kvreplay bounds` on the sample trace.
--sample also writes docs/methods_on_sample.md, from a run of configs/methods.yaml on the sample trace (a
minute or two), and the README's figure, docs/error_vs_bytes.png, from a run of configs/quickstart.yaml. The
figure needs kvanalysis, and --check skips it, because its pixels depend on matplotlib's version.
--check writes nothing and exits 1 if a page differs. KVREPLAY names the binary, default
build/release/kvreplay.
"""

import csv
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "apps/tools")]

from markers import filled  # noqa: E402

BINARY = os.environ.get("KVREPLAY", str(ROOT / "build/release/kvreplay"))
SAMPLE = ROOT / "traces/samples/smollm2-135m.h5"

SAMPLE_CONFIG = ROOT / "configs/methods.yaml"
SAMPLE_PAGE = ROOT / "docs/methods_on_sample.md"
SAMPLE_SEEDS = 3
SAMPLE_HEAD = """# All methods on the sample trace

This table compares all methods on SmolLM2-135M: 640 prompt tokens and 64 decode tokens of the sample,
10 layers, all 30 kv heads, float32 arithmetic. Random methods are averaged over
{seeds} seeds. `apps/tools/generate_docs.py --sample` writes this page from a run of `configs/methods.yaml`.

`error` is `rel_err_out_mean`, `bytes` the exact `total_bytes` of one kv head (the full cache takes
{full}), both means over heads. One-shot methods keep every later token, so compare methods by bytes,
not by budget. The mean of `balancekv_stream` is due to one head, layer 18, kv head 2, where its output is
off by orders of magnitude in some rows. The median over heads and seeds is 0.60.

"""

NOTES_HEAD = """
Notes of the run on these numbers ([troubleshooting.md](troubleshooting.md#notes-on-the-numbers)):

"""


def say(*words):
    """The program's output on stdout; raises CalledProcessError if it fails."""
    return subprocess.run([BINARY, *map(str, words)], check=True, capture_output=True, text=True).stdout


def methods_page():
    """A table of all methods, and then each with its parameters."""
    head, _, methods = say("describe", "all", "--markdown").partition("\n## ")
    table = say("list", "methods", "--markdown").replace("docs/methods.md#", "#")
    return f"{head}\n{table}\n## {methods}"


def formats_page():
    return say("list", "formats", "--markdown")


def markdown_table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def theory_page():
    fractions = ("0.3", "0.5", "0.7", "0.9")
    words = ("bounds", "subgen", "balancekv", "--trace", SAMPLE, "--delta-rel", ",".join(fractions), "--csv")
    rows = list(csv.DictReader(io.StringIO(say(*words))))

    def span(layer, column, digits, **wanted):
        """Smallest and largest value of a column, over the layer's rows with the wanted values."""
        wanted["layer"] = layer
        found = [float(r[column]) for r in rows if all(r[k] == v for k, v in wanted.items())]
        return f"{min(found):.{digits}f} to {max(found):.{digits}f}"

    layers = list(dict.fromkeys(r["layer"] for r in rows))
    balance = [
        [
            layer,
            span(layer, "value", 1, quantity="key_logit"),
            span(layer, "value", 1, quantity="largest_logit"),
            span(layer, "log10_value", 1, paper="balancekv", quantity="t"),
            span(layer, "log10_value", 1, paper="balancekv", quantity="stored_rows"),
        ]
        for layer in layers
    ]
    subgen = [
        [
            layer,
            f,
            span(layer, "clusters", 0, quantity="t", delta_rel=f),
            span(layer, "value", 1, quantity="t_growth", delta_rel=f),
            span(layer, "log10_value", 1, paper="subgen", quantity="t", delta_rel=f),
            span(layer, "log10_value", 1, paper="subgen", quantity="stored_rows", delta_rel=f),
        ]
        for layer in layers
        for f in fractions
    ]
    heads = (
        ["layer", "max‖k‖²/√d", "r²/√d", "BalanceKV: log10 t", "log10 stored rows"],
        ["layer", "δ over median distance", "clusters m", "2δr/ln n", "SubGen: log10 t", "log10 stored rows"],
    )
    return filled(
        (ROOT / "docs/theory.md").read_text(),
        "generate_docs.py",
        "theory",
        "\n" + markdown_table(heads[0], balance) + "\n" + markdown_table(heads[1], subgen) + "\n",
    )


def rows_of(table):
    """Yields (method, budget, {column: text}) from the table that `run` prints.

    Two or more blanks separate its columns; the last one, notes, may be empty.
    """
    head, *lines = (re.split(r" {2,}", line.strip()) for line in table.splitlines())
    for method, budget, *values in lines:
        yield method, budget, dict(zip(head[2:], values, strict=False))


def sample_page():
    full, table, notes = sample_table()
    return SAMPLE_HEAD.format(seeds=SAMPLE_SEEDS, full=full) + table + NOTES_HEAD + notes


def sample_table(*overrides):
    """Runs configs/methods.yaml; returns (bytes of the full cache, table, notes of the run) in Markdown.

    `overrides`: KEY=VALUE for the configuration; a run of some of its methods gives their rows of the table.
    """
    words = [word for text in (f"seeds.count={SAMPLE_SEEDS}", *overrides) for word in ("-s", text)]
    with tempfile.TemporaryDirectory() as out:
        table = say("run", SAMPLE_CONFIG, "-o", out, "--progress", "none", *words)
        notes = json.loads((Path(out) / "results.meta.json").read_text())["notes"]
    cells, budgets = {}, []
    for method, budget, row in rows_of(table):
        if budget != "-" and budget not in budgets:
            budgets.append(budget)
        cells.setdefault(method, {})[budget] = row
    full = cells["exact"]["-"]["total_bytes"]
    head = ["method", *(f"{what}, B = {b}" for b in budgets for what in ("error", "bytes"))]
    lines = []
    for method, by_budget in cells.items():
        row = [method]
        for budget in budgets:
            found = by_budget.get(budget) or by_budget.get("-")
            row += [found["rel_err_out_mean"], found["total_bytes"]] if found else ["", ""]
        lines.append(row)
    return full, markdown_table(head, lines), "".join(f"- {note['text']}\n" for note in notes)


def draw_readme_figure(file):
    """Draws error against bytes for the quickstart, a panel for each phase."""
    sys.path.insert(0, str(ROOT / "analysis"))
    from kvanalysis import load
    from kvanalysis.drawing.budget_axes import above_notes
    from kvanalysis.drawing.saving import save_figure
    from kvanalysis.drawing.style import PAGE_WIDTH, styled
    from kvanalysis.plots.run.error_vs_bytes import bytes_points, phases_figure
    from kvanalysis.plots.run.one_trace import OneTrace
    from kvanalysis.stats.words import replay_note

    with tempfile.TemporaryDirectory() as out, styled():
        say("run", ROOT / "configs/quickstart.yaml", "-o", out, "--progress", "none")
        run = OneTrace(load(out))
        points = bytes_points(run)
        note = " ".join([replay_note(run.rows), *above_notes(points, "loss")])
        figure = phases_figure(points, run.styles, note, PAGE_WIDTH)
        drawn = save_figure(figure, Path(out) / file.stem, pdf=False)
        file.write_bytes(drawn.read_bytes())


def main(words):
    pages = {
        "docs/methods.md": methods_page,
        "docs/row_formats.md": formats_page,
        "docs/theory.md": theory_page,
    }
    if "--sample" in words:
        pages["docs/methods_on_sample.md"] = sample_page
    stale = []
    for name, page in pages.items():
        path, text = ROOT / name, page()
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if "--check" not in words:
            path.write_text(text)
    if "--sample" in words and "--check" not in words:
        draw_readme_figure(ROOT / "docs/error_vs_bytes.png")
    print(
        "\n".join(f"{name}: {'differs' if '--check' in words else 'written'}" for name in stale)
        or "up to date"
    )
    return 1 if stale and "--check" in words else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
