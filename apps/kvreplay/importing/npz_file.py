"""The format npz of numpy: arrays named layers.N.q and so on."""

from .format_type import Format
from .named_layers import read_named

FORMAT = Format(
    name="npz",
    what="layers.N.q|k|v in .npz files of numpy",
    recognises=lambda sources: all(source.suffix == ".npz" for source in sources),
    read=read_named,
)
