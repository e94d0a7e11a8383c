"""Pictures inside the page: PNG with a palette, all at one scale, as many as the page has room for."""

import base64
import io
import os
from html import escape
from pathlib import Path

from PIL import Image

from .drawn import count
from .page import Html, html, link, paragraph

EMBED_BYTES = 3_500_000  # of PNG; base64 adds a third, and a page should stay below 5 MB
# (widest picture in pixels, colours), tried in turn until all pictures fit.
SCALES = ((1380, 128), (1380, 48), (1100, 48), (900, 32), (760, 24))


class Album:
    """The pictures of `figures` (Drawn) for a page in `folder`; `left_out` of them had no room."""

    def __init__(self, figures, folder):
        self._folder = Path(folder)
        self._images = _embedded(
            [[path for path in (figure.png, figure.narrow) if path] for figure in figures]
        )
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


def _embedded(groups):
    """{path: data URL} at the first of SCALES that fits all groups; at the last as many as have room."""
    for width, colours in SCALES:
        coded = [{path: palette_png(path, width, colours) for path in group} for group in groups]
        if sum(map(_size, coded)) <= EMBED_BYTES:
            break
    urls, room = {}, EMBED_BYTES
    for group in coded:
        if _size(group) <= room:
            urls |= {path: _data_url(png) for path, png in group.items()}
            room -= _size(group)
    return urls


def _size(group):
    return sum(map(len, group.values()))


def _data_url(png):
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def palette_png(path, width, colours):
    """The picture as PNG bytes with a palette of `colours`, at most `width` pixels wide."""
    with Image.open(path) as image:
        picture = image.convert("RGB")
    if picture.width > width:
        height = round(picture.height * width / picture.width)
        picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    coded = io.BytesIO()
    # Dithering would add noise to flat areas, which neither reads nor compresses well.
    picture.quantize(colours, dither=Image.Dither.NONE).save(coded, "PNG", optimize=True)
    return coded.getvalue()
