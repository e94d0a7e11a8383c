"""The format safetensors: arrays named layers.N.q and so on."""

from .format_type import Format
from .named_layers import read_named

FORMAT = Format(
    name="safetensors",
    what="layers.N.q|k|v in .safetensors files",
    recognises=lambda sources: all(source.suffix == ".safetensors" for source in sources),
    read=read_named,
)
