"""Builders of the HTML page. Text is escaped, unless it is marked as `Html`."""

import re
from html import escape

from ..stats.format import LEFT
from .style import SCRIPT, STYLE


class Html(str):
    """Text that already is HTML."""

    __slots__ = ()


def html(value):
    """Any value as HTML."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def document(title, parts):
    """The whole page as text."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + f"\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def anchor(title):
    """The id of a heading."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def section(title, *parts):
    return Html(
        "\n".join([f'<section id="{anchor(title)}">\n<h2>{escape(title)}</h2>', *parts, "</section>"])
    )


def contents(entries):
    """A list of links; `entries`: (text, id, [entries below])."""

    def listed(items):
        lines = (
            f'<li><a href="#{escape(where)}">{html(text)}</a>{listed(below) if below else ""}</li>'
            for text, where, below in items
        )
        return "<ul>" + "".join(lines) + "</ul>"

    return Html(f'<nav id="contents" aria-label="Contents">{listed(entries)}</nav>')


def paragraph(text, kind=""):
    return Html(f'<p class="{kind}">{html(text)}</p>' if kind else f"<p>{html(text)}</p>")


def note(title, items):
    """A box that a reader must not miss; `items` are shown as a list."""
    lines = "".join(f"<li>{html(item)}</li>" for item in items)
    head = f"<strong>{html(title)}</strong>" if title else ""
    return Html(f'<div class="note">{head}<ul>{lines}</ul></div>')


def folded(title, *parts):
    return Html(f"<details><summary>{html(title)}</summary>\n" + "\n".join(parts) + "\n</details>")


def link(text, target):
    return Html(f'<a href="{escape(str(target))}">{html(text)}</a>')


def facts(pairs):
    """A list of (name, value)."""
    return _definitions("facts", pairs)


def terms(pairs):
    """A list of (term, definition), the definition already HTML."""
    return _definitions("terms", [(name, Html(text)) for name, text in pairs])


def _definitions(kind, pairs):
    lines = "\n".join(f"<dt>{html(name)}</dt><dd>{html(text)}</dd>" for name, text in pairs)
    return Html(f'<dl class="{kind}">\n{lines}\n</dl>')


def sortable_table(header, rows):
    """`rows`: lists of (text, sort key or None), as `format.table_cells` makes them."""
    lines = [
        "<tr>" + "".join(_cell(name, *cell) for name, cell in zip(header, row, strict=True)) + "</tr>"
        for row in rows
    ]
    return _table(_sortable_head(header), lines, "sortable")


def card_table(header, rows, kind):
    """A sortable table of long texts, which a phone shows as one card per row; `rows` as in `sortable_table`.

    `kind`: a class of the style sheet, for the widths of its columns.
    """
    lines = [
        "<tr>"
        + "".join(
            f'<td data-label="{escape(name)}"{_key(key)}>{html(text)}</td>'
            for name, (text, key) in zip(header, row, strict=True)
        )
        + "</tr>"
        for row in rows
    ]
    return _table(_sortable_head(header), lines, f"sortable cards {kind}")


def plain_table(header, rows):
    """`rows`: lists of text, aligned left."""
    heads = "".join(f'<th scope="col" class="left">{html(name)}</th>' for name in header)
    lines = [
        "<tr>" + "".join(f'<td class="left wrap">{html(text)}</td>' for text in row) + "</tr>" for row in rows
    ]
    return _table(heads, lines, "plain")


def _sortable_head(header):
    return "".join(f'<th scope="col"{_classes(name)}><button>{escape(name)}</button></th>' for name in header)


def _table(heads, lines, kind):
    body = "<tbody>\n" + "\n".join(lines) + "\n</tbody>"
    return Html(
        f'<div class="scroll" tabindex="0">\n<table class="{kind}">\n<thead><tr>{heads}</tr></thead>\n'
        f"{body}\n</table>\n</div>"
    )


def _classes(name):
    names = ["left"] if name in LEFT else []
    names += {"method": ["sticky"], "notes": ["wrap"]}.get(name, [])
    return f' class="{" ".join(names)}"' if names else ""


def _key(key):
    return "" if key is None else f' data-key="{escape(str(key))}"'


def _cell(name, text, key):
    return f"<td{_classes(name)}{_key(key)}>{html(text)}</td>"
