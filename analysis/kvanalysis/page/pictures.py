"""Pictures inside the page: the files as drawn, or smaller ones that look alike."""

import base64
import io
import os
from contextlib import suppress
from html import escape
from pathlib import Path

from PIL import Image

from ..errors import ResultsError
from ..stats.words import count
from .html import Html, html, link, paragraph

PNG_BEGINS, PNG_ENDS = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
MOST_PIXELS = 16383  # longest side of a WebP picture
EMBED_BYTES = 1_300_000  # total size of pictures; base64 adds a third, and a page should stay below 3 MB


class Album:
    """The pictures of `figures` (SavedFigure) for a page in `folder`; `left_out`: those without room."""

    def __init__(self, figures, folder):
        self._folder = Path(folder)
        self._images = _embedded([(figure.png, figure.narrow) for figure in figures])
        self.left_out = [figure for figure in figures if figure.png not in self._images]

    def note(self):
        """The pictures left out, as HTML; empty if there are none."""
        if not self.left_out:
            return Html("")
        names = ", ".join(figure.png.name for figure in self.left_out)
        left = f"{count(len(self.left_out), 'picture')} left out to keep this page small"
        return paragraph(f"{left}; the files are linked: {names}.", "note")

    def show(self, figure, caption=""):
        """One figure with its title above, its caption and files below; phones get the narrow picture."""
        title = f"<h3>{html(figure.title)}</h3>"
        return Html(
            f"<figure>\n{title}\n{self.picture(figure, caption)}\n{self.caption(figure, caption)}\n</figure>"
        )

    def picture(self, figure, caption=""):
        """The picture alone; the caption becomes its alternative text."""
        text = ". ".join(part.rstrip(".") for part in (figure.title, caption) if part) + "."
        wide, narrow = (self._images.get(path) for path in (figure.png, figure.narrow))
        if not wide:
            return Html(f"<p>{html(figure.png.name)}: left out to keep this page small.</p>")
        source = f'<source media="(max-width: 40rem)" srcset="{narrow}">' if narrow else ""
        return Html(f'<picture>{source}<img src="{wide}" alt="{escape(text)}"></picture>')

    def caption(self, figure, caption=""):
        """The caption with links to the files beside the page."""
        return Html(
            f'<figcaption>{html(caption)} <span class="links">{self._links(figure)}</span></figcaption>'
        )

    def _links(self, figure):
        files = [path for path in (figure.png, figure.png.with_suffix(".pdf"), figure.csv) if path.is_file()]
        return Html(
            " · ".join(
                link(path.suffix[1:].upper(), Path(os.path.relpath(path, self._folder)).as_posix())
                for path in files
            )
        )


def _embedded(pairs):
    """{path: data URL}. The files are embedded as they are if the page has room for them, else as WebP; if
    even those have no room, as many as fit, without the narrow ones for phones.

    `pairs`: (wide picture, narrow picture or None).
    """
    paths = [path for pair in pairs for path in pair if path]
    kind, files = "png", {path: _content(path) for path in paths}
    if sum(map(len, files.values())) > EMBED_BYTES:
        kind, files = "webp", {path: webp(path) for path in paths}
    if sum(map(len, files.values())) > EMBED_BYTES:
        files = {wide: files[wide] for wide, _ in pairs}
    urls, room = {}, EMBED_BYTES
    for path, content in files.items():
        if len(content) <= room:
            urls[path] = f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"
            room -= len(content)
    return urls


def _content(path):
    with suppress(OSError):
        content = path.read_bytes()
        if content.startswith(PNG_BEGINS) and content.endswith(PNG_ENDS):
            return content
    raise ResultsError(f"{path}: cannot be read as a picture; draw the figure again")


def webp(path):
    """The picture as lossless WebP, about two thirds of its PNG.

    A picture beyond the format's limits is scaled down; the page links the full one.
    """
    coded = io.BytesIO()
    with Image.open(path) as picture:
        shown = picture.convert("RGB")
    shown.thumbnail((MOST_PIXELS, MOST_PIXELS))
    shown.save(coded, "WEBP", lossless=True)
    return coded.getvalue()
