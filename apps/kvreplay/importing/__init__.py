"""Numbers of other programs as traces: `import_file`, or `python -m kvreplay.importing`.

docs/bring_your_own_numbers.md says what a source must hold.
"""

from .run import import_file

__all__ = ["import_file"]
