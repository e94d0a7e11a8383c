"""`kvanalysis`, but of each folder's pictures the first alone comes in both widths and as PDF: drawing all of
them again and again takes half of the time."""

import sys
from dataclasses import replace

from kvanalysis.cli import main
from kvanalysis.drawing.saving import save
from kvanalysis.figures import make


def save_first_whole(picture, folder, first="", pdf=True):
    if not any(folder.glob("*.png")):
        return save(picture, folder, first, pdf)
    return save(replace(picture, widths=picture.widths[:1]), folder, first, pdf=False)


if __name__ == "__main__":
    make.save = save_first_whole
    sys.exit(main())
