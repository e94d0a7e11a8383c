"""DejaVu Sans, which matplotlib ships, without its layout rules.

A PDF file embeds the letters that it shows. To find them, matplotlib follows every rule of the font, such as
those for Arabic, which takes longer than drawing most figures.
"""

import tempfile
from functools import cache
from pathlib import Path

import matplotlib
from fontTools.ttLib import TTFont
from matplotlib.font_manager import fontManager

FILES = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf")
RULES = ("GDEF", "GPOS", "GSUB")  # tables of a font
FAMILY = "kvanalysis Sans"
FAMILY_NAMES = (1, 4, 6, 16)  # entries of a font's name table that hold its names


@cache
def family():
    """The name for `font.family`; its files are made once per process."""
    folder = tempfile.TemporaryDirectory(prefix="kvanalysis-")
    for name in FILES:
        plain = Path(folder.name) / name
        _without_rules(Path(matplotlib.get_data_path()) / "fonts/ttf" / name, plain)
        fontManager.addfont(plain)
    _folders.append(folder)
    return FAMILY


_folders = []  # keeps the temporary folder alive, because figures read the fonts when they are saved


def _without_rules(source, target):
    with TTFont(source, lazy=True) as font:
        for table in RULES:
            del font[table]
        for entry in font["name"].names:
            if entry.nameID in FAMILY_NAMES:
                entry.string = FAMILY
        font.save(target)
