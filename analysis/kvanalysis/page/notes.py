"""The notes on a run, as a box on its page."""

from ..data.notes import notes_of
from ..stats.clipping import clipping_notes
from .html import Html, folded, html, note

SHOWN = 5  # further notes are folded away


def notes_section(frame):
    """Notes on `load`'s table as HTML: a box with one sentence for each of the engine's and for each row
    format that clips, folded beyond SHOWN; "" if there are none."""
    texts = [each.text for each in notes_of(frame.attrs.get("meta", {}))] + clipping_notes(frame)
    if not texts:
        return Html("")
    shown = note("", texts[:SHOWN])
    rest = "".join(f"<li>{html(text)}</li>" for text in texts[SHOWN:])
    return Html(
        shown + ("\n" + folded(f"{len(texts) - SHOWN} more notes", f"<ul>{rest}</ul>") if rest else "")
    )
