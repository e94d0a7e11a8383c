"""How the point sets of `kvreplay cluster` look in every figure."""

from dataclasses import dataclass

from ...drawing.style import DASHED


@dataclass(frozen=True)
class ViewLook:
    name: str
    colour: str
    dashes: object
    marker: str


VIEWS = {
    "keys": ViewLook("keys as stored", "#0072B2", "-", "o"),
    "keys_unrotated": ViewLook("keys un-rotated", "#009E73", (0, (1, 1.2)), "^"),
    "values": ViewLook("values", "#D55E00", DASHED, "s"),
}
