"""How a model writes an answer: how many tokens it may take, and which ones end it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAST_WRITTEN = 32  # tokens that RULER allows an answer of a needle


def limit_of(task: Mapping[str, Any] | None) -> int:
    """How many tokens the answer of a task may take."""
    return int((task or {}).get("generate", LEAST_WRITTEN))


def end_tokens(model: Any, tokenizer: Any) -> set[int]:
    """Tokens that end an answer: those of the model's settings and the tokenizer's."""
    told = model.generation_config.eos_token_id
    told = told if isinstance(told, list | tuple) else [told]
    return {int(token) for token in (*told, tokenizer.eos_token_id) if token is not None}
