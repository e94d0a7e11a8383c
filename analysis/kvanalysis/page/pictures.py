"""Pictures inside the page: few colours, lossless WebP, as many as the page has room for.

A figure of kvanalysis so takes about 35 kB where its PNG takes 160. A smaller scale would save nothing:
it blurs flat areas.
"""

import base64
import io
import os
from html import escape
from pathlib import Path

from PIL import Image

from ..errors import ResultsError
from ..numbers.words import count
from .html import Html, html, link, paragraph

APART = 8  # levels of a channel by which two colours of a picture differ at least
MOST_PIXELS = 16383  # a side of a WebP picture
EMBED_BYTES = 3_550_000  # of pictures; base64 adds a third, and a page should stay below 5 MB
# (commonest colours, further colours, whether phones get a picture of their own), until all pictures fit.
QUALITIES = ((48, 32, True), (32, 24, True), (32, 24, False))


class Album:
    """The pictures of `figures` (Drawn) for a page in `folder`; `left_out` of them had no room."""

    def __init__(self, figures, folder):
        self._folder = Path(folder)
        self._images = _embedded([(figure.png, figure.narrow) for figure in figures])
        self.left_out = [figure for figure in figures if figure.png not in self._images]

    def note(self):
        """What is missing, as HTML; empty if nothing is."""
        if not self.left_out:
            return Html("")
        names = ", ".join(figure.png.name for figure in self.left_out)
        left = f"{count(len(self.left_out), 'picture')} left out to keep this page small"
        return paragraph(f"{left}; the files are linked: {names}.", "note")

    def show(self, figure, caption=""):
        """One figure with its caption and the files beside the page; a phone gets the narrow picture."""
        text = ". ".join(part.rstrip(".") for part in (figure.title, caption) if part) + "."
        return Html(
            f"<figure>\n{self._picture(figure, text)}\n"
            f'<figcaption>{html(text)} <span class="links">{self._links(figure)}</span></figcaption>\n'
            "</figure>"
        )

    def _picture(self, figure, text):
        wide, narrow = (self._images.get(path) for path in (figure.png, figure.narrow))
        if not wide:
            return f"<p>{html(figure.png.name)}: left out to keep this page small.</p>"
        source = f'<source media="(max-width: 40rem)" srcset="{narrow}">' if narrow else ""
        return f'<picture>{source}<img src="{wide}" alt="{escape(text)}"></picture>'

    def _links(self, figure):
        files = [path for path in (figure.png, figure.png.with_suffix(".pdf"), figure.csv) if path.is_file()]
        return Html(
            " · ".join(
                link(path.suffix[1:].upper(), Path(os.path.relpath(path, self._folder)).as_posix())
                for path in files
            )
        )


def _embedded(pairs):
    """{path: data URL} at the first of QUALITIES that fits all; at the last as many as have room.

    `pairs` of (wide picture, narrow one or None).
    """
    for common, further, phones in QUALITIES:
        groups = [[path for path in (pair if phones else pair[:1]) if path] for pair in pairs]
        coded = [{path: webp(path, common, further) for path in group} for group in groups]
        if sum(map(_size, coded)) <= EMBED_BYTES:
            break
    urls, room = {}, EMBED_BYTES
    for group in coded:
        if _size(group) <= room:
            urls |= {path: _data_url(data) for path, data in group.items()}
            room -= _size(group)
    return urls


def _size(group):
    return sum(map(len, group.values()))


def _data_url(data):
    return "data:image/webp;base64," + base64.b64encode(data).decode("ascii")


def _apart(colours):
    """Those that differ from all earlier ones: Pillow looks colours up by boxes and would mix the others."""
    kept = []
    for colour in colours:
        if all(max(abs(a - b) for a, b in zip(colour, other, strict=True)) >= APART for other in kept):
            kept.append(colour)
    return kept


def _opened(path):
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except OSError as problem:
        raise ResultsError(f"{path}: cannot be read as a picture; draw the figure again") from problem


def webp(path, common, further):
    """The picture of `path` as lossless WebP in its `common` commonest colours and `further` others.

    The commonest stay as they are: curves, bands and cells keep the colours of their legend. A picture that
    is longer than the format allows is made smaller; the page links the whole one.
    """
    picture = _opened(path)
    picture.thumbnail((MOST_PIXELS, MOST_PIXELS))
    counted = sorted(picture.getcolors(picture.width * picture.height), reverse=True)
    spread = picture.quantize(further, Image.Quantize.MAXCOVERAGE).convert("RGB").getcolors()
    palette = Image.new("P", (1, 1))
    kept = _apart([colour for _, colour in counted[:common] + spread])
    palette.putpalette([part for colour in kept for part in colour])
    coded = io.BytesIO()
    few = picture.quantize(palette=palette, dither=Image.Dither.NONE)
    few.convert("RGB").save(coded, "WEBP", lossless=True, method=4)
    return coded.getvalue()
