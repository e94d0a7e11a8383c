"""Settings in which methods are ranked: at equal budgets, and at equal bytes between two replayed budgets."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

SHARES = (0.1, 0.2, 0.4)
FEWEST = 5  # with fewer methods no rank correlation is computed
NEAR = 1.05  # a budget whose bytes are within this factor of the share represents it


@dataclass(frozen=True)
class Place:
    """Methods on one model and text at one budget or share. `methods` [n] labels, `measured` [n] nats,
    `values` {measure: [n]}, NaN without a value."""

    model: str
    text: str
    name: str
    methods: np.ndarray
    measured: np.ndarray
    values: dict


def places_of(model, table, measures):
    """[Place] for a model. `table`: prompt, label, budget_tokens, share (bytes over the full cache's) and
    kl_mean of instances without oracles and row formats; `measures`: {name: [instances]} in the same
    order."""
    found = []
    for text, rows in table.groupby("prompt", sort=True).indices.items():
        own = table.iloc[rows].reset_index(drop=True)
        values = pd.DataFrame({name: np.asarray(of)[rows] for name, of in measures.items()})
        found += _budgets(model, text, own, values)
        found += _shares(model, text, own, values)
    return [place for place in found if len(place.methods) >= FEWEST]


def _budgets(model, text, table, values):
    for budget, rows in table.groupby("budget_tokens").indices.items():
        own = table.iloc[rows]
        yield Place(model, text, f"{budget:.0f} tokens", own["label"].to_numpy(), own["kl_mean"].to_numpy(),
                    {name: values[name].to_numpy()[rows] for name in values})  # fmt: skip


def _shares(model, text, table, values):
    numbers = values.assign(kl_mean=table["kl_mean"], share=table["share"], label=table["label"])
    for share in SHARES:
        at = {label: row for label, own in numbers.groupby("label", sort=True)
              if (row := _at(own.drop(columns="label"), share)) is not None}  # fmt: skip
        frame = pd.DataFrame(at).T
        if len(frame):
            own = {name: frame[name].to_numpy() for name in values}
            measured = frame["kl_mean"].to_numpy()
            yield Place(model, text, f"{share:.0%} of the bytes", frame.index.to_numpy(), measured, own)


def _at(numbers, share):
    """The numbers of a method at a share, interpolated between two budgets as powers of the bytes; None
    outside the replayed budgets."""
    numbers = numbers.sort_values("share")
    shares = numbers["share"].to_numpy()
    if not shares[0] / NEAR <= share <= shares[-1] * NEAR:
        return None
    at = np.clip(np.log(share), np.log(shares[0]), np.log(shares[-1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(numbers.drop(columns="share"))
    return pd.Series({name: np.exp(np.interp(at, np.log(shares), logs[name])) for name in logs})
