"""`kvanalysis`, but of each folder's pictures the first alone comes as PDF too: drawing all of them once more
takes a third of the time."""

import sys
from pathlib import Path

from kvanalysis.cli import main
from kvanalysis.drawing import saving

save_figure = saving.save_figure


def with_one_pdf(figure, stem, pdf=True):
    return save_figure(figure, stem, pdf and not any(Path(stem).parent.glob("*.pdf")))


if __name__ == "__main__":
    saving.save_figure = with_one_pdf
    sys.exit(main())
