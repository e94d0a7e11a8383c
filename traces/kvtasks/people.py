"""Invented people, whose documents answer questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .words import words_of

if TYPE_CHECKING:
    import random

FIRST = words_of("""
Agnes Albert Alma Anders Anton Astrid Bruno Carla Cecilia Clara Conrad Dagmar Edgar Edith Elena Elias Emil
Erik Esther Felix Frieda Georg Greta Gustav Hanna Harald Hedda Henrik Hugo Ida Ingrid Irene Ivan Jakob
Jonas Judith Julius Karin Klara Konrad Laura Lena Leo Linnea Ludwig Magnus Marta Matilda Maurice Mila
Nadia Nils Nora Olga Oscar Otto Paula Pavel Petra Rasmus Rosa Rudolf Ruth Samuel Sigrid Simon Sofia Stefan
Sven Tilda Tobias Ulla Vera Victor Viola Walter Wanda Willem
""")
LAST = words_of("""
Aldner Bakke Bergman Brandis Castell Dahlen Eklund Falk Farkas Fenwick Garner Gladwin Haldane Harker Holm
Iversen Janik Kessel Kolar Lindqvist Lorimer Madsen Marlow Merrin Nagel Norden Olsen Palmer Petrov Quist
Rask Renard Sandoval Sorel Stenger Talbot Thorne Ulrich Vance Verner Wallin Weir Wexler Zander
""")
TOWNS = words_of("""
Tolvik Berrow Ashmere Calder Dunholt Elmsford Farrow Glenholm Harwick Istead Kelby Larkmoor Midvale
Northam Oakhurst Penrith Quenby Ravensford Silby Thornham Upwell Velden Westerby Yarrow Aldport Brenmouth
Corvale Dray Eastholm Fennwick
""")
TRADES = """
glassblower, baker, clockmaker, carpenter, printer, teacher, tailor, surveyor, potter, gardener, blacksmith,
librarian, pharmacist, bookbinder, stonemason, weaver, painter, engraver, beekeeper, shipbuilder
""".replace("\n", " ").split(", ")
INSTRUMENTS = (
    *("viola", "clarinet", "trumpet", "harp", "oboe", "cello", "accordion", "flute", "guitar", "mandolin"),
    *("bassoon", "trombone", "zither", "piano", "saxophone", "organ"),
)

# Each fact: the sentence that states it, and its question.
FACTS = {
    "born_in": ("{name} was born in the town of {born_in}.", "In which town was {name} born?"),
    "year": ("{name} finished school in {year}.", "In which year did {name} finish school?"),
    "trade": ("After that {name} worked as a {trade}.", "What did {name} work as?"),
    "instrument": ("In the evenings {name} played the {instrument}.", "Which instrument did {name} play?"),
}


@dataclass(frozen=True)
class Person:
    """A person: a name, and one text for each of FACTS."""

    name: str
    facts: dict[str, str]

    def sentence(self, fact: str) -> str:
        """The sentence that states a fact."""
        return FACTS[fact][0].format(name=self.name, **self.facts)

    def question(self, fact: str) -> str:
        """A question that the fact answers."""
        return FACTS[fact][1].format(name=self.name)

    @property
    def text(self) -> str:
        """All sentences."""
        return " ".join(map(self.sentence, FACTS))


def person(draw: random.Random, middle: bool = False) -> Person:
    """A drawn person. middle: with a middle name, where so many people are needed."""
    names = [draw.choice(FIRST), *([draw.choice(FIRST)] if middle else []), draw.choice(LAST)]
    return Person(
        " ".join(names),
        {
            "born_in": draw.choice(TOWNS),
            "year": str(draw.randrange(1880, 1990)),
            "trade": draw.choice(TRADES).strip(),
            "instrument": draw.choice(INSTRUMENTS),
        },
    )
