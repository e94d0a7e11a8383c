"""The notes of a run, as a box of its page."""

from ..data.notes import notes_of
from .html import Html, folded, html, note

SHOWN = 5  # notes that are not folded away


def notes_section(frame):
    """What the engine says of `load`'s table as HTML: a box with a sentence a note, folded beyond SHOWN; ""
    where it says nothing."""
    texts = [each.text for each in notes_of(frame.attrs.get("meta", {}))]
    if not texts:
        return Html("")
    shown = note("What these numbers cannot show", texts[:SHOWN])
    rest = "".join(f"<li>{html(text)}</li>" for text in texts[SHOWN:])
    return Html(
        shown + ("\n" + folded(f"{len(texts) - SHOWN} more notes", f"<ul>{rest}</ul>") if rest else "")
    )
