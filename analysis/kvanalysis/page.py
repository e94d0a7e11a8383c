"""The frame of the HTML page: style, the sorting script, and builders. Nothing comes from outside."""

import base64
from html import escape

STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1rem 4rem; color: #1a1a1a; background: #fff;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; padding-bottom: .25rem; border-bottom: 1px solid #ddd; }
p, li, dd { max-width: 46rem; }
.lead { color: #555; margin-top: 0; max-width: none; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .78rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .38rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #eee; }
thead th { border-bottom: 2px solid #999; vertical-align: bottom; }
tbody tr:hover td { background: #f5f8fb; }
.left { text-align: left; }
td.wrap { white-space: normal; min-width: 7rem; overflow-wrap: break-word; }
.sticky { position: sticky; left: 0; background: #fff; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid #0072b2; outline-offset: 2px; }
th[aria-sort=ascending] button::after { content: " ▲"; font-size: .7em; }
th[aria-sort=descending] button::after { content: " ▼"; font-size: .7em; }
figure { margin: 1rem 0 2rem; }
figure img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
figcaption { font-size: .85rem; color: #555; }
dl.facts { display: grid; grid-template-columns: 12rem 1fr;
  gap: .15rem 1rem; font-size: .9rem; }
dl.facts dt { color: #555; } dl.facts dd { margin: 0; overflow-wrap: anywhere; }
dl.terms dt { font-weight: 600; margin-top: .6rem; } dl.terms dd { margin: 0; }
pre { overflow-x: auto; background: #f7f7f7; padding: .8rem; font-size: .78rem; line-height: 1.4; }
.note { border-left: 3px solid #d55e00; background: #fdf6f1; padding: .5rem .9rem; max-width: 46rem; }
@media (max-width: 40rem) {
  td.sticky { white-space: normal; overflow-wrap: break-word; }
  dl.facts { grid-template-columns: 1fr; } dl.facts dd { margin-bottom: .4rem; }
}
@media print { .scroll { overflow: visible; } }
"""

# Cells carry their sort key in data-key; a cell without one stays last in both directions.
SCRIPT = """
document.querySelectorAll("table.sortable").forEach(table => {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => row.cells[column].dataset.key;
    const order = (a, b) => isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
    const compare = (r, s) => {
      const a = key(r), b = key(s);
      if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
      return down ? order(b, a) : order(a, b);
    };
    [...body.rows].sort(compare).forEach(row => body.append(row));
  }));
});
"""

LEFT_COLUMNS = ("trace", "method", "notes")


def document(title, parts):
    """The whole page as text."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + f"\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def section(title, *parts):
    return "\n".join([f"<section>\n<h2>{escape(title)}</h2>", *parts, "</section>"])


def facts(pairs):
    """A list of (name, value), both plain text."""
    return _definitions("facts", [(escape(name), escape(str(value))) for name, value in pairs])


def terms(pairs):
    """A list of (term, definition), the definition already HTML."""
    return _definitions("terms", [(escape(name), text) for name, text in pairs])


def _definitions(kind, pairs):
    return f'<dl class="{kind}">\n' + "\n".join(f"<dt>{a}</dt><dd>{b}</dd>" for a, b in pairs) + "\n</dl>"


def sortable_table(header, rows):
    """`rows` of (text, sort key or None) as `format.table_cells` makes them."""
    heads = "".join(
        f'<th scope="col"{_classes(name)}><button>{escape(name)}</button></th>' for name in header
    )
    lines = [
        "<tr>" + "".join(_cell(name, *cell) for name, cell in zip(header, row, strict=True)) + "</tr>"
        for row in rows
    ]
    return _table(f"<thead><tr>{heads}</tr></thead>", lines, "sortable")


def plain_table(header, rows):
    """`rows` of text, all to the left."""
    heads = "".join(f'<th scope="col" class="left">{escape(name)}</th>' for name in header)
    lines = [
        "<tr>" + "".join(f'<td class="left wrap">{escape(str(text))}</td>' for text in row) + "</tr>"
        for row in rows
    ]
    return _table(f"<thead><tr>{heads}</tr></thead>", lines, "plain")


def _table(head, lines, kind):
    body = "<tbody>\n" + "\n".join(lines) + "\n</tbody>"
    return f'<div class="scroll" tabindex="0">\n<table class="{kind}">\n{head}\n{body}\n</table>\n</div>'


def _classes(name):
    names = ["left"] if name in LEFT_COLUMNS else []
    names += {"method": ["sticky"], "notes": ["wrap"]}.get(name, [])
    return f' class="{" ".join(names)}"' if names else ""


def _cell(name, text, key):
    data = "" if key is None else f' data-key="{escape(str(key))}"'
    return f"<td{_classes(name)}{data}>{escape(text)}</td>"


def picture(png, caption, narrow=None):
    """An embedded figure; a phone gets `narrow`, drawn for a small width. The arguments are paths."""
    source = f'<source media="(max-width: 40rem)" srcset="{_embedded(narrow)}">' if narrow else ""
    image = f'<img src="{_embedded(png)}" alt="{escape(caption)}">'
    return (
        f"<figure>\n<picture>{source}{image}</picture>\n<figcaption>{escape(caption)}</figcaption>\n</figure>"
    )


def _embedded(path):
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")
