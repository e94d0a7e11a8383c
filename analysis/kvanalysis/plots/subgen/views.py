"""Styles of the point sets of `kvreplay clusterability` in every figure."""

from dataclasses import dataclass

from ...drawing.style import DASHED, Style


@dataclass(frozen=True)
class ViewStyle(Style):
    name: str


VIEWS = {
    "keys": ViewStyle("#0072B2", "o", "-", "keys as stored"),
    "keys_unrotated": ViewStyle("#009E73", "^", (0, (1, 1.2)), "keys un-rotated"),
    "values": ViewStyle("#D55E00", "s", DASHED, "values"),
}
