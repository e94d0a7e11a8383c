"""The analysis, except that only the first picture of each folder is drawn in both widths and as PDF:
drawing all of them repeatedly takes half of the time."""

import sys
from dataclasses import replace

from kvanalysis.drawing.saving import save
from kvanalysis.figures import make
from kvreplay.program import main


def save_first_completely(picture, folder, first="", pdf=True):
    if not any(folder.glob("*.png")):
        return save(picture, folder, first, pdf)
    return save(replace(picture, widths=picture.widths[:1]), folder, first, pdf=False)


if __name__ == "__main__":
    make.save = save_first_completely
    sys.exit(main())
