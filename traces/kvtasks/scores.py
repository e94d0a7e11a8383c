"""Scores a text against a task's expected answers, as RULER does (arXiv 2404.06654, string_match_all and
string_match_part of its evaluation)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvbase.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = ("all", "any")


def score(text: str, task: Mapping[str, Any]) -> float:
    """Score in [0, 1] of a text that a model wrote; upper and lower case count as equal.

    task["score"] is "all" (share of task["answers"] that the text contains) or "any" (1 if it contains one
    of them). ConfigError for another kind, or without answers.
    """
    answers, kind = task.get("answers") or [], task.get("score", "all")
    if kind not in KINDS:
        raise ConfigError(f"task {task.get('name')}: score {kind!r} is not one of {', '.join(KINDS)}")
    if not answers:
        raise ConfigError(f"task {task.get('name')}: no answers to score: give `answers`, a list of texts")
    low = text.lower()
    found = [answer.lower() in low for answer in answers]
    return float(any(found)) if kind == "any" else sum(found) / len(found)
