"""Whether the model still gives the answers that its prompts ask for: accuracy, exact matches and ranks."""

import re
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from kvbase.shares import wilson

from ..data.confirmed import whole_rows
from ..errors import ResultsError
from ..stats.format import ABSENT
from .instances import settings

# Below this share the full model fails too often for matches to separate methods; the answer's rank still
# does.
ENOUGH = 0.5
WAY = ["label", "oracle", "place"]


@dataclass(frozen=True)
class Group:
    """Prompts whose names differ only in the number at the end. `table`: a row per label and budget, see
    `retrieval`; `is_written`: the model wrote its answers; `by_exact`: it did not, and the full model gives
    more than ENOUGH of them."""

    name: str
    table: pd.DataFrame

    @property
    def is_written(self):
        return bool(self.table["correct"].notna().all())

    @property
    def by_exact(self):
        return not self.is_written and bool(self._first("exact_full") > ENOUGH)

    @property
    def is_ranked(self):
        """Whether its answers count in rankings of methods."""
        return self.is_written and bool(self._first("correct_full") >= ENOUGH)

    @property
    def n_prompts(self):
        return int(self._first("n_prompts"))

    @property
    def budgets(self):
        """The budgets in words, smallest first."""
        return list(dict.fromkeys(self.table.sort_values("place")["budget"]))

    def only(self, labels):
        """The Group with these labels only."""
        return replace(self, table=self.table[self.table["label"].isin(labels)].reset_index(drop=True))

    def _first(self, column):
        return self.table[column].iloc[0]


def retrieval(losses):
    """[Group] from the rows of confirm.csv of one trace that have an answer, recorded selections first as
    everywhere; [] if no row has one.

    Columns: label, oracle, budget (words), tokens (mean over prompts), n_prompts, n_answers (prompts times
    seeds), exact and exact_full (shares), exact_low, exact_high (95 %, Wilson), rank and rank_full (medians
    of the worst rank of an answer's token), logprob and logprob_full (means, nats); correct and correct_full,
    correct_low, correct_high: the mean score of written answers, NaN where none was written.
    """
    rows = _answered(losses)
    if rows.empty:
        return []
    rows = rows.assign(group=group_names(rows["prompt"]), place=places(rows))
    groups = sorted(rows.groupby("group"), key=lambda item: _digits(item[0]))
    return [Group(name or "all prompts", _of_group(own)) for name, own in groups]


def group_names(prompts):
    """Names of prompts without the number at their end."""
    return prompts.str.replace(r"[-_ ]?\d+$", "", regex=True)


def _answered(losses):
    if "answer_rank" not in losses or not (found := settings(losses)):
        return losses.iloc[:0]
    selection, layers, _ = found[0]
    rows = whole_rows(losses)
    rows = rows[(rows["selection"] == selection) & (rows["layers"] == layers) & rows["answer_rank"].notna()]
    check_limits(rows)
    return rows


def check_limits(rows):
    """ResultsError if answers to one prompt were allowed different numbers of tokens."""
    if "answer_limit" not in rows:
        return
    limits = rows.groupby("prompt")["answer_limit"].agg(lambda own: sorted(own.dropna().unique()))
    for prompt, found in limits.items():
        if len(found) > 1:
            most = " and ".join(map(str, found))
            raise ResultsError(
                f"confirm.csv: answers to prompt {prompt} of at most {most} tokens do not compare: run"
                " `kvreplay confirm OUT --model M --generate` for all methods again"
            )


def places(rows):
    """The rank of a budget among its prompt's budgets: 0 for the smallest, then 1, ...; -1 without a budget.
    A share of a prompt's tokens is a different number of tokens on each prompt, but has the same rank."""
    budgets = rows["budget_tokens"].astype(float)
    return budgets.groupby(rows["prompt"]).rank(method="dense").fillna(0).astype(int) - 1


def _of_group(rows):
    table = pd.DataFrame([_point(key, own) for key, own in rows.groupby(WAY, sort=False)])
    table["budget"] = table["place"].map(_budgets(rows))
    full = rows.drop_duplicates("prompt")
    return table.assign(
        exact_full=full["answer_exact_full"].mean(),
        correct_full=full["answer_correct_full"].mean() if "answer_correct_full" in full else np.nan,
        rank_full=full["answer_rank_full"].median(),
        logprob_full=full["answer_logprob_full"].mean(),
    )


def _point(key, rows):
    exact, n = float(rows["answer_exact"].mean()), len(rows)
    correct = float(rows["answer_correct"].mean(skipna=False)) if "answer_correct" in rows else np.nan
    low, high = wilson(exact, n)
    correct_low, correct_high = wilson(correct, n)
    return dict(zip(WAY, key, strict=True)) | {
        "tokens": rows["budget_tokens"].astype(float).mean(),
        "n_prompts": rows["prompt"].nunique(),
        "n_answers": n,
        **{"exact": exact, "exact_low": low, "exact_high": high},
        **{"correct": correct, "correct_low": correct_low, "correct_high": correct_high},
        "rank": rows["answer_rank"].median(),
        "logprob": rows["answer_logprob"].mean(),
    }


def _budgets(rows):
    """{place: words}: "B = 64" if all prompts have equal budgets, else shares of the prompt."""
    rows = rows.assign(tokens=rows["budget_tokens"].astype(float), n=rows["n_prefill"].astype(float))
    by_place = rows.groupby("place")
    if (by_place["tokens"].nunique() <= 1).all():
        words = by_place["tokens"].first().map(lambda tokens: f"B = {tokens:.0f}")
    else:
        words = (
            (rows["tokens"] / rows["n"])
            .groupby(rows["place"])
            .mean()
            .map(lambda share: f"{100 * share:.0f} %")
        )
    return {place: ABSENT if place < 0 else text for place, text in words.items()}


def _digits(name):
    """Sort key that puts lines-2 before lines-10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
