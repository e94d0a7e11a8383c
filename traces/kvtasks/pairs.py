"""Pairs of a sentence about a person and a question that it answers, without a common content word.

A question is answered by knowledge of the world. Pairs of one group could answer each other's questions, so
only one of a group stands in a prompt.
"""

from __future__ import annotations

from typing import NamedTuple

from .words import words_of


class Pair(NamedTuple):
    """said: the sentence, {} is the name. asked: what follows "which person"."""

    group: str
    said: str
    asked: str


# Names that stand in no essay.
NAMES = words_of("""
Yuki Amara Bjorn Carlos Dmitri Fatima Giulia Hassan Ingrid Jamal Katya Liam Mei Nadia Omar Priya Rafael
Sanna Tariq Ursula Veronica Wanda Xavier Zoltan
""")

PAIRS = (
    Pair("paris", "{} took a photograph from the top of the Eiffel Tower.", "has been to Paris"),
    Pair("egypt", "{} spent a week beside the pyramids of Giza.", "has travelled to Egypt"),
    Pair("london", "{} waited for an hour below the clock of Big Ben.", "has been to London"),
    Pair("rome", "{} rents a flat right beside the Colosseum.", "lives in Rome"),
    Pair("new_york", "{} climbed the stairs inside the Statue of Liberty.", "has been to New York"),
    Pair("sydney", "{} heard a concert in the opera house above the harbour with the white sails.",
         "has been to Sydney"),
    Pair("india", "{} walked around the Taj Mahal at sunrise.", "has travelled to India"),
    Pair("china", "{} walked along the Great Wall for two days.", "has been to China"),
    Pair("japan", "{} saw Mount Fuji from the window of a train.", "has travelled to Japan"),
    Pair("moscow", "{} stood in line on the Red Square, in front of the Kremlin.", "has been to Moscow"),
    Pair("berlin", "{} had breakfast next to the Brandenburg Gate.", "has been to Berlin"),
    Pair("venice", "{} sat in a gondola that passed below the Rialto Bridge.", "has been to Venice"),
    Pair("dresden", "{} lives right beside the Semper Opera.", "lives in Dresden"),
    Pair("peru", "{} hiked up to the ruins of Machu Picchu.", "has travelled to Peru"),
    Pair("athens", "{} drew the columns of the Parthenon with a pencil.", "has been to Athens"),
    Pair("vegan", "{} eats no meat, no fish, no eggs and drinks no milk.", "is a vegan"),
    Pair("piano", "{} practises Chopin's nocturnes on eighty-eight keys every night.", "is a pianist"),
    Pair("dog", "{} walks a poodle and two beagles through the park.", "owns dogs"),
    Pair("cat", "{} feeds three Siamese kittens that purr all evening.", "has cats"),
    Pair("horse", "{} puts a saddle on a brown mare and gallops over the meadow.", "rides horses"),
    Pair("bee", "{} wears a veil and takes honey out of the hives.", "keeps bees"),
    Pair("pilot", "{} sat in the cockpit and landed the jet on the runway.", "is a pilot"),
    Pair("doctor", "{} takes out tonsils and an appendix in the operating theatre.", "works as a surgeon"),
    Pair("teacher", "{} stands at the blackboard and marks the homework of thirty pupils.",
         "works as a teacher"),
    Pair("baker", "{} kneads dough and takes hot loaves out of the oven at four in the morning.",
         "works as a baker"),
    Pair("chess", "{} moved the queen and announced checkmate.", "plays chess"),
    Pair("tennis", "{} served two aces and won the match at Wimbledon.", "plays tennis"),
    Pair("football", "{} scored a penalty past the goalkeeper of Real Madrid.", "plays football"),
    Pair("swim", "{} did fifty laps of butterfly in the pool.", "likes to swim"),
    Pair("ski", "{} sped down a snowy slope on two long boards.", "likes skiing"),
    Pair("spanish", "{} grew up in Madrid and has never learned another language.", "speaks Spanish"),
    Pair("astronaut", "{} spent six months in orbit aboard the space station.", "is an astronaut"),
    Pair("dentist", "{} drills holes in teeth and fits crowns on molars.", "is a dentist"),
    Pair("farmer", "{} drives a tractor, ploughs the fields and milks forty cows.", "works as a farmer"),
    Pair("fire", "{} slid down the pole, put on the helmet and aimed the hose at the flames.",
         "works as a firefighter"),
    Pair("photography", "{} changed the lens, set the aperture and pressed the shutter.",
         "likes photography"),
)  # fmt: skip
