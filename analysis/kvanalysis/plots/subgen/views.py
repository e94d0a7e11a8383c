"""How the point sets of `kvreplay cluster` style in every figure."""

from dataclasses import dataclass

from ...drawing.style import DASHED


@dataclass(frozen=True)
class ViewStyle:
    name: str
    colour: str
    dashes: object
    marker: str


VIEWS = {
    "keys": ViewStyle("keys as stored", "#0072B2", "-", "o"),
    "keys_unrotated": ViewStyle("keys un-rotated", "#009E73", (0, (1, 1.2)), "^"),
    "values": ViewStyle("values", "#D55E00", DASHED, "s"),
}
