"""The claims of several folders of `kvreplay figures`, a folder for each model: which claims hold on which
model."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ..errors import ConfigError, ResultsError
from ..stats.verdict import HOLDS, OUTCOMES
from .claims import Claim, by_paper
from .figure_folder import DESCRIBED, Made, holds_figures, read_folder

COLUMNS = [
    *("model", "figure", "paper", "number", "place", "claim", "source"),
    *("how", "outcome", "numbers", "quick"),
]


@dataclass(frozen=True)
class Stated:
    """A claim as it stands in a model's folder. `place`: its place among its figure's claims, from 1."""

    model: str
    made: Made
    place: int
    claim: Claim

    @property
    def key(self) -> tuple[str, int]:
        """The identity of the claim on every model. The wording is not part of it: it may quote a model's
        numbers."""
        return self.made.said["name"], self.place

    @property
    def file(self) -> Path:
        return self.made.folder / DESCRIBED


@dataclass(frozen=True)
class ClaimOnModels:
    """One claim; `outcomes` lacks the models without its figure."""

    paper: str
    figure: str
    claim: str
    source: str
    outcomes: dict[str, str]

    @property
    def holds_on(self) -> int:
        return list(self.outcomes.values()).count(HOLDS)


@dataclass(frozen=True)
class ModelClaims:
    """The claims of `models`, as read; `quick`: each model's figures that were only drawn quickly."""

    models: list[str]
    stated: list[Stated]
    quick: dict[str, list[str]]


def folders_in(words: Iterable[str]) -> dict[str, Path]:
    """{model: folder} from NAME=DIR or DIR (the name is then the folder's); raises ConfigError."""
    folders = {}
    for word in words:
        name, found, folder = word.partition("=")
        if not found:
            name, folder = Path(word).name or Path(word).resolve().name, word
        if not (name and folder):
            raise ConfigError(f"{word}: write NAME=DIR, a model and its folder of figures")
        if name in folders:
            raise ConfigError(
                f"{word}: {folders[name]} is named {name} too; choose another name with NAME=DIR"
            )
        folders[name] = Path(folder)
    return folders


def read_claims(folders: Mapping[str, Path]) -> ModelClaims:
    """The claims in {model: folder}; raises ResultsError."""
    made = {model: _figures_of(folder) for model, folder in folders.items()}
    stated = [
        Stated(model, one, place, claim)
        for model, figures in made.items()
        for one in figures
        for place, claim in enumerate(one.claims, start=1)
    ]
    quick = {model: [one.said["name"] for one in made[model] if one.said["quick"]] for model in made}
    return ModelClaims(list(folders), stated, quick)


def _figures_of(folder: Path) -> list[Made]:
    if not holds_figures(folder):
        raise ResultsError(
            f"{folder}: holds no NAME/{DESCRIBED}; `kvreplay figures CONFIG -o {folder}` makes it"
        )
    return read_folder(folder)[0]


def claims_on_models(found: ModelClaims) -> list[ClaimOnModels]:
    """Each claim once, by paper, figure and place; raises ResultsError if folders state different claims."""
    groups = {}
    for stated in found.stated:
        groups.setdefault(stated.key, []).append(stated)
    joined = [_joined(groups[key]) for key in sorted(groups)]
    return [claim for _, own in by_paper(joined) for claim in own]


def _joined(group: list[Stated]) -> ClaimOnModels:
    first = group[0]
    for other in group[1:]:
        if _words(other.claim) != _words(first.claim):
            raise ResultsError(
                f"{other.file}: claim {other.place} is {other.claim.claim!r} ({other.claim.source}), in"
                f" {first.file} {first.claim.claim!r} ({first.claim.source}); draw both from one"
                " configuration"
            )
    outcomes = {stated.model: stated.claim.outcome for stated in group}
    return ClaimOnModels(first.claim.paper, first.key[0], first.claim.claim, first.claim.source, outcomes)


def _words(claim: Claim) -> tuple[str, ...]:
    """The parts of a claim that are equal on every model: all but its numbers."""
    return claim.paper, claim.source, re.sub(r"\d+(\.\d+)?", "#", claim.claim)


Table = tuple[str, list[str], list[list[object]]]  # caption, header, rows


def tables(found: ModelClaims) -> list[Table]:
    """Tables: claims of each paper by the number of models they hold on, outcomes by model, and every
    claim."""
    claims, models = claims_on_models(found), found.models
    papers = [*by_paper(claims), ("all", claims)]
    counts = range(len(models), -1, -1)
    return [
        ("Claims by the number of models on which they hold.",
         ["paper", *map(str, counts), "claims"],
         [[paper, *_counted((claim.holds_on for claim in own), counts), len(own)] for paper, own in papers]),
        ("Claims by outcome.",
         ["model", *OUTCOMES, "claims"],
         [[model, *_of_model(claims, model)] for model in models]),
        ("Every claim.",
         ["paper", "figure", "claim", "source", *models, "holds on"],
         [[claim.paper, claim.figure, claim.claim, claim.source, *map(claim.outcomes.get, models),
           f"{claim.holds_on} of {len(claim.outcomes)}"] for claim in claims]),
    ]  # fmt: skip


def _of_model(claims: list[ClaimOnModels], model: str) -> list[int]:
    outcomes = [claim.outcomes[model] for claim in claims if model in claim.outcomes]
    return [*_counted(outcomes, OUTCOMES), len(outcomes)]


def _counted(values: Iterable, kinds: Iterable) -> list[int]:
    values = list(values)
    return [values.count(kind) for kind in kinds]


def csv_text(found: ModelClaims) -> str:
    """One row per claim and model."""
    rows = [
        (each.model, each.key[0], each.claim.paper, each.made.said["number"], each.place, each.claim.claim,
         each.claim.source, each.claim.how, each.claim.outcome, each.claim.numbers, each.made.said["quick"])
        for each in found.stated
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS).to_csv(index=False)
